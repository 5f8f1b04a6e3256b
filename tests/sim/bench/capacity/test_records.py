"""What an edge notes of a text."""

import json

from draftwire_protocol.messages import ServerTiming, Usage
from draftwire_sim.bench.capacity.records import Written
from sim.bench.capacity.worlds import seen, turn, written


def test_the_first_verdict_ends_the_prompt_and_is_no_round() -> None:
    text = written([seen(2.0, 1, 1.5), seen(3.0, 4), seen(3.5, 2)], asked_at_s=0.5)
    assert (text.ttft_s, text.first_at_s, text.ended_at_s) == (1.5, 2.0, 3.5)
    assert [one.tokens for one in text.verdicts] == [4, 2]
    assert [one.tokens for one in text.seen] == [1, 4, 2]
    assert text.tokens == list(range(7))


def test_a_text_of_one_token_ends_with_it_and_one_of_none_when_it_was_asked_for() -> None:
    assert written([seen(2.0)]).ended_at_s == 2.0
    nothing = Written(3, asked_at_s=7.0)
    assert (nothing.first_at_s, nothing.ended_at_s, nothing.seen) == (7.0, 7.0, [])


def test_json_has_a_column_a_figure_and_no_tokens() -> None:
    timing = ServerTiming(queue_us=1, forward_us=2, other_us=3, batch_size=4)
    text = written([seen(1.0, 1, 0.25), seen(2.0, 3, 0.125, timing)], usage=Usage(10, 4, 2))
    text.cached = 6
    report = text.as_json()
    assert report == json.loads(json.dumps(report))
    assert report["latency_ms"] == [250.0, 125.0]
    assert report["committed"] == [1, 3]
    assert [report[name][1] for name in ("queue_us", "forward_us", "other_us", "batch_size")] == [1, 2, 3, 4]
    assert (report["ttft_ms"], report["target_passes"], report["cached"]) == (250.0, 2, 6)
    assert (report["prompt_tokens"], report["tokens"]) == (10, 4)


def test_a_turn_counts_the_tokens_of_all_its_texts_or_those_it_was_told() -> None:
    texts = [written([seen(1.0, 3)]), written([seen(1.0), seen(2.0, 4)])]
    assert turn("batched", 2, 2.0, texts).tokens == 8
    assert turn("vllm", 2, 2.0, (), other_tokens=64).tokens == 64
    report = turn("batched", 2, 2.0, texts, number=1, identical=False).as_json()
    assert (report["arm"], report["clients"], report["turn"], report["tokens"]) == ("batched", 2, 1, 8)
    assert (report["identical"], len(report["texts"])) == (False, 2)
