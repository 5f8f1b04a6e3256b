from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.engine.shapes import ShapePolicy

COUNTS = (3, 4, 5, 6, 8, 12)


@given(st.integers(0, 40))
def test_rows_are_padded_to_the_next_agreeing_count(n: int) -> None:
    rows = ShapePolicy(row_counts=COUNTS).rows(n)
    assert rows >= max(n, 1)
    if n <= COUNTS[-1]:
        assert rows in COUNTS
        assert not any(n <= count < rows for count in COUNTS)
    else:
        assert rows == n


@given(st.integers(1, 5000), st.sampled_from([1, 4, 8]), st.sampled_from([1, 512]))
def test_queries_and_keys_are_the_next_multiple(n: int, query_multiple: int, kv_multiple: int) -> None:
    policy = ShapePolicy(query_multiple=query_multiple, kv_multiple=kv_multiple)
    assert 0 <= policy.queries(n) - n < query_multiple
    assert policy.queries(n) % query_multiple == 0
    assert 0 <= policy.keys(n) - n < kv_multiple
    assert policy.keys(n) % kv_multiple == 0


@given(st.integers(1, 5000))
def test_switched_off_nothing_is_padded(n: int) -> None:
    policy = ShapePolicy.off()
    assert (policy.rows(n), policy.queries(n), policy.keys(n)) == (n, n, n)


def test_a_gpu_never_sees_fewer_than_sixteen_rows() -> None:
    policy = ShapePolicy.for_gpu()
    assert [policy.rows(n) for n in (1, 16, 17, 300)] == [16, 16, 32, 300]
