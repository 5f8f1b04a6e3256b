"""Commands that load no model start without the libraries that do."""

import subprocess
import sys

import pytest

_HEAVY = ("llama_cpp", "torch", "transformers", "jinja2", "grpc")
_SCRIPT = """
import sys
from draftwire_edge.cli import app
sys.argv[0] = "draftwire"
try:
    app()
finally:
    print(*sorted(set(sys.modules) & set({heavy!r})), file=sys.stderr)
"""


@pytest.mark.parametrize("command", [["--help"], ["models", "list"], ["generate", "--help"], ["config"]])
def test_quick_commands_import_nothing_heavy(command: list[str]) -> None:
    script = _SCRIPT.format(heavy=_HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
