"""Figures of one generation."""

from draftwire_edge.branch import Judged
from draftwire_edge.drafter import Guess
from draftwire_edge.generation import SourceFigures
from draftwire_edge.recorder import Recorder


def test_guesses_are_counted_by_where_they_came_from() -> None:
    recorder = Recorder(0.0)
    copied, guessed = Guess(1, 1.0, source="lookup"), Guess(2, 0.7)
    assert recorder.timings().by_source == {}
    recorder.judged([Judged(copied, accepted=True), Judged(guessed, accepted=False)])
    recorder.judged([])
    recorder.judged([Judged(guessed, accepted=True), Judged(guessed, accepted=True)])
    assert recorder.timings().by_source == {"lookup": SourceFigures(1, 1), "model": SourceFigures(3, 2)}
