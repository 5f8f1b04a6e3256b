"""The picture: what can be drawn, and that each arm is in it."""

from pathlib import Path

import pytest

from draftwire_protocol.errors import UserInputError
from draftwire_sim.bench.capacity.figures import summarise
from draftwire_sim.bench.capacity.plot import check_format, draw
from sim.bench.capacity.worlds import seen, turn, written


@pytest.mark.parametrize("name", ["a.png", "a.SVG", "b.pdf"])
def test_pictures_are_known_by_their_ending(name: str) -> None:
    check_format(Path(name))


@pytest.mark.parametrize("name", ["a.tune", "a"])
def test_other_endings_are_refused(name: str) -> None:
    with pytest.raises(UserInputError, match=f"--plot: {name} is no picture"):
        check_format(Path(name))


def test_every_arm_has_a_curve_where_it_has_figures(tmp_path: Path) -> None:
    texts = [written([seen(1.0), seen(2.0, 5)])]
    turns = [turn("batched", n, 1.0, texts) for n in (1, 4)]
    turns += [turn("vllm", n, 1.0, (), other_tokens=9) for n in (1, 4)]
    file = tmp_path / "capacity.svg"
    draw(summarise(turns, None), file)
    drawn = file.read_text()
    # Letters are shapes there, with the text beside them as a comment.
    assert drawn.count("<!-- batched -->") == 2
    assert drawn.count("<!-- vllm -->") == 1
