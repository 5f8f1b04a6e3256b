"""Published figures are medians of ratios within one text and link."""

import pytest

from draftwire_sim.bench.arms import AUTO, CLOUD_ALONE, DRAFT_ALONE, LOCKSTEP_AUTO, fixed
from draftwire_sim.bench.summary import is_fixed, link_title, links_in_order, summarise, table
from draftwire_sim.bench.texts import Text


def text(arm: str, rtt: float, prompt: int, tpot: float, *, identical: bool | None = True) -> Text:
    return Text(
        arm,
        f"{rtt:g}",
        prompt,
        (1,) * 10,
        tpot,
        50.0,
        5,
        20,
        12,
        6,
        300,
        200,
        (0.1,) * 10,
        identical=identical,
    )


TEXTS = [
    text(arm, rtt, prompt, base * (1 + prompt) + (rtt if arm != CLOUD_ALONE else 0))
    for arm, base in ((CLOUD_ALONE, 50), (fixed(2), 40), (fixed(8), 60), (AUTO, 25), (LOCKSTEP_AUTO, 38))
    for rtt in (0.0, 30.0)
    for prompt in (0, 1, 2)
]


def test_ratios_are_taken_within_one_text() -> None:
    summary = summarise(TEXTS)
    assert summary["speedup_vs_cloud"][AUTO]["0"] == pytest.approx(2.0)
    assert summary["speedup_vs_cloud"][AUTO]["30"] == pytest.approx(100 / 80, abs=1e-4)
    assert summary["best_fixed_gamma"] == {"0": fixed(2), "30": fixed(2)}
    assert summary["speedup_vs_best_fixed_gamma"][LOCKSTEP_AUTO]["0"] == pytest.approx(40 / 38, abs=1e-4)
    assert summary["acceptance_rate"][AUTO]["0"] == pytest.approx(0.5)
    assert summary["bytes_per_token"][AUTO]["0"] == pytest.approx(50.0)
    assert summary["identical"] is True


def test_one_different_text_is_told() -> None:
    assert summarise([*TEXTS, text(AUTO, 0.0, 3, 20.0, identical=False)])["identical"] is False


def test_auto_lockstep_is_no_fixed_gamma() -> None:
    assert is_fixed(fixed(4))
    assert not is_fixed(LOCKSTEP_AUTO)


def test_the_table_has_a_column_a_link_and_names_the_best_gamma() -> None:
    header, rows = table(summarise(TEXTS))
    assert header[1:] == ["R 0", "R 30"]
    assert ["best fixed γ", "80.0 (1.25) γ2", "110.0 (0.91) γ2"] in rows


def test_what_the_draft_model_writes_alone_is_shown_as_another_text_and_not_compared() -> None:
    summary = summarise(
        [*TEXTS, *(text(DRAFT_ALONE, 0.0, prompt, 10.0, identical=None) for prompt in (0, 1))]
    )
    assert summary["identical"] is True
    assert summary["tpot_ms"][DRAFT_ALONE] == {"0": 10.0}
    assert ["draft alone (another text)", "10.0 (7.50)", ""] in table(summary)[1]


def test_links_come_by_their_round_trip_and_profiles_after_them() -> None:
    summary = {"tpot_ms": {"cloud": {"100": 1.0, "4g": 1.0, "30": 1.0}}}
    assert [link_title(link) for link in links_in_order(summary)] == ["R 30", "R 100", "4g"]


def test_a_text_of_one_token_has_no_time_per_token_to_compare() -> None:
    summary = summarise([*TEXTS, text(DRAFT_ALONE, 0.0, 0, 0.0, identical=None)])
    assert DRAFT_ALONE not in summary["speedup_vs_cloud"]
