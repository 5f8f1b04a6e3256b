"""What is typed about links, and what each text goes through."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.profiles import PROFILES, Profile, Step
from draftwire_edge.netem.relay import Relay
from draftwire_sim.bench.links import BenchLink, LinkOptions, chosen_links, playing, starting_at

TRAIN = PROFILES["train"]


def test_round_trips_keep_their_numbers_as_names() -> None:
    links = chosen_links(LinkOptions(rtt_ms="0,12.5", jitter_ms=3.0, rate_kbit=64.0, loss=0.01))
    assert [link.name for link in links] == ["0", "12.5"]
    assert links[1].profile.steps == (Step(math.inf, Conditions(12.5, 3.0, 64.0, 0.01)),)


def test_nothing_typed_is_the_default_list() -> None:
    assert [link.name for link in chosen_links(LinkOptions(), "5,6")] == ["5", "6"]


def test_profiles_go_by_their_names_and_single_figures_replace_theirs() -> None:
    train, wifi = chosen_links(LinkOptions(profile="train,wifi", loss=0.0))
    assert (train.name, wifi.name) == ("train", "wifi")
    assert len(train.profile.steps) == len(TRAIN.steps)
    assert wifi.profile.steps[0].conditions.rtt_ms == PROFILES["wifi"].steps[0].conditions.rtt_ms
    assert all(step.conditions.loss == 0.0 for step in train.profile.steps)


def test_changes_are_steps_of_every_text() -> None:
    (link,) = chosen_links(LinkOptions(rtt_ms="10", change="3:10,1:300"))
    assert [(step.seconds, step.conditions.rtt_ms) for step in link.for_text(2, 3).steps] == [
        (1.0, 10.0),
        (2.0, 300.0),
        (math.inf, 10.0),
    ]


@given(st.floats(0.0, 52.4), st.floats(0.0, 52.4))
def test_a_profile_from_elsewhere_is_the_same_profile(offset_s: float, elapsed_s: float) -> None:
    begun = starting_at(TRAIN, offset_s)
    assert sum(step.seconds for step in begun.steps) == pytest.approx(52.5)
    found, expected = begun.at(elapsed_s), TRAIN.at(offset_s + elapsed_s)
    # At a border itself rounding decides.
    near = [TRAIN.at(offset_s + elapsed_s + shift) for shift in (-1e-6, 1e-6)]
    assert (found.conditions, found.held) in [(one.conditions, one.held) for one in (expected, *near)]


def test_short_texts_see_all_of_a_profile_that_varies() -> None:
    begins = [BenchLink("train", TRAIN).for_text(index, 12).steps[0] for index in range(12)]
    assert {one.conditions for one in begins} == {step.conditions for step in TRAIN.steps}


async def test_the_link_is_as_before_when_a_text_is_over() -> None:
    dead, good = Conditions(rtt_ms=200.0), Conditions(rtt_ms=10.0)
    relay = Relay(("127.0.0.1", 9), Conditions())
    async with playing(relay, Profile("dead", "", (Step(math.inf, dead, held=True),))):
        assert relay.conditions == dead
        for _ in range(5):
            await asyncio.sleep(0)
        relay.conditions = good  # what a later step would do
    assert (relay.conditions, relay.link.frozen) == (dead, False)
