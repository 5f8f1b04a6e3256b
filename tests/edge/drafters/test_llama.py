"""The llama.cpp drafter on the tiny pair: reuse, rollback, ownership, edges, refusals."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from draftwire_edge.drafter import Drafter, Guess
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.llama_runtime import llama_cpp
from draftwire_edge.proposer import Proposer
from draftwire_models.errors import UnreadableModelError
from draftwire_protocol.errors import DrafterError, UserInputError
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.sampling import choose_token
from tiny import TinyConfig, TinyPair, make_tiny_pair, vocabulary

PLAIN = SamplingParams()
GREEDY = Proposer(PLAIN)
WARM = SamplingParams(temperature=0.8, top_p=0.9, seed=5)
PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 256, 40)]


def _always(_block: Sequence[Guess]) -> bool:
    return True


def _tokens(block: Sequence[Guess]) -> list[int]:
    return [guess.token for guess in block]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    config = TinyConfig(drafter_vocab_pad=11, context_length=700)
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), config, noise=(0.0,))


@pytest.fixture
def drafter(pair: TinyPair) -> Iterator[LlamaCppDrafter]:
    made = LlamaCppDrafter(pair.drafters["perfect"], threads=1)
    yield made
    made.close()


def _fresh_draft(pair: TinyPair, context: list[int], sampling: SamplingParams, limit: int) -> list[Guess]:
    fresh = LlamaCppDrafter(pair.drafters["perfect"], threads=1)
    try:
        return fresh.draft(context, Proposer(sampling), limit, _always)
    finally:
        fresh.close()


class TestReuse:
    def test_prefill_is_used_by_the_draft(self, drafter: LlamaCppDrafter) -> None:
        drafter.prefill(PROMPT)
        assert drafter.decoded_tokens == len(PROMPT)
        drafter.draft(PROMPT, GREEDY, 1, _always)
        assert drafter.decoded_tokens == len(PROMPT)  # the prefill's logits are still at hand

    def test_a_block_decodes_all_but_its_last_guess(self, drafter: LlamaCppDrafter) -> None:
        drafter.draft(PROMPT, GREEDY, 5, _always)
        assert drafter.decoded_tokens == len(PROMPT) + 4

    def test_accepted_guesses_are_not_decoded_again(self, drafter: LlamaCppDrafter) -> None:
        block = _tokens(drafter.draft(PROMPT, GREEDY, 5, _always))
        before = drafter.decoded_tokens
        drafter.draft([*PROMPT, *block, 65], GREEDY, 1, _always)
        assert drafter.decoded_tokens == before + 2  # the last guess and the target's token

    def test_a_rejected_guess_costs_only_what_replaces_it(self, drafter: LlamaCppDrafter) -> None:
        block = _tokens(drafter.draft(PROMPT, GREEDY, 5, _always))
        before = drafter.decoded_tokens
        drafter.draft([*PROMPT, block[0], (block[1] + 1) % 256], GREEDY, 1, _always)
        assert drafter.decoded_tokens == before + 1

    def test_the_same_context_again_decodes_one_token(self, drafter: LlamaCppDrafter) -> None:
        first = drafter.draft(PROMPT, GREEDY, 5, _always)
        before = drafter.decoded_tokens
        assert _tokens(drafter.draft(PROMPT, GREEDY, 5, _always)) == _tokens(first)
        assert drafter.decoded_tokens == before + 5

    def test_next_turn_decodes_only_what_is_new(self, drafter: LlamaCppDrafter) -> None:
        answer = _tokens(drafter.draft(PROMPT, GREEDY, 20, _always))
        turn = [*PROMPT, *answer, *range(60, 90)]
        before = drafter.decoded_tokens
        drafter.prefill(turn)
        assert drafter.decoded_tokens == before + 31

    def test_prefill_of_something_shorter_keeps_what_is_there(self, drafter: LlamaCppDrafter) -> None:
        drafter.draft(PROMPT, GREEDY, 5, _always)
        before = drafter.decoded_tokens
        drafter.prefill(PROMPT[:10])
        assert drafter.decoded_tokens == before

    def test_long_prompts_are_decoded_in_chunks(self, pair: TinyPair, drafter: LlamaCppDrafter) -> None:
        long = [token % 256 for token in range(650)]
        drafter.prefill(long)
        assert drafter.decoded_tokens == 650
        assert _tokens(drafter.draft(long, GREEDY, 4, _always)) == _tokens(_fresh_draft(pair, long, PLAIN, 4))


class TestRollback:
    def test_bit_for_bit_when_the_same_calls_follow(self, drafter: LlamaCppDrafter) -> None:
        """What was removed leaves no trace: the same decode after it gives the same bits."""
        sequence = drafter._sequence
        sequence.append(PROMPT)
        sequence.append([65])
        expected = sequence.logits().copy()
        for wrong in ([66], [67, 68, 69], PROMPT):
            sequence.cut(len(PROMPT))
            sequence.append(wrong)
            sequence.cut(len(PROMPT))
            sequence.append([65])
            assert np.array_equal(sequence.logits(), expected)

    def test_equals_a_fresh_context_closely_and_in_its_choices(self, pair: TinyPair) -> None:
        """Cut into other batches the sums round differently: equal choices, and logits within 1e-2."""
        used = LlamaCppDrafter(pair.drafters["perfect"], threads=1)
        fresh = LlamaCppDrafter(pair.drafters["perfect"], threads=1)
        context = list(PROMPT)
        generator = np.random.default_rng(0)
        for _ in range(20):
            used.draft(context, Proposer(WARM), 6, _always)
            context = [
                *context[: len(context) - int(generator.integers(0, 4))],
                int(generator.integers(0, 256)),
            ]
            block = used.draft(context, GREEDY, 1, _always)
            fresh._sequence.clear()
            assert _tokens(block) == _tokens(fresh.draft(context, GREEDY, 1, _always))
            assert np.abs(used._sequence.logits() - fresh._sequence.logits()).max() < 1e-2
        used.close()
        fresh.close()

    def test_refused_removal_starts_over_and_is_counted(
        self, pair: TinyPair, drafter: LlamaCppDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drafter.draft(PROMPT, GREEDY, 5, _always)
        monkeypatch.setattr(llama_cpp(), "llama_memory_seq_rm", lambda *_args: False)
        context = [*PROMPT, 65]
        before = drafter.decoded_tokens
        block = drafter.draft(context, GREEDY, 3, _always)
        assert drafter.refused_removals == 1
        assert drafter.decoded_tokens == before + len(context) + 2
        assert _tokens(block) == _tokens(_fresh_draft_unpatched(pair, context, monkeypatch))

    def test_failed_decode_is_an_error_and_the_next_call_works(
        self, drafter: LlamaCppDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good = _tokens(drafter.draft(PROMPT, GREEDY, 3, _always))
        with monkeypatch.context() as patched:
            patched.setattr(llama_cpp(), "llama_decode", lambda *_args: 1)
            with pytest.raises(DrafterError, match="llama_decode returned 1"):
                drafter.draft([*PROMPT, 1, 2], GREEDY, 3, _always)
        assert _tokens(drafter.draft(PROMPT, GREEDY, 3, _always)) == good

    def test_an_id_the_model_does_not_have(self, drafter: LlamaCppDrafter) -> None:
        with pytest.raises(DrafterError, match=r"llama_decode returned -1.*invalid token"):
            drafter.draft([*PROMPT, 5000], GREEDY, 1, _always)
        assert drafter.draft(PROMPT, GREEDY, 1, _always)


def _fresh_draft_unpatched(
    pair: TinyPair, context: list[int], monkeypatch: pytest.MonkeyPatch
) -> list[Guess]:
    monkeypatch.undo()
    return _fresh_draft(pair, context, PLAIN, 3)


class TestGuesses:
    @pytest.mark.parametrize("sampling", [PLAIN, WARM, SamplingParams(temperature=1.0, seed=9)])
    def test_each_guess_is_the_choice_for_its_position(
        self, drafter: LlamaCppDrafter, sampling: SamplingParams
    ) -> None:
        block = drafter.draft(PROMPT, Proposer(sampling), 12, _always)
        context = list(PROMPT)
        sequence = drafter._sequence
        sequence.clear()
        sequence.append(context)
        for guess in block:
            row = sequence.logits()[: drafter.tokenizer.n_tokens]
            assert guess.token == choose_token(row, sampling, len(context))
            context.append(guess.token)
            sequence.append([guess.token])

    def test_padding_ids_are_never_guessed(self, drafter: LlamaCppDrafter) -> None:
        hot = SamplingParams(temperature=20.0, seed=1)
        block = _tokens(drafter.draft(PROMPT, Proposer(hot), 300, _always))
        assert len(block) == 300
        assert max(block) < vocabulary.N_TOKENS < drafter.tokenizer.n_vocab

    def test_want_more_ends_the_block(self, drafter: LlamaCppDrafter) -> None:
        sizes: list[int] = []

        def until_three(block: Sequence[Guess]) -> bool:
            sizes.append(len(block))
            return len(block) < 3

        assert len(drafter.draft(PROMPT, GREEDY, 9, until_three)) == 3
        assert sizes == [1, 2, 3]
        assert drafter.decoded_tokens == len(PROMPT) + 2

    def test_model_seconds_counts_the_time_in_the_model(self, drafter: LlamaCppDrafter) -> None:
        assert drafter.model_seconds == 0.0
        started = time.perf_counter()
        drafter.draft(PROMPT, GREEDY, 50, _always)
        assert 0.0 < drafter.model_seconds <= time.perf_counter() - started

    def test_tokenizer_shares_the_model(self, drafter: LlamaCppDrafter) -> None:
        assert drafter.tokenizer.pieces == vocabulary.token_bytes()
        drafter.close()
        with pytest.raises(DrafterError, match="closed"):
            drafter.tokenizer.encode("a", add_special=False, parse_special=False)


class TestContextEdge:
    @pytest.fixture
    def small(self, pair: TinyPair) -> Iterator[LlamaCppDrafter]:
        made = LlamaCppDrafter(pair.drafters["perfect"], threads=1, context_length=50)
        yield made
        made.close()

    def test_block_is_cut_where_the_context_ends(self, small: LlamaCppDrafter) -> None:
        for length, expected in ((45, 5), (49, 1), (50, 0), (51, 0), (200, 0)):
            assert len(small.draft([9] * length, GREEDY, 8, _always)) == expected

    def test_prefill_that_does_not_fit_is_left_alone(self, small: LlamaCppDrafter) -> None:
        small.prefill([9] * 51)
        small.prefill([])
        assert small.decoded_tokens == 0

    def test_length_is_capped_by_the_models_own(self, drafter: LlamaCppDrafter) -> None:
        assert drafter.context_length == 700

    def test_the_very_last_position_can_be_drafted(self, drafter: LlamaCppDrafter) -> None:
        assert len(drafter.draft([9] * 690, Proposer(WARM), 99, _always)) == 10

    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_tiny_contexts_work(self, pair: TinyPair, length: int) -> None:
        made = LlamaCppDrafter(pair.drafters["perfect"], threads=1, context_length=length)
        assert len(made.draft([9], GREEDY, 8, _always)) == length - 1
        made.close()

    def test_no_context_no_guess(self, drafter: LlamaCppDrafter) -> None:
        assert drafter.draft([], GREEDY, 3, _always) == []


class TestOwnership:
    def test_a_second_call_at_the_same_time_is_refused(self, drafter: LlamaCppDrafter) -> None:
        inside, leave = threading.Event(), threading.Event()
        blocks: list[list[Guess]] = []

        def wait(block: Sequence[Guess]) -> bool:
            inside.set()
            leave.wait(30)
            return len(block) < 2

        thread = threading.Thread(target=lambda: blocks.append(drafter.draft(PROMPT, GREEDY, 5, wait)))
        thread.start()
        assert inside.wait(30)
        for call in (
            lambda: drafter.draft(PROMPT, GREEDY, 1, _always),
            lambda: drafter.prefill(PROMPT),
        ):
            with pytest.raises(DrafterError, match="in use by another call"):
                call()
        leave.set()
        thread.join(30)
        assert len(blocks[0]) == 2
        assert drafter.draft(PROMPT, GREEDY, 1, _always)  # another thread, one after the other: fine

    def test_close_waits_for_the_call_in_progress(self, pair: TinyPair) -> None:
        drafter = LlamaCppDrafter(pair.drafters["perfect"], threads=1)
        inside, leave = threading.Event(), threading.Event()
        blocks: list[list[Guess]] = []

        def wait(_block: Sequence[Guess]) -> bool:
            inside.set()
            return leave.wait(30)

        drawing = threading.Thread(target=lambda: blocks.append(drafter.draft(PROMPT, GREEDY, 3, wait)))
        closing = threading.Thread(target=drafter.close)
        drawing.start()
        assert inside.wait(30)
        closing.start()
        leave.set()
        drawing.join(30)
        closing.join(30)
        assert len(blocks[0]) == 3
        with pytest.raises(DrafterError, match="closed"):
            drafter.draft(PROMPT, GREEDY, 1, _always)

    def test_close_twice(self, pair: TinyPair) -> None:
        drafter: Drafter = LlamaCppDrafter(pair.drafters["perfect"], threads=1)
        drafter.close()
        drafter.close()

    def test_an_error_inside_want_more_frees_the_drafter(self, drafter: LlamaCppDrafter) -> None:
        def fail(_block: Sequence[Guess]) -> bool:
            raise KeyError

        with pytest.raises(KeyError):
            drafter.draft(PROMPT, GREEDY, 3, fail)
        assert drafter.draft(PROMPT, GREEDY, 1, _always)


class TestRefusals:
    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableModelError, match="No such file"):
            LlamaCppDrafter(tmp_path / "none.gguf")

    def test_context_length_must_be_positive(self, pair: TinyPair) -> None:
        with pytest.raises(UserInputError, match="not positive"):
            LlamaCppDrafter(pair.drafters["perfect"], context_length=0)

    def test_recurrent_model(self, tmp_path: Path) -> None:
        path = tmp_path / "mamba.gguf"
        _write_mamba(path)
        with pytest.raises(DrafterError, match=r"mamba\.gguf cannot draft because it is recurrent"):
            LlamaCppDrafter(path, threads=1)

    def test_recurrent_model_is_caught_by_the_probe_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "mamba.gguf"
        _write_mamba(path)
        monkeypatch.setattr(llama_cpp(), "llama_model_is_recurrent", lambda _model: False)
        with pytest.raises(DrafterError, match="cannot forget single tokens"):
            LlamaCppDrafter(path, threads=1)

    @pytest.mark.parametrize("kind", ["is_hybrid", "is_diffusion", "has_encoder"])
    def test_other_kinds(self, pair: TinyPair, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        monkeypatch.setattr(llama_cpp(), f"llama_model_{kind}", lambda _model: True)
        with pytest.raises(DrafterError, match="cannot draft because it is"):
            LlamaCppDrafter(pair.drafters["perfect"], threads=1)

    def test_settings_llama_cpp_refuses(self, pair: TinyPair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llama_cpp(), "llama_init_from_model", lambda *_args: None)
        with pytest.raises(DrafterError, match="cannot hold 700 tokens"):
            LlamaCppDrafter(pair.drafters["perfect"], threads=1)


def _write_mamba(path: Path, width: int = 32, inner: int = 64, state: int = 4, rank: int = 2) -> None:
    """A recurrent model of one layer with random weights."""
    writer: Any = GGUFWriter(path, "mamba")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(1)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.ordinary_tokens())
    writer.add_token_types([1] * vocabulary.N_ORDINARY)
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.MERGES])
    shapes = {
        "token_embd.weight": (vocabulary.N_ORDINARY, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ssm_in.weight": (2 * inner, width),
        "blk.0.ssm_conv1d.weight": (inner, 4),
        "blk.0.ssm_conv1d.bias": (inner,),
        "blk.0.ssm_x.weight": (rank + 2 * state, inner),
        "blk.0.ssm_dt.weight": (inner, rank),
        "blk.0.ssm_dt.bias": (inner,),
        "blk.0.ssm_a": (inner, state),
        "blk.0.ssm_d": (inner,),
        "blk.0.ssm_out.weight": (width, inner),
    }
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, generator.standard_normal(shape).astype(np.float32) * np.float32(0.1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestInterrupt:
    def test_a_draft_ends_with_what_it_has_and_the_store_stays_right(
        self, pair: TinyPair, drafter: LlamaCppDrafter
    ) -> None:
        def interrupting(block: Sequence[Guess]) -> bool:
            if len(block) == 3:
                drafter.interrupt()  # the decode that follows is stopped
            return True

        whole = _fresh_draft(pair, PROMPT, WARM, 8)
        assert _tokens(drafter.draft(PROMPT, Proposer(WARM), 8, interrupting)) == _tokens(whole[:3])
        assert drafter.refused_removals == 0
        before = drafter.decoded_tokens
        assert _tokens(drafter.draft(PROMPT, Proposer(WARM), 8, _always)) == _tokens(whole)
        assert drafter.decoded_tokens <= before + 8  # nothing but the guesses was decoded again

    def test_an_interrupt_that_comes_too_early_or_too_late_has_no_effect(
        self, pair: TinyPair, drafter: LlamaCppDrafter
    ) -> None:
        whole = _fresh_draft(pair, PROMPT, PLAIN, 5)
        drafter.interrupt()
        drafter.prefill(PROMPT)
        assert drafter.decoded_tokens == len(PROMPT)
        drafter.interrupt()
        assert _tokens(drafter.draft(PROMPT, GREEDY, 5, _always)) == _tokens(whole)

    def test_a_decode_at_hand_is_stopped_from_another_thread(self, drafter: LlamaCppDrafter) -> None:
        drafter.draft(PROMPT, GREEDY, 1, _always)
        stopped = threading.Event()

        def keep_interrupting() -> None:
            while not stopped.is_set():
                drafter.interrupt()
                time.sleep(0.0005)

        thread = threading.Thread(target=keep_interrupting)
        thread.start()
        try:
            blocks = [drafter.draft(PROMPT, GREEDY, 600, _always) for _ in range(3)]
        finally:
            stopped.set()
            thread.join()
        assert min(len(block) for block in blocks) < 600
        again = drafter.draft(PROMPT, GREEDY, 20, _always)
        for block in blocks:
            assert _tokens(block[:20]) == _tokens(again[: len(block)])
