"""Copies come first, the draft model goes on behind them, and the stop rule sees one block."""

from collections.abc import Sequence

from draftwire_edge.drafter import Guess, WantMore
from draftwire_edge.drafters.lookup_first import LONG_MATCH, LookupFirstDrafter
from draftwire_edge.proposer import Proposer
from draftwire_protocol.params import SamplingParams

GREEDY = Proposer(SamplingParams())


class Model:
    """Says 90, 91, ... and remembers what it was given."""

    name = "model"
    context_length = 1000
    model_seconds = 0.0

    def __init__(self) -> None:
        self.contexts: list[list[int]] = []
        self.closed = False

    def prefill(self, context: Sequence[int]) -> None:
        self.contexts.append(list(context))

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        self.contexts.append(list(context))
        block: list[Guess] = []
        while len(block) < limit:
            block.append(Guess(90 + len(block), 0.9))
            if not want_more(block):
                break
        return block

    def close(self) -> None:
        self.closed = True


LONG = list(range(20, 20 + LONG_MATCH))


def tokens(block: list[Guess]) -> list[tuple[int, str]]:
    return [(guess.token, guess.source) for guess in block]


def test_a_long_repetition_is_copied_and_the_model_goes_on_behind_it() -> None:
    model = Model()
    context = [*LONG, 7, 8, *LONG]
    block = LookupFirstDrafter(model).draft(context, GREEDY, 12, lambda guesses: len(guesses) < 10)
    copied = [
        (7, "lookup"),
        (8, "lookup"),
        *((token, "lookup") for token in LONG),
        (7, "lookup"),
        (8, "lookup"),
    ]
    assert tokens(block) == copied
    short = LookupFirstDrafter(model).draft(context, GREEDY, 12, lambda guesses: guesses[-1].token != 8)
    assert tokens(short) == copied[:2]


def test_a_short_repetition_is_left_to_the_model() -> None:
    model = Model()
    context = [*LONG[1:], 7, 8, *LONG[1:]]
    block = LookupFirstDrafter(model).draft(context, GREEDY, 2, lambda _: True)
    assert tokens(block) == [(90, "model"), (91, "model")]
    assert model.contexts == [context]


def test_the_stop_rule_is_asked_about_the_whole_block() -> None:
    seen: list[int] = []

    def want_more(guesses: Sequence[Guess]) -> bool:
        seen.append(len(guesses))
        return True

    class Once(Model):
        context_length = 2 * LONG_MATCH + 4  # the copy ends here

    drafter = LookupFirstDrafter(Once())
    block = drafter.draft([*LONG, 7, 8, *LONG], GREEDY, 4, want_more)
    assert [guess.source for guess in block][:2] == ["lookup", "lookup"]
    assert seen == sorted(set(seen))


def test_it_owns_the_model() -> None:
    model = Model()
    LookupFirstDrafter(model).close()
    assert model.closed
