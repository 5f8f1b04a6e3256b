"""Streams open and release slots on the event loop while the torch thread grows others."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from draftwire_cloud.engine.layout import KvLayout, LayerShape
from draftwire_cloud.engine.slots import SlotStore

LAYOUT = KvLayout(layers={0: LayerShape(1, 1)}, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_slots_may_be_opened_while_others_are_reserved() -> None:
    store, stop = SlotStore(LAYOUT, 1 << 20), Event()
    held = [store.open(64) for _ in range(40)]

    def reserve() -> None:
        while not stop.is_set():
            store.reserve([(held[0], 64)])
            assert store.used_bytes >= 40 * 512 * LAYOUT.bytes_per_token

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(reserve)
        until = time.perf_counter() + 1.0
        while time.perf_counter() < until:
            store.release(store.open(64))
        stop.set()
        running.result()
    assert store.n_open == 40
