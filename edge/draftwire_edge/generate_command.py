"""``draftwire generate``: streams one text to the terminal, or prints one JSON object."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from draftwire_edge.client import EdgeClient
from draftwire_edge.config import EdgeSettings
from draftwire_edge.generation import DoneEvent, NoticeEvent, TokenEvent
from draftwire_edge.report import as_json, one_line

#: How accepted, target and fill tokens look.
STYLES = {"draft": "green", "target": "", "fill": ""}


@dataclass(frozen=True, slots=True)
class GenerateJob:
    """What to write and how to show it."""

    settings: EdgeSettings
    prompt: str
    system: str | None
    raw: bool
    as_json: bool


async def run_generate(job: GenerateJob) -> None:
    """Connect, write, show."""
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    screen = Console(highlight=False, markup=False, soft_wrap=True)
    async with EdgeClient(job.settings) as client:
        messages = [{"role": "user", "content": job.prompt}]
        if job.system is not None:
            messages.insert(0, {"role": "system", "content": job.system})
        request = client.request(job.prompt if job.raw else messages, raw=job.raw)
        async for event in client.generate_from(request):
            match event:
                case TokenEvent() if not job.as_json:
                    show_token(screen, event)
                case NoticeEvent():
                    notes.print(f"\nnote: {event.message}", style="yellow")
                case DoneEvent() if job.as_json:
                    report = as_json(event.result, model=client.card.name, seed=request.sampling.seed)
                    sys.stdout.write(json.dumps(report) + "\n")
                case DoneEvent():
                    screen.print()
                    notes.print(one_line(event.result), style="dim")


def show_token(screen: Console, event: TokenEvent) -> None:
    """Print a token's text, accepted ones marked where the terminal has colours."""
    if event.text:
        screen.print(Text(event.text, STYLES[event.source]), end="")
