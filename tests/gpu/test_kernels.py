"""Kernels of live steps on GPUs: back to FX nodes and the user's lines, with what Triton compiled them to."""

import inspect

import pytest
import torch
from small_models import GPT, Block, next_token_loss

from kit.timeline.record import Category

ACTIVE = 2


def profiled(executor):
    import torch.distributed as dist
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    import kit
    from kit.ranks import rank_device

    device = torch.device(rank_device())
    torch.manual_seed(0)
    model = GPT(width=256, context=128, layers=2, heads=4).to(device)
    ids = torch.randint(0, 61, (16, 129), generator=torch.Generator().manual_seed(dist.get_rank())).to(device)
    batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    step = kit.compile_step(
        model, torch.optim.AdamW(model.parameters()), next_token_loss, batch, strategy="ddp", executor=executor
    )
    timeline = kit.profile(step, [batch] * (6 + ACTIVE), warmup=6, active=ACTIVE)
    return timeline, kit.attribute(timeline, step, hardware="h200", artifacts=cache_dir()), step.compiled_graphs


@pytest.fixture(scope="module", params=["inductor", "cuda_graph"])
def found(request, gpu_ranks):
    return request.param, gpu_ranks.world_size, *gpu_ranks.run(profiled, request.param)[0][:2]


def measured_ns(timeline):
    """Device time of each kernel name, summed with nothing but the record's columns."""
    total = {}
    for name, duration, category in zip(timeline.name, timeline.duration_ns, timeline.category, strict=True):
        if category == Category.KERNEL:
            word = timeline.strings[name]
            total[word] = total.get(word, 0) + int(duration)
    return total


def test_every_triton_kernel_of_a_live_step_is_attributed_with_all_its_time(found):
    _, ranks, timeline, table = found
    measured = measured_ns(timeline)
    ours = {}
    for row in table:
        ours[row.kernel] = ours.get(row.kernel, 0) + row.total_ns
    triton = {name: ns for name, ns in measured.items() if name.startswith("triton_")}
    assert len(triton) >= 10
    assert {name: ns for name, ns in ours.items() if name.startswith("triton_")} == triton
    assert all(row.events % (ACTIVE * ranks) == 0 for row in table)
    assert not [note for note in table.notes if note.startswith("not attributed")]


def test_they_lead_to_nodes_and_the_users_lines(found):
    _, _, _, table = found
    lines, first = inspect.getsourcelines(Block.forward)
    number, code = next((first + n, line.strip()) for n, line in enumerate(lines) if "F.gelu" in line)
    triton = [row for row in table if row.kernel.startswith("triton_")]
    assert all(row.nodes for row in triton)
    # Of several kernels over lists nobody knows which did what; a product is a library's, not of what its bias is in.
    fused = [row for row in triton if not row.kernel.startswith("triton_for_")]
    assert all(row.tflops in (0, None) and (row.bandwidth_share or 0) < 1 for row in fused)
    assert sum(row.moved_bytes is not None for row in fused) > 20
    assert all(row.module == "(optimizer)" for row in triton if row.kernel.startswith("triton_for_"))
    gelu = [row for row in triton if "gelu" in row.kernel]
    assert gelu
    assert all(row.line.startswith(f"small_models.py:{number}: {code}") for row in gelu)
    assert any(row.module == "(optimizer)" for row in table)


def test_matrix_products_are_found_with_what_they_achieve(found):
    _, _, _, table = found
    products = [row for row in table if row.kernel.startswith("extern_kernels.")]
    assert products
    assert all(row.tflops > 0 and 0 < row.flops_share < 1 for row in products if "mm" in row.kernel)
    share = next(float(note.split(" %")[0]) for note in table.notes if "of the device time" in note)
    assert share > 80  # the rest: NCCL's kernels, a replay's copies of its inputs


def test_triton_kernels_carry_their_registers_and_instructions(found):
    _, _, _, table = found
    triton = [row for row in table if row.kernel.startswith("triton_")]
    known = [row for row in triton if row.registers is not None]
    assert len(known) > 20  # a kernel compiled in several ways (by other steps too), none of them kept, is left out
    assert [row for row in known if not (0 < row.registers <= 255 and row.instructions)] == []
