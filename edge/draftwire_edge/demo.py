"""``draftwire demo``: three texts, from the cloud alone and together, side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from draftwire_edge.client import EdgeClient
from draftwire_edge.config import EdgeSettings
from draftwire_edge.generate_command import show_token
from draftwire_edge.generation import DoneEvent, GenerationRequest, GenerationResult, NoticeEvent, TokenEvent
from draftwire_edge.report import as_json
from draftwire_edge.service_process import cloud_command, started
from draftwire_models.cache import ModelCache
from draftwire_models.pairs import Role, get_pair
from draftwire_models.progress import console_progress
from draftwire_models.pull import pull_pair
from draftwire_protocol.errors import CloudUnavailableError
from draftwire_protocol.messages import Scheme

PROMPTS = {
    "code": "Write a Python function that merges two sorted lists into one sorted list, with a docstring.",
    "prose": "Describe an early morning at a fishing harbour in one paragraph.",
    "question": "Why does ice float on water, and why does that matter for life in lakes?",
}
_screen = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, written twice by the same service in one run."""

    name: str
    model: str
    seed: int
    alone: GenerationResult
    together: GenerationResult

    @property
    def identical(self) -> bool:
        """Whether both runs gave the same tokens."""
        return self.alone.token_ids == self.together.token_ids

    @property
    def speed_up(self) -> float | None:
        """TPOT alone / TPOT together; None for texts of one token."""
        alone, together = self.alone.timings.tpot_ms, self.together.timings.tpot_ms
        return alone / together if alone and together else None


def run_demo(settings: EdgeSettings, *, start_cloud: bool, json_file: Path | None) -> bool:
    """Fetch what is missing, start the service if asked to, write, compare.

    Returns:
        Whether all texts were identical.
    """
    # The other schemes keep the distribution, not the very tokens, so there would be nothing to compare.
    settings = settings.model_copy(update={"scheme": Scheme.COUPLED})
    with running_service(settings.pair, settings.cloud, start=start_cloud) as address:
        comparisons = asyncio.run(_compare(settings.model_copy(update={"cloud": address})))
    _screen.print(_table(comparisons))
    identical = all(comparison.identical for comparison in comparisons)
    _screen.print(_conclusion(comparisons, identical=identical))
    if json_file is not None:
        json_file.write_text(json.dumps([_as_json(one) for one in comparisons], indent=1) + "\n")
    return identical


@contextmanager
def running_service(pair: str, address: str, *, start: bool) -> Iterator[str]:
    """The address of a running service: the given one, or a new process of our own.

    Args:
        pair: whose draft model, and with ``start`` also target, is fetched if missing.
        address: HOST:PORT of the given one.
        start: start a new process and end it on leaving.
    """
    roles: tuple[Role, ...] = ("draft", "target") if start else ("draft",)
    pull_pair(get_pair(pair, "--pair"), ModelCache.open(), roles, console_progress())
    if not start:
        yield address
        return
    with started(cloud_command(pair)) as own:
        yield own


async def _compare(settings: EdgeSettings) -> list[Comparison]:
    """Each prompt from the cloud alone, then together, one after the other in the same minute."""
    alone = EdgeClient(settings.model_copy(update={"mode": "cloud"}))
    async with alone, EdgeClient(settings) as together:
        for client in (alone, together):
            await _warm_up(client)
        comparisons = []
        for name, prompt in PROMPTS.items():
            # One request for both, hence one seed: only then must the tokens be the same.
            request = alone.request(prompt)
            results = []
            for title, client in (("alone", alone), ("together", together)):
                _screen.print(
                    Panel(prompt, title=f"{name} · {title}", title_align="left", border_style="dim")
                )
                results.append(await _write(client, request))
            comparisons.append(Comparison(name, alone.card.name, request.sampling.seed, *results))
    return comparisons


async def _warm_up(client: EdgeClient) -> None:
    """A few tokens, so that no figure contains a first call's set-up."""
    request = client.request("Hello")
    async for _ in client.generate_from(replace(request, max_tokens=12)):
        pass


async def _write(client: EdgeClient, request: GenerationRequest) -> GenerationResult:
    """Stream one text to the screen."""
    async for event in client.generate_from(request):
        match event:
            case TokenEvent():
                show_token(event)
            case NoticeEvent():
                _screen.print(f"\nnote: {event.message}", style="yellow")
            case DoneEvent():
                _screen.print("\n")
                return event.result
    raise CloudUnavailableError("the text ended without its figures")


_COLUMNS = (
    "text", "run", "tokens", "TTFT\nms", "TPOT\nms", "accep-\ntance", "mean acc.\nlength",
    "passes\n/token", "bytes\n/token", "speed-\nup", "same",
)  # fmt: skip


def _table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(
        *_COLUMNS, title="tokens in green were guessed on the laptop", title_style="green", padding=(0, 0)
    )
    for one in comparisons:
        table.add_row(one.name, "alone", *_figures(one.alone), "", "")
        verdict = "[green]yes[/]" if one.identical else "[red]NO[/]"
        table.add_row(
            "", "together", *_figures(one.together), _ratio(one.speed_up), verdict, end_section=True
        )
    return table


def _figures(result: GenerationResult) -> tuple[str, ...]:
    timings, count = result.timings, len(result.token_ids)
    return (
        str(count),
        f"{timings.ttft_ms:.0f}",
        "" if timings.tpot_ms is None else f"{timings.tpot_ms:.1f}",
        "" if timings.acceptance_rate is None else f"{timings.acceptance_rate:.2f}",
        "" if timings.mean_acceptance_length is None else f"{timings.mean_acceptance_length:.2f}",
        f"{timings.target_passes / count:.2f}",
        f"{(timings.bytes_up + timings.bytes_down) / count:.1f}",
    )


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _conclusion(comparisons: Sequence[Comparison], *, identical: bool) -> str:
    """The two claims, measured in this run."""
    speed_ups = [one.speed_up for one in comparisons if one.speed_up]
    same = "the same tokens" if identical else "DIFFERENT tokens"
    if not speed_ups:
        return f"texts too short to time; {same} in every text"
    overall = overall_speed_up(comparisons)
    return (
        f"TPOT against the same service streaming alone: {overall:.2f}x better over all tokens, "
        f"{median(speed_ups):.2f}x in the median text; {same} in every text"
    )


def overall_speed_up(comparisons: Sequence[Comparison]) -> float:
    """Time alone / time together over all tokens after the first of each text: a ratio of sums."""
    alone = sum(_decode_ms(one.alone) for one in comparisons)
    return alone / sum(_decode_ms(one.together) for one in comparisons)


def _decode_ms(result: GenerationResult) -> float:
    """Time after the first token."""
    return (result.timings.tpot_ms or 0.0) * (len(result.token_ids) - 1)


def _as_json(one: Comparison) -> dict[str, object]:
    return {
        "name": one.name,
        "identical": one.identical,
        "speed_up": one.speed_up,
        "alone": as_json(one.alone, model=one.model, seed=one.seed),
        "together": as_json(one.together, model=one.model, seed=one.seed),
    }
