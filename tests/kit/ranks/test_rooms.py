"""Memory is used again only when nothing of what lay in it is left."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kit.ranks import rooms
from kit.ranks.rooms import room

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    gc.collect()
    rooms.clear()
    yield
    rooms.clear()


def address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def test_memory_is_used_again_when_it_is_free() -> None:
    first = address(room(SIZE))
    assert address(room(SIZE)) == first
    assert address(room(SIZE - 1000)) == first
    held = room(SIZE)
    assert address(held) == first
    assert address(room(SIZE)) != first


@pytest.mark.parametrize(
    "part",
    [
        lambda memory: memory[5:100],
        lambda memory: memory.cast("i")[3:],
        lambda memory: np.frombuffer(memory, np.float32)[7:9],
        lambda memory: np.frombuffer(memory, np.float32).reshape(2, -1).T[3:][:1],
        lambda memory: torch.frombuffer(memory, dtype=torch.float32)[2:4],
        lambda memory: torch.frombuffer(memory, dtype=torch.float32).reshape(4, -1)[1:].numpy()[1:],
        lambda memory: torch.nn.Parameter(torch.frombuffer(memory, dtype=torch.float32)).detach(),
        lambda memory: torch.frombuffer(memory, dtype=torch.float32).untyped_storage(),
    ],
)
def test_any_part_of_it_keeps_it(part: object) -> None:
    memory = room(SIZE)
    first = address(memory)
    kept = part(memory)  # type: ignore[operator]
    del memory
    gc.collect()
    assert address(room(SIZE)) != first
    del kept
    gc.collect()
    held = [room(SIZE), room(SIZE)]
    assert first in map(address, held)


def test_what_is_idle_is_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "IDLE_BYTES", 3 * SIZE)
    held = [room(SIZE) for _ in range(5)]
    held.clear()
    assert len(rooms._idle) == 3
    rooms.clear()
    assert rooms._idle == []
