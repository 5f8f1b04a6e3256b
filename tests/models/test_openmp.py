"""How long OpenMP's threads look for work: what the user says counts, else what the process is for."""

import os
import subprocess
import sys

import pytest

from draftwire_models.openmp import OWN_TURNS, SHARED_TURNS, waiting

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def test_ours_replace_a_policy_but_not_a_number_of_turns() -> None:
    assert waiting({"A": "b", "OMP_WAIT_POLICY": "passive"}, 7) == {
        "A": "b", "GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": "active", "KMP_BLOCKTIME": "0",
    }  # fmt: skip
    theirs = {"GOMP_SPINCOUNT": "5", "OMP_WAIT_POLICY": "passive"}
    assert waiting(theirs, 7) == theirs
    assert waiting({"KMP_BLOCKTIME": "3"})["KMP_BLOCKTIME"] == "3"


@pytest.mark.parametrize(
    ("arguments", "turns"),
    [
        (["--host", "0.0.0.0"], OWN_TURNS),
        (["--host", "::1"], SHARED_TURNS),
        ([], SHARED_TURNS),
        (["--host", "0.0.0.0", "--tp", "2"], SHARED_TURNS),
        (["--host", "0.0.0.0", "--engine", "ray"], SHARED_TURNS),
    ],
)
def test_a_service_for_others_has_its_machine_to_itself_its_ranks_and_drafters_share_it(
    arguments: list[str], turns: int
) -> None:
    script = (
        "import atexit, os, sys\n"
        "atexit.register(lambda: print(os.environ['GOMP_SPINCOUNT']))\n"
        f"sys.argv = ['draftwire-cloud', 'serve', '--model', '/nowhere', *{arguments!r}]\n"
        "from draftwire_cloud.cli import main\n"
        "main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, f"{turns}\n"), done.stderr
