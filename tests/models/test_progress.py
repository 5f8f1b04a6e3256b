"""What a person sees of a download."""

import io

from rich.console import Console

from draftwire_models.progress import LineProgress, Progress, RichProgress, console_progress


def test_lines_tell_the_share() -> None:
    out = io.StringIO()
    progress = LineProgress(Console(file=out, width=200), every_s=0.0)
    progress.start("model.gguf", 4_000_000)
    progress.advance(1_000_000)
    progress.advance(2_000_000)
    progress.finish()
    assert out.getvalue().splitlines() == [
        "model.gguf (4.0 MB)",
        "model.gguf: 1.0 MB (25%)",
        "model.gguf: 3.0 MB (75%)",
    ]


def test_lines_are_rare() -> None:
    out = io.StringIO()
    progress = LineProgress(Console(file=out), every_s=3600)
    progress.start("model.gguf", None)
    for _ in range(1000):
        progress.advance(1)
    assert out.getvalue().splitlines() == ["model.gguf"]


def test_brackets_in_a_line_are_no_markup() -> None:
    out = io.StringIO()
    LineProgress(Console(file=out)).note("[Errno -2] [bold]no[/bold]")
    assert out.getvalue() == "[Errno -2] [bold]no[/bold]\n"


def test_a_bar_shows_bytes_and_survives_any_order() -> None:
    out = io.StringIO()
    progress: Progress = RichProgress(Console(file=out, force_terminal=True, width=120))
    progress.advance(5)
    progress.finish()
    progress.start("first.gguf", 2_000_000)
    progress.start("second.gguf", 2_000_000)
    progress.advance(2_000_000)
    progress.note("a line")
    progress.finish()
    progress.finish()
    shown = out.getvalue()
    assert "second.gguf" in shown
    assert "2.0/2.0 MB" in shown
    assert "a line" in shown


def test_the_terminal_decides() -> None:
    assert isinstance(console_progress(Console(file=io.StringIO(), force_terminal=True)), RichProgress)
    assert isinstance(console_progress(Console(file=io.StringIO())), LineProgress)
