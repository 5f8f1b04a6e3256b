"""The table: a row an arm and number of edges, in that order, nothing invented."""

from draftwire_sim.bench.capacity.figures import summarise
from draftwire_sim.bench.capacity.table import table
from sim.bench.capacity.worlds import seen, turn, written


def rows_of(*turns_of: tuple[str, int, float]) -> tuple[list[str], list[list[str]]]:
    turns = [
        turn(arm, clients, seconds, [written([seen(1.0), seen(2.0, 7, 0.25)], prompt_tokens=(1 << 20) - 8)])
        for arm, clients, seconds in turns_of
    ]
    return table(summarise(turns, 3))


def test_rows_go_by_the_number_of_edges_and_not_by_its_letters() -> None:
    header, rows = rows_of(("batched", 16, 1.0), ("cloud", 16, 1.0), ("batched", 2, 1.0))
    assert [(row[0], row[1]) for row in rows] == [("2", "batched"), ("16", "batched"), ("16", "cloud")]
    assert {len(row) for row in rows} == {len(header)}


def test_cells_say_what_the_summary_does() -> None:
    header, rows = rows_of(("batched", 1, 0.5), ("unbatched", 1, 1.0))
    cells = dict(zip(header, rows[0], strict=True))
    assert cells["tokens/s"] == "16.0"
    assert cells["verdict p50 / p99 / steady p99 ms"] == "250 / 250 / 250"
    assert cells["passes, steps / token"] == "0.250 / 0.250"
    assert cells["KV MiB"] == "3.0"
    assert cells["vs unbatched"] == "2.00"
    assert dict(zip(header, rows[1], strict=True))["vs unbatched"] == ""


def test_what_is_not_known_is_left_blank() -> None:
    header, rows = table(summarise([turn("vllm", 1, 2.0, (), other_tokens=5)], 3))
    cells = dict(zip(header, rows[0], strict=True))
    assert cells.pop("tokens/s") == "2.5"
    assert cells.pop("edges") == "1"
    assert cells.pop("arm") == "vllm"
    assert set(cells.values()) == {""}
