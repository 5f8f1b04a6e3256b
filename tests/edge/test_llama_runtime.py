"""The import of llama.cpp: quiet, late, and helpful when it is not there."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from draftwire_edge import llama_runtime
from draftwire_edge.llama_runtime import LogKeeper, default_threads, llama_cpp
from draftwire_protocol.errors import DrafterError


@pytest.fixture
def forgotten() -> Iterator[None]:
    llama_cpp.cache_clear()
    yield
    llama_cpp.cache_clear()


def _import_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(_name: str) -> ModuleType:
        raise error

    monkeypatch.setattr(importlib, "import_module", refuse)


@pytest.mark.usefixtures("forgotten")
def test_missing_package_gives_the_install_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    _import_fails(monkeypatch, ImportError("no"))
    with pytest.raises(DrafterError, match=r"(?s)is not installed.*GGML_METAL=on.*GGML_CUDA=on"):
        llama_cpp()


@pytest.mark.usefixtures("forgotten")
def test_broken_library_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    _import_fails(monkeypatch, RuntimeError("Failed to load shared library"))
    with pytest.raises(DrafterError, match=r"does not load \(Failed to load shared library\)"):
        llama_cpp()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "1000 active 0"),
        ({"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "5"}, "1000 active 5"),
        ({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "7"}, "7 passive None"),
    ],
)
def test_edge_modules_do_not_import_it_and_threads_sleep_soon(given: dict[str, str], found: str) -> None:
    script = (
        "import sys, os\n"
        "import draftwire_edge.drafters.llama, draftwire_edge.tokenizer\n"
        "assert 'llama_cpp' not in sys.modules\n"
        "from draftwire_edge.llama_runtime import llama_cpp\n"
        "llama_cpp()\n"
        "print(*(os.environ.get(name) for name in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY', 'KMP_BLOCKTIME')))\n"
    )
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {key: value for key, value in os.environ.items() if key not in ours} | given
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{found}\n", "")


def test_the_first_error_line_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogKeeper()
    monkeypatch.setattr(llama_runtime, "LOG", log)
    assert llama_runtime.with_reason("failed") == "failed"
    log(2, b"harmless\n")
    log(4, b"tensor x is missing\n")
    log(5, b" (continued)\n")
    log(4, b"failed to load model\n")
    assert llama_runtime.with_reason("failed") == "failed: tensor x is missing"
    log.clear()
    log(5, None)
    assert log.last_error() == ""


def test_threads_fit_the_machine() -> None:
    assert 1 <= default_threads() <= 8
