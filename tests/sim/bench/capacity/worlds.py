"""Texts as edges saw them, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_protocol.messages import ServerTiming, Usage
from draftwire_sim.bench.capacity.records import Seen, Turn, Written


def seen(at_s: float, tokens: int = 1, latency_s: float = 0.5, timing: ServerTiming | None = None) -> Seen:
    return Seen(latency_s, at_s, tokens, timing or ServerTiming())


def written(
    verdicts: Sequence[Seen], *, asked_at_s: float = 0.0, prompt_tokens: int = 10, usage: Usage | None = None
) -> Written:
    """A text whose tokens are 0, 1, 2 and so on."""
    text = Written(prompt_tokens, asked_at_s)
    for one in verdicts:
        text.note(one, range(len(text.tokens), len(text.tokens) + one.tokens))
    text.usage = usage or Usage(prompt_tokens, len(text.tokens), len(verdicts))
    return text


def turn(
    arm: str,
    clients: int,
    seconds: float,
    texts: Sequence[Written],
    *,
    number: int = 0,
    identical: bool = True,
    other_tokens: int = 0,
    in_a_row: int = 1,
) -> Turn:
    return Turn(arm, clients, number, seconds, texts, identical, other_tokens, in_a_row)
