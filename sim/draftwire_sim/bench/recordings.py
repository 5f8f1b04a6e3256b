"""What the real target wrote, kept so that benchmarks can replay it at any speed.

    python -m draftwire_sim.bench.recordings            # what is recorded
    python -m draftwire_sim.bench.recordings --record   # write it anew

Each text is decoded greedily by the target alone, over the same service and chat template as any other text.
A text that ends early keeps its end-of-generation id.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import typer

from draftwire_edge.client import EdgeClient
from draftwire_edge.config import load_settings
from draftwire_edge.demo import running_service
from draftwire_edge.generation import DoneEvent
from draftwire_models.pairs import get_pair
from draftwire_protocol.messages import ModelCard

PAIR = "qwen2.5-coder"
RECORDINGS = Path(__file__).parent / "data" / f"{PAIR}.json"
#: Most tokens of a text.
TOKENS = 128
_BYTES = ("piece_hashes", "template_hash", "model_id")
_TUPLES = ("eos_ids", "special_ids")
_CARD = (
    "name", "architecture", "n_vocab", "n_tokens", "bos_id", "context_length", "dtype", "exact_shapes",
    "chat_template", *_BYTES, *_TUPLES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recording:
    """One prompt and what the target wrote."""

    #: In Spec-Bench.
    question_id: int
    category: str
    prompt: str
    #: The chat template applied.
    prompt_ids: tuple[int, ...]
    #: Greedily decoded, ``[<= TOKENS]``; shorter only when the last one ends the text.
    output_ids: tuple[int, ...]

    @classmethod
    def from_json(cls, text: dict[str, Any]) -> Self:
        """As the file holds it."""
        return cls(
            text["question_id"], text["category"], text["prompt"],
            tuple(text["prompt_ids"]), tuple(text["output_ids"]),
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return {
            "question_id": self.question_id,
            "category": self.category,
            "prompt": self.prompt,
            "prompt_ids": self.prompt_ids,
            "output_ids": self.output_ids,
        }


def load_recordings(path: Path = RECORDINGS) -> list[Recording]:
    """Every recorded text."""
    return [Recording.from_json(text) for text in _read(path)["texts"]]


def load_card(path: Path = RECORDINGS) -> ModelCard:
    """The card of the target that wrote them, without the bytes of its tokens."""
    card = _read(path)["card"]
    card |= {name: bytes.fromhex(card[name]) for name in _BYTES}
    card |= {name: tuple(card[name]) for name in _TUPLES}
    return ModelCard(**card)


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


async def record(client: EdgeClient, text: Recording) -> Recording:
    """The same prompt, encoded and decoded anew."""
    request = client.request(text.prompt, seed=0)
    async for event in client.generate_from(request):
        if isinstance(event, DoneEvent):
            return replace(text, prompt_ids=request.prompt_ids, output_ids=tuple(event.result.token_ids))
    raise RuntimeError("the text has no end")


async def record_all(address: str, texts: Sequence[Recording]) -> tuple[ModelCard, list[Recording]]:
    """Let the target at HOST:PORT write every text, one after the other."""
    settings = load_settings(
        cloud=address, pair=PAIR, mode="cloud", temperature=0.0, max_tokens=TOKENS, wait_s=60.0
    )
    recorded = []
    async with EdgeClient(settings) as client:
        for text in texts:
            recorded.append(await record(client, text))
            typer.echo(_line(recorded[-1]))
        return client.card, recorded


def write_recordings(card: ModelCard, texts: Sequence[Recording], path: Path = RECORDINGS) -> None:
    """Write the file: a line a text, so that changes can be read."""
    parts = {"about": _about(), "card": _card_as_json(card)}
    head = [f"{json.dumps(name)}: {_compact(part)}" for name, part in parts.items()]
    lines = ",\n".join(_compact(text.as_json()) for text in texts)
    path.write_text("{\n" + ",\n".join(head) + ',\n"texts": [\n' + lines + "\n]}\n", encoding="utf-8")


def _about() -> dict[str, Any]:
    """Where the prompts come from and how the ids were made."""
    target = get_pair(PAIR).target
    return {
        "prompts": {"source": "Spec-Bench, first turns", "licence": "Apache-2.0"},
        "pair": PAIR,
        "target": {"file": target.name, "sha256": getattr(target, "sha256", None)},
        "made_by": "python -m draftwire_sim.bench.recordings --record",
        "how": f"the target alone, greedily, at most {TOKENS} tokens, the target's chat template, dtype auto",
    }


def _card_as_json(card: ModelCard) -> dict[str, Any]:
    values = {name: getattr(card, name) for name in _CARD}
    return values | {name: values[name].hex() for name in _BYTES}


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _line(text: Recording) -> str:
    return (
        f"{text.question_id:3d} {text.category:15s} "
        f"prompt {len(text.prompt_ids):4d} output {len(text.output_ids):3d}"
    )


def main() -> None:
    """List the recordings, or make them anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write the file anew with the real target")
    texts = load_recordings()
    if not parser.parse_args().record:
        typer.echo("\n".join(map(_line, texts)))
        return
    with running_service(PAIR, "", start=True) as address:
        write_recordings(*asyncio.run(record_all(address, texts)))


if __name__ == "__main__":
    main()
