"""Columns that grow together in one block of memory.

Memory is not free: each page of 4 KiB costs a fault of one to three microseconds when it is first written, as much as
decoding the events that fill it. A large block comes in huge pages (numpy asks for them), a hundred times fewer faults
than an array for each batch and column, and is sorted where it lies.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_FIRST_ROWS = 4096
_ALIGNED = 64  # bytes


class Store:
    """Columns of one length; `kinds` gives the name and type of each."""

    def __init__(self, kinds: Mapping[str, DTypeLike]) -> None:
        self._kinds = {name: np.dtype(kind) for name, kind in kinds.items()}
        self._count, self._rows = 0, 0
        self._columns: dict[str, NDArray[Any]] = {}
        self._grow(_FIRST_ROWS)

    def __len__(self) -> int:
        return self._count

    def append(self, batch: Mapping[str, NDArray[Any]], count: int) -> None:
        """Add `count` rows; `batch` holds every column."""
        begin, end = self._count, self._count + count
        if end > self._rows:
            self._grow(max(end, 3 * self._rows))  # what is not written to costs nothing
        for name, column in self._columns.items():
            column[begin:end] = batch[name]
        self._count = end

    def column(self, name: str) -> NDArray[Any]:
        """One column; it may be written to."""
        return self._columns[name][: self._count]

    def columns_sorted(self, order: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """All columns with their rows in that order. The store keeps them and is of no use afterwards."""
        for name in self._kinds:
            self.column(name)[:] = self.column(name).take(order)
        return {name: self.column(name) for name in self._kinds}

    def _grow(self, rows: int) -> None:
        sizes = {name: -(-rows * kind.itemsize // _ALIGNED) * _ALIGNED for name, kind in self._kinds.items()}
        block = np.empty(sum(sizes.values()), np.uint8)
        begin = 0
        for name, kind in self._kinds.items():
            column = block[begin : begin + rows * kind.itemsize].view(kind)
            if self._count:
                column[: self._count] = self.column(name)
            self._columns[name] = column
            begin += sizes[name]
        self._rows = rows
