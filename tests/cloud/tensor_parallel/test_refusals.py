"""What cannot be split is refused by the command, with the reason and before anything is loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftwire_cloud.cli import app
from tiny.architectures import Arch, make_random_target


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Arch], Path]:
    root = tmp_path_factory.mktemp("refused")
    return lambda arch: make_random_target(root / arch, arch)


@pytest.mark.parametrize(
    ("arch", "n_ranks", "code", "reason"),
    [
        ("gpt2", 2, 1, "Error: gpt2 cannot be split over 2 ranks: transformers has no tensor-parallel plan"),
        ("llama", 3, 2, "Error: --tp: 4 attention heads and 2 key/value heads cannot be divided by 3"),
    ],
)
def test_the_command_says_why_a_model_cannot_be_split(
    folder_of: Callable[[Arch], Path], arch: Arch, n_ranks: int, code: int, reason: str
) -> None:
    words = ["serve", "--model", str(folder_of(arch)), "--port", "0", "--tp", str(n_ranks)]
    finished = CliRunner().invoke(app, words)
    assert finished.exit_code == code
    assert reason in finished.stderr
    assert "loading" not in finished.stderr


def test_no_ranks_at_all_are_refused() -> None:
    finished = CliRunner().invoke(app, ["serve", "--tp", "0"])
    assert finished.exit_code == 2
    assert "--tp" in finished.stderr
