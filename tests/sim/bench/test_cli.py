"""``draftwire bench``: found by the laptop's command, and clear about what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftwire_sim.bench.cli import app


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rtt-ms", "soon"], "--rtt-ms"),
        (["--rtt-ms", "30,-1"], "--rtt-ms"),
        (["--arms", "sideways"], "Choose among cloud, draft, colocated, lockstep-1"),
        (["--profile", "4g", "--rtt-ms", "30"], "Give either --profile or --rtt-ms"),
        (["--profile", "4g", "--change", "1:300,3:10"], "--change"),
        (["--profile", "5g,6g"], "Choose one of lan, wifi"),
        (["--jitter-ms", "-1"], "--jitter-ms"),
        (["--rate-kbit", "0"], "--rate-kbit"),
        (["--loss", "0.6"], "--loss"),
        (["--change", "soon"], "--change"),
        (["--change", "1:-3"], "--change"),
        (["--rtt-ms", "10", "--change", "1:300"], "--change"),
        (["--rtt-ms", "10", "--change", "1:300,3:10", "--arms", "auto"], "Add cloud to the list"),
        (["--rtt-ms", "10,30", "--change", "1:300,3:10"], "--change"),
        (["--prompts", "0"], "--prompts"),
        (["--target", "imaginary"], "--target"),
    ],
)
def test_senseless_options_are_refused_by_name(options: list[str], says: str) -> None:
    finished = CliRunner().invoke(app, ["latency", *options])
    assert finished.exit_code == 2
    assert says in " ".join(finished.output.split())


@pytest.mark.parametrize(
    ("missing", "says"),
    [("torch", "the cloud's half is not installed"), ("matplotlib", "--plot needs matplotlib")],
)
def test_half_an_installation_is_told_before_anything_starts(
    missing: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    finished = CliRunner().invoke(app, ["latency", "--plot", "never.png"])
    assert finished.exit_code == 1
    shown = " ".join(finished.output.split())
    assert says in shown
    assert "pip install" in shown
    assert "Traceback" not in shown


def test_the_laptops_command_has_it() -> None:
    command = Path(sys.executable).with_name("draftwire")
    shown = subprocess.run([command, "bench", "--help"], capture_output=True, text=True, check=True)
    assert "latency" in shown.stdout
