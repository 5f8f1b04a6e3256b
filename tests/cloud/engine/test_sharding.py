"""Which models can be split, and over how many ranks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from draftwire_cloud.engine.errors import UnsupportedModelError
from draftwire_cloud.engine.sharding import require_shardable
from draftwire_protocol.errors import UserInputError
from tiny.architectures import Arch

FolderOf = Callable[..., Path]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3_moe", "gemma2", "phi3", "gpt_neox"])
def test_an_architecture_with_a_plan_is_taken(folder_of: FolderOf, arch: Arch) -> None:
    require_shardable(folder_of(arch), 2)


@pytest.mark.parametrize("arch", ["gpt2", "gpt_oss"])  # no plan, and one that splits only embeddings
def test_without_a_plan_the_reason_is_given(folder_of: FolderOf, arch: Arch) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{arch} cannot be split .* no tensor-parallel plan"):
        require_shardable(folder_of(arch), 2)


@pytest.mark.parametrize("n_ranks", [3, 4])  # of 4 heads and 2 key/value heads
def test_heads_that_do_not_divide_are_refused_with_the_numbers_that_do(
    folder_of: FolderOf, n_ranks: int
) -> None:
    with pytest.raises(UserInputError, match=r"--tp: 4 attention heads and 2 .* Choose one of 1, 2$"):
        require_shardable(folder_of("llama"), n_ranks)


def test_a_model_that_gathers_its_heads_may_be_split_over_any_number(folder_of: FolderOf) -> None:
    require_shardable(folder_of("phi3"), 3)
