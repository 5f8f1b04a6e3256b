"""``draftwire generate``: streams one text to the terminal, or prints one JSON object."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import typer
from rich.console import Console

from draftwire_edge.client import EdgeClient
from draftwire_edge.config import EdgeSettings
from draftwire_edge.generation import DoneEvent, ExplainEvent, NoticeEvent, TokenEvent
from draftwire_edge.report import as_json, one_line


@dataclass(frozen=True, slots=True)
class GenerateJob:
    """What to write and how to show it."""

    settings: EdgeSettings
    prompt: str
    system: str | None
    raw: bool
    as_json: bool
    explain: bool = False


async def run_generate(job: GenerateJob) -> None:
    """Connect, write, show."""
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    async with EdgeClient(job.settings, explain=job.explain) as client:
        messages = [{"role": "user", "content": job.prompt}]
        if job.system is not None:
            messages.insert(0, {"role": "system", "content": job.system})
        request = client.request(job.prompt if job.raw else messages, raw=job.raw)
        async for event in client.generate_from(request):
            match event:
                case TokenEvent() if not job.as_json:
                    show_token(event)
                case ExplainEvent() if job.as_json:
                    counts = {"num_drafted": event.num_drafted, "num_accepted": event.num_accepted}
                    row = {"committed": event.committed, **counts, **event.explanation.as_json()}
                    sys.stderr.write(json.dumps(row) + "\n")
                case ExplainEvent():
                    seen = f"{event.num_accepted} of {event.num_drafted} accepted, {event.committed} written"
                    notes.print(f"\n{seen} · {event.explanation.as_line()}", style="dim")
                case NoticeEvent():
                    notes.print(f"\nnote: {event.message}", style="yellow")
                case DoneEvent() if job.as_json:
                    report = as_json(event.result, model=client.card.name, seed=request.sampling.seed)
                    sys.stdout.write(json.dumps(report) + "\n")
                case DoneEvent():
                    sys.stdout.write("\n")
                    notes.print(one_line(event.result), style="dim")


def show_token(event: TokenEvent) -> None:
    """Write a token's text: as it is into a file or pipe, accepted ones in green on a terminal."""
    if not event.text:
        return
    green = event.source == "draft" and sys.stdout.isatty()
    sys.stdout.write(typer.style(event.text, fg=typer.colors.GREEN) if green else event.text)
    sys.stdout.flush()
