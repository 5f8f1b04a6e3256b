"""Which ways are compared."""

import pytest

from draftwire_protocol.errors import UserInputError
from draftwire_sim.bench.capacity.arms import ARMS, chosen


def test_nothing_named_is_all_and_names_go_in_the_order_of_all() -> None:
    assert chosen(None) == list(ARMS)
    assert chosen(" cloud, batched,cloud") == ["batched", "cloud"]


@pytest.mark.parametrize(
    ("text", "says"), [("batched,sideways", "'sideways'"), ("", "''"), ("vllm", "nothing of ours")]
)
def test_an_arm_that_is_none_is_refused_with_those_there_are(text: str, says: str) -> None:
    with pytest.raises(UserInputError, match=says) as refused:
        chosen(text)
    assert "--arms" in str(refused.value)
    assert ", ".join(ARMS) in str(refused.value)
