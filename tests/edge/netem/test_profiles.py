"""Profiles: names, steps, and figures replaced on the command line."""

import re
from itertools import islice
from pathlib import Path

import pytest

from draftwire_edge.netem import PROFILES, Conditions, Profile, Step, find_profile
from draftwire_edge.netem.command import chosen_profile
from draftwire_protocol.errors import UserInputError

DOCS = Path(__file__).parents[3] / "docs" / "netem.md"
FIRST, SECOND = Step(2.0, Conditions(rtt_ms=10)), Step(0.5, Conditions(rtt_ms=20), held=True)
SHORT = Profile("short", "for tests", (FIRST, SECOND))


def test_a_varying_profile_repeats() -> None:
    assert list(islice(SHORT.timeline(), 4)) == [(0.0, FIRST), (2.0, SECOND), (2.5, FIRST), (4.5, SECOND)]
    assert [SHORT.at(t) for t in (0.0, 1.9, 2.0, 2.4, 2.5, 4.6)] == [
        FIRST, FIRST, SECOND, SECOND, FIRST, SECOND,
    ]  # fmt: skip


def test_a_constant_profile_has_one_step() -> None:
    profile = find_profile("4g")
    assert list(profile.timeline()) == [(0.0, profile.steps[0])]
    assert profile.at(1e6) == profile.steps[0]
    assert not profile.varies


def test_figures_replace_those_of_all_steps() -> None:
    steps = chosen_profile("train", rtt_ms=7.0).steps
    assert {step.conditions.rtt_ms for step in steps} == {7.0}
    assert [step.conditions.loss for step in steps] == [
        one.conditions.loss for one in PROFILES["train"].steps
    ]
    assert chosen_profile(None, loss=0.1).steps[0].conditions == Conditions(loss=0.1)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UserInputError, match=r"--profile: there is no '6g'. Choose one of lan, wifi, .*train"
    ):
        chosen_profile("6g")


def test_the_docs_state_the_figures_of_the_code() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \| ([\d.]+) \|", DOCS.read_text(), re.MULTILINE
    )
    stated = {
        name: Conditions(float(rtt), float(jitter), float(rate.replace(",", "")), float(loss))
        for name, rtt, jitter, rate, loss in rows
    }
    assert stated == {
        name: profile.steps[0].conditions for name, profile in PROFILES.items() if not profile.varies
    }
