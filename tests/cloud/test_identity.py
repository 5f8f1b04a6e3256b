"""The same weights have the same id wherever they lie; others have another."""

import dataclasses
from pathlib import Path

import pytest

from draftwire_cloud.engine.facts import ModelFacts
from draftwire_cloud.identity import model_id

FACTS = ModelFacts("Tiny", 40, 512, (1,), "float32", "plain", 64, "cpu")
SIZE = 300_000


def folder(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, data in (files or {"a": bytes(SIZE), "b": b"short"}).items():
        (path / f"{name}.safetensors").write_bytes(data)
    return path


def test_place_and_device_number_do_not_matter(tmp_path: Path) -> None:
    one = model_id(folder(tmp_path / "one"), dataclasses.replace(FACTS, device="cuda:0"), fixed_shapes=True)
    two = model_id(folder(tmp_path / "two"), dataclasses.replace(FACTS, device="cuda:1"), fixed_shapes=True)
    assert one == two
    assert len(one) == 8


@pytest.mark.parametrize("at", [0, SIZE - 1])
def test_other_weights_are_another_model(tmp_path: Path, at: int) -> None:
    changed = bytearray(SIZE)
    changed[at] = 1
    other = folder(tmp_path / "other", a=bytes(changed), b=b"short")
    same = folder(tmp_path / "same")
    assert model_id(same, FACTS, fixed_shapes=True) != model_id(other, FACTS, fixed_shapes=True)


def test_other_arithmetic_is_another_model(tmp_path: Path) -> None:
    where = folder(tmp_path / "one")
    halves = dataclasses.replace(FACTS, weights="float16 x 7")
    bfloat = dataclasses.replace(FACTS, dtype="bfloat16")
    ids = {model_id(where, facts, fixed_shapes=True) for facts in (FACTS, halves, bfloat)}
    assert len(ids | {model_id(where, FACTS, fixed_shapes=False)}) == 4
