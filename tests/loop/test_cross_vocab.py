"""A draft model of another vocabulary: refused unless asked for, and then exact like any other."""

import asyncio
import threading
import unicodedata
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer as Backend

from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.service import SpeculationService
from draftwire_edge import client as client_module
from draftwire_edge.channel import CloudChannel
from draftwire_edge.client import EdgeClient
from draftwire_edge.config import load_settings
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafter import Guess
from draftwire_edge.drafters.cross_vocab import CrossVocabDrafter, SharedIds
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import DoneEvent, GenerationRequest
from draftwire_edge.handshake import fetch_card
from draftwire_edge.proposer import Proposer
from draftwire_edge.target_tokenizer import TargetTokenizer, fetch_tokenizer
from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol.errors import (
    CloudUnavailableError,
    DrafterError,
    DraftwireError,
    ModelMismatchError,
    UserInputError,
)
from draftwire_protocol.messages import Mode, Scheme
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.proposal import certain
from loop.harness import CLOUD_ALONE, connected, serving
from tiny.pair import TinyPair, write_foreign
from tiny.texts import random_texts

PROMPTS = [
    "the cat in the hat\n\nthe end",
    "café à la carte: é, ñ, 中文, 🙂🙃 and 1010",
    "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n",
    "  the  the\n\n\nthe",
]


@pytest.fixture(scope="module")
def foreign_path(tiny_pair: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign(tmp_path_factory.mktemp("foreign"), tiny_pair.config)


@pytest.fixture
async def target_tokenizer(loaded: LoadedTarget) -> TargetTokenizer:
    async with serving(loaded) as server, CloudChannel(f"127.0.0.1:{server.port}") as channel:
        return await fetch_tokenizer(channel, await fetch_card(channel))


@pytest.fixture
def foreign(foreign_path: Path, target_tokenizer: TargetTokenizer) -> Iterator[CrossVocabDrafter]:
    drafter = CrossVocabDrafter(
        LlamaCppDrafter(foreign_path, context_length=512, threads=1), target_tokenizer
    )
    yield drafter
    drafter.close()


async def test_the_fetched_tokenizer_is_the_targets(
    target_tokenizer: TargetTokenizer, drafters: dict[str, LlamaCppDrafter]
) -> None:
    own = drafters["perfect"].tokenizer  # compared with transformers' elsewhere
    assert target_tokenizer.pieces == own.pieces
    assert target_tokenizer.special_ids == own.special_ids
    # The main end, which templates write, is not the first one.
    assert target_tokenizer.eos_ids == own.eos_ids
    assert target_tokenizer.eos_id == own.eos_id != own.eos_ids[0]
    # Composed: as "qwen2" files are read here, while the tiny folder's tokenizer composes nothing.
    for text in [unicodedata.normalize("NFC", one) for one in [*PROMPTS, *random_texts(200, 4)]]:
        for special in (True, False):
            assert target_tokenizer.encode(text, add_special=True, parse_special=special) == own.encode(
                text, add_special=True, parse_special=special
            )


@pytest.mark.parametrize(
    ("sampling", "scheme"),
    [(SamplingParams(), scheme) for scheme in Scheme]
    + [(SamplingParams(1.0, seed=3), Scheme.COUPLED), (SamplingParams(0.8, top_p=0.9), Scheme.COUPLED)],
)
async def test_texts_are_the_clouds_own(
    loaded: LoadedTarget,
    target_tokenizer: TargetTokenizer,
    foreign: CrossVocabDrafter,
    sampling: SamplingParams,
    scheme: Scheme,
) -> None:
    accepted = drafted = 0
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for prompt in PROMPTS:
            ids = target_tokenizer.encode(prompt, add_special=True, parse_special=True)
            request = GenerationRequest(tuple(ids), sampling, 60, scheme=scheme)
            alone = await edge.write(request, None, CLOUD_ALONE)
            for gamma in (1, 4, 7):
                together = await edge.write(request, foreign, GammaPolicy(gamma, Mode.LOCKSTEP))
                assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
                accepted += together.timings.num_accepted_tokens
                drafted += together.timings.num_draft_tokens
    # The same model behind other ids; what is lost is lost where a text can be cut in several ways.
    assert accepted / drafted > 0.4


def test_shared_ids_are_spelled_alike(foreign: CrossVocabDrafter, target_tokenizer: TargetTokenizer) -> None:
    own = foreign._inner.tokenizer
    shared = SharedIds(own, target_tokenizer)
    assert len(shared.own_of) == own.n_tokens == target_tokenizer.n_tokens - 3
    for theirs, ours in shared.own_of.items():
        assert own.pieces[ours] == target_tokenizer.pieces[theirs]
        assert (ours in own.special_ids) == (theirs in target_tokenizer.special_ids)


def test_a_draft_is_cut_as_the_target_cuts_it(
    foreign: CrossVocabDrafter, target_tokenizer: TargetTokenizer
) -> None:
    def ids(text: str) -> list[int]:
        return target_tokenizer.encode(text, add_special=False, parse_special=True)

    # Byte by byte, as a drafter without merges would guess it; sure of the first bytes only.
    letters = [
        Guess(target_tokenizer.pieces.index(bytes([byte])), 0.9 - 0.1 * i) for i, byte in enumerate(b" the")
    ]
    end = Guess(ids("<|im_end|>")[0], 0.4)
    recut = foreign._recut([*letters, end])
    assert [guess.token for guess in recut] == ids(" the<|im_end|>")
    assert recut[0].top_probability == pytest.approx(0.6)
    assert recut[1:] == [end]
    # Half a character, and what was drawn, stay as they are.
    half = [Guess(target_tokenizer.pieces.index(b"\xc3"), 0.9)]
    assert foreign._recut(half) == half
    drawn = [Guess(one.token, 0.9, certain(one.token)) for one in letters]
    assert foreign._recut(drawn) == drawn


#: Of " the", in the ids of its bytes; id -1 stands for one without bytes, -2 for one beyond the card.
ODD_CUTS = [
    [-1, 0, 1, 2, 3],
    [0, 1, -1, 2, 3],
    [0, 1, 2, 3, -1],
    [-2, 0, 1, 2, 3],
    [0, 1, 2, 3, -2],
    [-2],
    [-1],
]


@pytest.mark.parametrize("cut", ODD_CUTS)
def test_a_tokenizer_that_answers_with_odd_ids_leaves_the_draft_alone(
    foreign: CrossVocabDrafter,
    target_tokenizer: TargetTokenizer,
    cut: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = target_tokenizer.pieces.index(b"z")
    target_tokenizer.pieces[empty] = b""
    letters = [target_tokenizer.pieces.index(bytes([byte])) for byte in b" the"]
    ids = [{-1: empty, -2: target_tokenizer.n_tokens}.get(i, letters[i]) for i in cut]
    monkeypatch.setattr(target_tokenizer, "encode", lambda *_, **__: ids)
    guesses = [Guess(token, 0.9) for token in letters]
    assert foreign._recut(guesses) == guesses


def test_an_end_that_is_no_control_token_is_not_cut_into_letters(
    foreign: CrossVocabDrafter, loaded: LoadedTarget
) -> None:
    card = replace(loaded.card, special_ids=())
    target = TargetTokenizer(card, loaded.vocabulary.pieces, loaded.pack_tokenizer())
    drafter = CrossVocabDrafter(foreign._inner, target)
    letters = [Guess(target.pieces.index(bytes([byte])), 0.9) for byte in b" the"]
    end = Guess(card.eos_ids[-1], 0.4)
    merged = target.encode(" the", add_special=False, parse_special=False)
    assert [guess.token for guess in drafter._recut([*letters, end])] == [*merged, end.token]


def test_drawn_guesses_are_sent_as_drawn(
    foreign: CrossVocabDrafter, target_tokenizer: TargetTokenizer
) -> None:
    context = target_tokenizer.encode(PROMPTS[0], add_special=True, parse_special=True)
    sampling = SamplingParams(1.0, seed=2)
    for scheme in (Scheme.REJECTION, Scheme.BLOCK):
        block = foreign.draft(context, Proposer(sampling, scheme, len(context)), 6, lambda _: True)
        assert len(block) == 6
        assert all(guess.proposal and guess.proposal.probability(guess.token) for guess in block)


async def _write(server_port: int, path: Path, **options: object) -> tuple[EdgeClient, DoneEvent]:
    settings = load_settings(
        cloud=f"127.0.0.1:{server_port}", draft_model=path, context_length=512, threads=1, max_tokens=30,
        gamma=3, mode="lockstep", **options,
    )  # fmt: skip
    async with EdgeClient(settings) as client:
        events = [event async for event in client.generate(PROMPTS[0])]
    assert isinstance(events[-1], DoneEvent)
    return client, events[-1]


async def test_another_vocabulary_is_refused_with_the_way_out_and_taken_when_asked_for(
    loaded: LoadedTarget, tiny_pair: TinyPair, foreign_path: Path
) -> None:
    async with serving(loaded) as server:
        with pytest.raises(
            ModelMismatchError, match=r"token 0 is .* here and .* in the cloud.*--cross-vocab"
        ):
            await _write(server.port, foreign_path)
        _, same = await _write(server.port, tiny_pair.drafters["perfect"], cross_vocab=True)
        client, other = await _write(server.port, foreign_path, cross_vocab=True)
        assert isinstance(client.tokenizer, TargetTokenizer)
        assert other.result.token_ids == same.result.token_ids
        assert other.result.timings.num_accepted_tokens > 0
        _, copied = await _write(server.port, foreign_path, cross_vocab=True, drafter="ngram")
        assert copied.result.token_ids == same.result.token_ids


async def test_a_cloud_without_a_tokenizer_to_give_is_an_error_that_says_so(
    loaded: LoadedTarget, foreign_path: Path
) -> None:
    async with serving(replace(loaded, pack_tokenizer=bytes)) as server:
        with pytest.raises(UserInputError, match=r"--cross-vocab.*does not give the tokenizer"):
            await _write(server.port, foreign_path, cross_vocab=True)


async def test_a_cloud_older_than_the_question_is_an_error_that_says_so(
    loaded: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*args: Any) -> AsyncIterator[pb.GetTokenizerResponse]:
        await args[-1].abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        yield pb.GetTokenizerResponse()

    monkeypatch.setattr(SpeculationService, "GetTokenizer", unknown)
    async with serving(loaded) as server, CloudChannel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(UserInputError, match="does not give the tokenizer"):
            await fetch_tokenizer(channel, await fetch_card(channel))


async def test_a_broken_connection_is_not_taken_for_a_missing_tokenizer(loaded: LoadedTarget) -> None:
    async with serving(loaded) as server:
        port = server.port
        async with CloudChannel(f"127.0.0.1:{port}") as channel:
            card = await fetch_card(channel)
    async with CloudChannel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(CloudUnavailableError):
            await fetch_tokenizer(channel, card)


async def test_a_tokenizer_without_end_is_not_received_for_ever(
    loaded: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*_: object) -> AsyncIterator[pb.GetTokenizerResponse]:
        while True:
            yield pb.GetTokenizerResponse(data=bytes(1 << 20))

    monkeypatch.setattr(SpeculationService, "GetTokenizer", endless)
    async with serving(loaded) as server, CloudChannel(f"127.0.0.1:{server.port}") as channel:
        card = await fetch_card(channel)
        with pytest.raises(DraftwireError, match="more than 67,108,864 bytes"):
            await asyncio.wait_for(fetch_tokenizer(channel, card), 20)


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_a_cancelled_client_frees_the_model_after_its_vocabulary_was_read(
    loaded: LoadedTarget, foreign_path: Path, cancellations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    models = []

    def slow(inner: LlamaCppDrafter, _: TargetTokenizer) -> None:
        models.append(inner._model)
        reading.set()
        go_on.wait(10)
        models.append(inner._model.handle)  # raises when the model was freed

    monkeypatch.setattr(client_module, "CrossVocabDrafter", slow)
    async with serving(loaded) as server:
        begun = asyncio.create_task(_write(server.port, foreign_path, cross_vocab=True))
        assert await asyncio.to_thread(reading.wait, 10)
        for _ in range(cancellations):
            begun.cancel()
            await asyncio.sleep(0.05)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await begun
    assert len(models) == 2
    with pytest.raises(DrafterError, match="is closed"):
        _ = models[0].handle


async def test_a_broken_tokenizer_is_an_error(loaded: LoadedTarget) -> None:
    async with serving(loaded) as server, CloudChannel(f"127.0.0.1:{server.port}") as channel:
        card = await fetch_card(channel)
    with pytest.raises(DraftwireError, match="cannot be read"):
        TargetTokenizer(card, loaded.vocabulary.pieces, b"not zlib")


async def test_truncation_and_padding_left_in_the_file_do_not_change_a_prompt(loaded: LoadedTarget) -> None:
    backend = Backend.from_str(zlib.decompress(loaded.pack_tokenizer()).decode())
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    async with serving(loaded) as server, CloudChannel(f"127.0.0.1:{server.port}") as channel:
        card = await fetch_card(channel)
    packed = zlib.compress(backend.to_str().encode())
    tokenizer = TargetTokenizer(card, loaded.vocabulary.pieces, packed)
    ids = tokenizer.encode("hello there, you", add_special=True, parse_special=True)
    assert b"".join(tokenizer.pieces[token] for token in ids) == b"hello there, you"
    assert (
        b"".join(
            tokenizer.pieces[token] for token in tokenizer.encode("ab", add_special=True, parse_special=True)
        )
        == b"ab"
    )
