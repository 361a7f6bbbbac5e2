"""Values survive the way to a rank and back."""

import sys
import types

import numpy as np
import pytest
import torch

from kit.ranks import wire


def there(value: object) -> object:
    return wire.loads([bytearray(frame) for frame in wire.dumps(value)])  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_tensors_of_every_dtype_survive(dtype: torch.dtype) -> None:
    sent = torch.arange(12).reshape(3, 4).to(dtype)[:, ::2]
    back = there(sent)
    assert isinstance(back, torch.Tensor)
    assert back.dtype == dtype
    assert torch.equal(back, sent)


def test_a_large_tensor_travels_beside_the_pickle() -> None:
    head, *buffers = wire.dumps({"a": torch.ones(1000), "b": np.ones(1000)})
    assert len(head) < 1000
    assert sorted(memoryview(buffer).nbytes for buffer in buffers) == [4000, 8000]


def test_a_tensor_used_twice_is_sent_once() -> None:
    tensor = torch.ones(1000)
    back = there([tensor, tensor])
    assert isinstance(back, list)
    assert back[0] is back[1]


def test_a_function_of_a_module_that_no_rank_can_import_goes_by_value() -> None:
    module = types.ModuleType("made_up_here")
    exec("def f():\n    return 5\n", module.__dict__)
    sys.modules["made_up_here"] = module
    try:
        wire.by_value(module.f)
        frames = wire.dumps(module.f)
    finally:
        del sys.modules["made_up_here"]
    assert wire.loads(frames)() == 5
