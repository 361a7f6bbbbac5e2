import numpy as np
import pytest

from kit.timeline.store import Store

KINDS = {"a": np.int64, "b": np.uint8, "c": np.int32}


@pytest.mark.parametrize("sizes", [[], [0], [3], [5000, 1, 20_000], [1000] * 30])
def test_columns_are_the_batches_one_after_the_other_in_any_order_asked(sizes: list[int]) -> None:
    random = np.random.default_rng(len(sizes))
    batches = [{name: random.integers(0, 100, size).astype(kind) for name, kind in KINDS.items()} for size in sizes]
    store = Store(KINDS)
    for batch, size in zip(batches, sizes, strict=True):
        store.append(batch, size)
    expected = {n: np.concatenate([np.empty(0, k), *(b[n] for b in batches)]) for n, k in KINDS.items()}
    assert len(store) == sum(sizes)
    assert all((store.column(name) == values).all() for name, values in expected.items())
    order = random.permutation(len(store))
    for name, column in store.columns_sorted(order).items():
        assert column.dtype == KINDS[name]
        assert column.tolist() == expected[name][order].tolist()
