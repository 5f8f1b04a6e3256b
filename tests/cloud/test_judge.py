"""Verdicts where the target has nothing to write, or its logits are broken, in every scheme."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from draftwire_cloud.judge import Judge
from draftwire_protocol.errors import BrokenLogitsError, NothingToWriteError
from draftwire_protocol.grammar import GrammarCompiler
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import Draft, Mode, Open, Scheme
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.proposal import certain

A, B, C = 0, 1, 2
PIECES = [b"a", b"b", b"c", b"d", b""]
EOS = 4
#: After a only b may come, and b after a is a bad word: the branch of a is dead.
COMPILER = GrammarCompiler(PIECES, (), (EOS,))
DEAD_AFTER_A = GrammarSpec("regex", "c(ab|c|d)c{0,9}")
#: With a at 1 %: exp(-3) / (exp(-3) + 2 exp(1)).
ROW = np.array([-3.0, 0.0, 1.0, 1.0, 0.0], np.float32)
SEEDS = 400


@pytest.mark.parametrize("scheme", Scheme)
def test_a_dead_branch_counts_no_more_than_the_target_goes_there(scheme: Scheme) -> None:
    outcomes: Counter[str] = Counter()
    ids, draft = [1, 2, C], Draft(0, 3, (A, B))
    if scheme is not Scheme.COUPLED:
        draft = Draft(0, 3, (A, B), (certain(A), certain(B)))
    for seed in range(SEEDS):
        params = SamplingParams(1.0, seed=seed, bad_words=((A, B),))
        request = Open("s", (1, 2), params, 8, Mode.LOCKSTEP, scheme=scheme)
        judge = Judge(request, len(PIECES), {EOS}, COMPILER.compile(DEAD_AFTER_A))
        try:
            outcomes[f"kept {judge.judge(ids, draft, np.stack([ROW] * 3)).num_accepted}"] += 1
        except NothingToWriteError:
            outcomes["nothing to write"] += 1
    # 3.6 of them are expected to draw a; 16 or more happen with probability 1e-6.
    assert outcomes["nothing to write"] < 16
    assert outcomes["kept 0"] + outcomes["nothing to write"] == SEEDS


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.05}, {"typical_p": 0.5}])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("scheme", Scheme)
def test_broken_logits_are_refused(scheme: Scheme, broken: float, filters: dict[str, Any]) -> None:
    request = Open("s", (1, 2), SamplingParams(1.0, **filters), 8, Mode.LOCKSTEP, scheme=scheme)
    row = ROW.copy()
    row[slice(None) if broken < 0 else 1] = broken
    with pytest.raises(BrokenLogitsError):
        Judge(request, len(PIECES), {EOS}).judge([1, 2], Draft(0, 2, ()), row[None])
