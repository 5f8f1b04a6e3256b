"""What llama.cpp must not see is refused before it does; what only it notices is quoted."""

from pathlib import Path

import pytest

from draftwire_edge.llama_model import LlamaModel
from draftwire_models.errors import CorruptModelError, UnreadableModelError
from draftwire_protocol.errors import DrafterError
from tiny import make_tiny_pair


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), noise=(0.0,)).drafters["perfect"]


def test_what_would_end_the_process_is_refused_first(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "twins.gguf"
    path.write_bytes(good.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises(CorruptModelError, match=r"twins\.gguf .*same text twice"):
        LlamaModel(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableModelError, match="Is a directory"):
        LlamaModel(tmp_path)


def test_what_only_llama_cpp_notices_is_quoted(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    path.write_bytes(good.read_bytes().replace(b"general.architecture", b"general.architectura", 1))
    with pytest.raises(DrafterError, match=r"cannot load .*strange\.gguf: .*architecture"):
        LlamaModel(path)
