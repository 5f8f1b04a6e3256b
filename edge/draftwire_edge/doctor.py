"""``draftwire doctor``: looks at each part in turn and says what is wrong and what to do."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from draftwire_edge.channel import CloudChannel
from draftwire_edge.client import draft_model_path
from draftwire_edge.config import EdgeSettings
from draftwire_edge.drafters.cross_vocab import SharedIds
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.exactness import ExactnessProbe
from draftwire_edge.handshake import check_vocabulary, fetch_card, find_difference
from draftwire_edge.proposer import Proposer
from draftwire_edge.target_tokenizer import fetch_tokenizer
from draftwire_models.errors import ModelError
from draftwire_protocol.errors import DraftwireError
from draftwire_protocol.fingerprint import template_hash
from draftwire_protocol.messages import ModelCard
from draftwire_protocol.params import SamplingParams

_PINGS = 10
_DRAFTED = 16
#: A text that goes on for long.
_LONG_ANSWER = "The numbers from one to a thousand, each with its name and a word about it:\n1"
#: Slower drafting than this rarely beats a cloud that streams.
_SLOW_DRAFT_MS = 100.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part."""

    part: str
    ok: bool
    detail: str


async def examine(settings: EdgeSettings, exactness_tokens: int = 0) -> list[Finding]:
    """Check everything that can go wrong before the first token.

    Args:
        settings: from ``load_settings``.
        exactness_tokens: also compare this many positions, decoded alone and in blocks.
    """
    patient = _Patient(settings)
    findings = [
        await _check("draft model", patient.find_model),
        await _check("drafter", patient.time_drafter),
        await _check("cloud", patient.reach_cloud),
        await _check("link", patient.time_link),
        await _check("vocabulary", patient.compare_vocabulary),
        await _check("chat template", patient.compare_template),
        await _check("exactness", patient.ask_exactness),
    ]
    if exactness_tokens:
        findings.append(
            await _check("exactness, measured", lambda: patient.measure_exactness(exactness_tokens))
        )
    patient.close()
    return findings


async def _check(part: str, look: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(part, ok=True, detail=await look())
    except (DraftwireError, ModelError) as error:
        return Finding(part, ok=False, detail=str(error))


class _Patient:
    """The parts under examination; a later check uses what an earlier one opened."""

    def __init__(self, settings: EdgeSettings) -> None:
        self._settings = settings
        self._drafter: LlamaCppDrafter | None = None
        self._card: ModelCard | None = None

    async def find_model(self) -> str:
        return str(draft_model_path(self._settings))

    async def time_drafter(self) -> str:
        self._drafter = LlamaCppDrafter(
            draft_model_path(self._settings), context_length=512, threads=self._settings.threads
        )
        context = self._drafter.tokenizer.encode("The quick brown fox", add_special=True, parse_special=False)
        proposer = Proposer(SamplingParams())
        self._drafter.draft(context, proposer, 2, lambda _: True)
        started = time.perf_counter()
        guesses = self._drafter.draft(context, proposer, _DRAFTED, lambda _: True)
        each_ms = 1e3 * (time.perf_counter() - started) / max(1, len(guesses))
        if each_ms > _SLOW_DRAFT_MS:
            raise DraftwireError(
                f"{each_ms:.0f} ms a drafted token is slow: close busy programs, try another --threads, "
                "or build llama-cpp-python for your GPU (see README)"
            )
        return f"{each_ms:.1f} ms a drafted token"

    async def reach_cloud(self) -> str:
        async with CloudChannel(self._settings.cloud) as channel:
            card = self._card = await fetch_card(channel)
        return f"{card.name} ({card.architecture}, {card.dtype}, context {card.context_length})"

    async def time_link(self) -> str:
        self._known_card()
        times = []
        async with CloudChannel(self._settings.cloud) as channel:
            await channel.get_model()
            for _ in range(_PINGS):
                started = time.perf_counter()
                await channel.get_model()
                times.append(1e3 * (time.perf_counter() - started))
        return f"round trip {median(times):.1f} ms (median of {_PINGS}, worst {max(times):.1f})"

    async def compare_vocabulary(self) -> str:
        card, drafter = self._known_card(), self._known_drafter()
        pieces = drafter.tokenizer.pieces
        async with CloudChannel(self._settings.cloud) as channel:
            difference = await find_difference(channel, card, pieces)
            if difference is not None and self._settings.cross_vocab:
                target = await fetch_tokenizer(channel, card)
                shared = len(SharedIds(drafter.tokenizer, target).own_of)
                return f"{difference}; {shared} of {card.n_tokens} tokens are shared, drafts are translated"
            await check_vocabulary(channel, card, pieces)
        return f"{card.n_tokens} tokens, the same on both ends"

    async def compare_template(self) -> str:
        ours = template_hash(self._known_drafter().tokenizer.chat_template)
        same = ours == self._known_card().template_hash
        return "the same on both ends" if same else "differs; the cloud's is used"

    async def ask_exactness(self) -> str:
        if not self._known_card().exact_shapes:
            raise DraftwireError(
                "the cloud's self-test found that block and one-at-a-time verification differ on its "
                "hardware: texts may differ from cloud-alone ones at near ties; serve with fixed shapes or "
                "--dtype float32"
            )
        return "block and one-at-a-time verification gave the same bits at start"

    async def measure_exactness(self, count: int) -> str:
        card, tokenizer = self._known_card(), self._known_drafter().tokenizer
        prompt_ids = tokenizer.encode(_LONG_ANSWER, add_special=True, parse_special=False)
        async with CloudChannel(self._settings.cloud) as channel:
            found = await ExactnessProbe(channel, card, tokenizer.pieces, prompt_ids, count).measure()
        report = "\n".join(str(one) for one in found)
        if any(one.differences for one in found):
            raise DraftwireError(f"{report}\nServe with fixed shapes, or with --dtype float32")
        return report

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()

    def _known_card(self) -> ModelCard:
        if self._card is None:
            raise DraftwireError("not checked: the cloud was not reached")
        return self._card

    def _known_drafter(self) -> LlamaCppDrafter:
        if self._drafter is None:
            raise DraftwireError("not checked: there is no draft model")
        return self._drafter


def print_findings(findings: list[Finding], *, as_json: bool) -> None:
    """A table for people or a list for scripts."""
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")
        return
    table = Table("part", "", "what was found")
    for finding in findings:
        table.add_row(finding.part, "[green]ok[/]" if finding.ok else "[red]wrong[/]", finding.detail)
    Console().print(table)
