"""Inductor is asked to keep the order of collectives, and not to break buckets."""

from types import SimpleNamespace

import torch

from kit._torch import executors


def test_inductor_gets_settings_that_this_torch_knows(monkeypatch):
    seen = {}
    monkeypatch.setattr(torch, "compile", lambda module, **options: seen.update(options) or module)
    executors.inductor(torch.fx.symbolic_trace(torch.nn.Identity()))
    from torch._inductor import config

    known = config.get_config_copy()
    assert seen["options"] == {
        "reorder_for_peak_memory": False, "reorder_for_locality": False, "triton.mix_order_reduction": False,
        "trace.provenance_tracking_level": 2, "cpp.enable_kernel_profile": True,
    }  # fmt: skip
    off = [name for name, value in seen["options"].items() if value is False]
    assert len(off) == 3 and all(known[name] is True for name in off)  # else there is nothing to switch off


def test_inductor_leaves_the_loops_of_what_has_none_alone():
    """2.11 fails in an assertion there (a sharded step with clipping, on CUDA)."""
    from torch._inductor.scheduler import FusedSchedulerNode

    executors.inductor(torch.fx.symbolic_trace(torch.nn.Identity()))
    without_loops = SimpleNamespace(snodes=[object()])
    assert FusedSchedulerNode.reorder_loops_by_dep_pair(without_loops, None, None) is False
