"""What the target writes alone: recorded at the begin of a run, compared with in every arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice

from draftwire_edge.channel import CloudChannel
from draftwire_edge.chat_template import encode_chat, encode_raw
from draftwire_edge.target_tokenizer import TargetTokenizer, fetch_tokenizer
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import ModelCard
from draftwire_sim.bench.capacity.client import ScriptedEdge, Task
from draftwire_sim.bench.recordings import load_recordings


@dataclass(frozen=True, slots=True)
class Known:
    """A prompt and the target's text."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


async def known_texts(
    channel: CloudChannel, card: ModelCard, *, count: int, tokens: int, show: Callable[[str], None]
) -> list[Known]:
    """Let the target write texts alone, one after the other.

    Texts that end before ``tokens`` tokens are only taken where there are no others, so that sessions
    stay busy equally long.

    Args:
        channel: to a service that nobody else uses.
        card: of its target.
        count: most texts.
        tokens: most tokens a text.
        show: told what is done.

    Raises:
        UserInputError: no prompt fits the target's context.
    """
    edge = ScriptedEdge(channel, card)
    full: list[Known] = []
    short: list[Known] = []
    for prompt_ids in await _prompts(channel, card, tokens):
        written = await edge.write(Task(prompt_ids, tokens))
        (full if len(written.tokens) == tokens else short).append(Known(prompt_ids, tuple(written.tokens)))
        if len(full) == count:
            break
    found = full or short
    show(f"{len(found)} texts recorded, the target alone")
    return found


async def _prompts(channel: CloudChannel, card: ModelCard, tokens: int) -> list[tuple[int, ...]]:
    """The recorded questions in this target's ids, as far as its context allows."""
    tokenizer = await fetch_tokenizer(channel, card)
    encoded = [_encode(tokenizer, one.prompt) for one in load_recordings()]
    fitting = [ids for ids in encoded if len(ids) + tokens <= card.context_length]
    if not fitting:
        shortest = min(map(len, encoded))
        problem = f"the context of {card.context_length} tokens does not hold {tokens} and a prompt"
        raise UserInputError("--tokens", problem, f"Give at most {max(card.context_length - shortest, 1)}")
    return fitting


def _encode(tokenizer: TargetTokenizer, prompt: str) -> tuple[int, ...]:
    """One user message, or plain text where the target has no chat template."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        return tuple(encode_chat(tokenizer, tokenizer.chat_template, messages))
    return tuple(encode_raw(tokenizer, prompt))


def long_prompt(texts: Sequence[Known], length: int) -> tuple[int, ...]:
    """A prompt of exactly ``length`` ids, made of the recorded ones over and over.

    The first of them is left out: nobody who writes a recorded text has the beginning that this one has.
    """
    ids: Iterator[int] = chain.from_iterable((*one.prompt_ids, *one.output_ids) for one in cycle(texts))
    return tuple(islice(ids, 1, length + 1))
