"""The Python API: one object that connects, loads the drafter, checks the pair and writes texts.

async with EdgeClient(load_settings(cloud="127.0.0.1:50051")) as client:
    async for event in client.generate("Write a haiku about rivers"):
        ...
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from draftwire_edge.channel import CloudChannel
from draftwire_edge.chat_template import Message, encode_chat, encode_raw
from draftwire_edge.completion import completed
from draftwire_edge.config import EdgeSettings
from draftwire_edge.controller import Controller
from draftwire_edge.drafter import Drafter
from draftwire_edge.drafters.cross_vocab import CrossVocabDrafter
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.drafters.lookup_first import LookupFirstDrafter
from draftwire_edge.drafters.ngram import NgramDrafter
from draftwire_edge.generation import Event, GenerationRequest
from draftwire_edge.handshake import check_vocabulary, fetch_card, find_difference
from draftwire_edge.memory import ControllerMemory
from draftwire_edge.session import EdgeSession
from draftwire_edge.target_tokenizer import fetch_tokenizer
from draftwire_edge.tokenizer import GgufTokenizer, Tokenizer
from draftwire_models.resolve import resolve_draft


class EdgeClient:
    """Writes texts together with one cloud; an async context manager.

    Args:
        settings: from ``load_settings``.
        explain: yield an ExplainEvent after each verdict.

    Raises:
        UserInputError, ModelMismatchError, DrafterError, ModelError: on entering.
    """

    def __init__(self, settings: EdgeSettings, *, explain: bool = False) -> None:
        self.settings = settings
        self._explain = explain
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            # 1. Find the draft model and reach the cloud before spending seconds on loading.
            path = draft_model_path(self.settings)
            channel = await stack.enter_async_context(CloudChannel(self.settings.cloud))
            self.card = await fetch_card(channel, self.settings.wait_s)
            # 2. Load the draft model, or just its vocabulary.
            drafter, tokenizer = await asyncio.to_thread(self._load, path)
            stack.callback(tokenizer.close)
            self.tokenizer: Tokenizer = tokenizer
            # 3. Refuse a pair that does not belong together, or translate; then one session for all texts.
            self._session = await self._begin_session(channel, drafter)
            stack.push_async_callback(self._session.aclose)
            # 4. Take up what was learnt of the pair, and keep it at the end.
            if drafter is not None and self.settings.remember:
                memory = ControllerMemory(self.card.model_id, drafter.name)
                memory.recall(self.controller)
                stack.callback(memory.keep, self.controller)
            self._stack = stack.pop_all()
        return self

    async def _begin_session(self, channel: CloudChannel, drafter: Drafter | None) -> EdgeSession:
        """A session that owns the drafter; where there is no session, nobody else would close it."""
        with ExitStack() as unowned:
            if drafter is not None:
                unowned.callback(drafter.close)
            drafter = self._copying(await self._fitting(channel, drafter))
            self.controller = Controller(self.settings.policy)
            session = EdgeSession(
                channel,
                self.card,
                self.tokenizer.pieces,
                drafter,
                self.controller,
                sharpness=self.settings.draft_sharpness,
                explain=self._explain,
            )
            unowned.pop_all()
        return session

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _fitting(self, channel: CloudChannel, drafter: Drafter | None) -> Drafter | None:
        """The drafter, if its vocabulary is the target's; with cross_vocab one that translates, if not."""
        pieces = self.tokenizer.pieces
        if not (self.settings.cross_vocab and await find_difference(channel, self.card, pieces) is not None):
            await check_vocabulary(channel, self.card, pieces)
            return drafter
        self.tokenizer = target = await fetch_tokenizer(channel, self.card)
        if not isinstance(drafter, LlamaCppDrafter):
            return drafter
        # It reads the draft model's vocabulary, which is freed when this is cancelled.
        loop = asyncio.get_running_loop()
        return await completed(loop.run_in_executor(None, CrossVocabDrafter, drafter, target))

    def _copying(self, drafter: Drafter | None) -> Drafter | None:
        """The drafter, with long repetitions copied first unless only one kind was asked for."""
        if drafter is None or self.settings.drafter != "auto":
            return drafter
        return LookupFirstDrafter(drafter)

    def _load(self, path: Path) -> tuple[Drafter | None, GgufTokenizer]:
        settings = self.settings
        if settings.mode == "cloud":
            return None, GgufTokenizer.from_file(path)
        if settings.drafter == "ngram":
            return NgramDrafter(), GgufTokenizer.from_file(path)
        drafter = LlamaCppDrafter(path, context_length=settings.context_length, threads=settings.threads)
        return drafter, drafter.tokenizer

    def encode(self, prompt: str | Sequence[Message], *, raw: bool = False) -> list[int]:
        """Prompt ids: the target's chat template applied once, exactly one BOS where the model wants one.

        Args:
            prompt: a text, or chat messages.
            raw: take the text as it is, without a chat template.
        """
        if isinstance(prompt, str) and raw:
            return encode_raw(self.tokenizer, prompt)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return encode_chat(self.tokenizer, self.card.chat_template or self.tokenizer.chat_template, messages)

    def request(
        self, prompt: str | Sequence[Message], *, raw: bool = False, seed: int | None = None
    ) -> GenerationRequest:
        """A request with the settings' parameters; without a seed anywhere a random one is drawn."""
        settings = self.settings
        chosen = next((one for one in (seed, settings.seed) if one is not None), None)
        if chosen is None:
            chosen = secrets.randbits(63) if settings.temperature else 0
        return GenerationRequest(
            tuple(self.encode(prompt, raw=raw)),
            replace(settings.sampling(chosen), bad_words=self._bad_words()),
            settings.max_tokens,
            settings.stop,
            settings.scheme,
            settings.logprobs,
            settings.grammar,
        )

    def _bad_words(self) -> tuple[tuple[int, ...], ...]:
        """Ids of each bad word as it stands, and after a space, where most words stand."""
        words = [form for word in self.settings.bad_words for form in (word, " " + word)]
        return tuple(
            tuple(self.tokenizer.encode(word, add_special=False, parse_special=False)) for word in words
        )

    def generate(
        self, prompt: str | Sequence[Message], *, raw: bool = False, seed: int | None = None
    ) -> AsyncIterator[Event]:
        """Write one text; yields TokenEvents, perhaps NoticeEvents, and a DoneEvent at the end."""
        return self._session.generate(self.request(prompt, raw=raw, seed=seed))

    def generate_from(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Like ``generate``, with every parameter given."""
        return self._session.generate(request)


def draft_model_path(settings: EdgeSettings) -> Path:
    """The GGUF file the settings name.

    Raises:
        ModelError: an unknown pair, or a file that is missing or damaged.
    """
    if settings.draft_model is not None:
        return resolve_draft(settings.draft_model, argument="--draft-model")
    return resolve_draft(settings.pair, argument="--pair")
