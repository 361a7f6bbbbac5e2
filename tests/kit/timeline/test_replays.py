from pathlib import Path

import pytest

from kit.timeline.read import read
from kit.timeline.replays import operators_by_order, replays


def test_replays_of_a_capture_hold_the_same_events(data: Path) -> None:
    rows = replays(read([data / f"h200_static_cudagraph_rank{rank}.json.gz" for rank in (0, 1)]))
    assert [(row.rank, row.replay, row.events, row.kernels, row.same) for row in rows] == [
        (rank, number, 1030, 857, True) for rank in (0, 1) for number in range(3)
    ]


def test_kernels_of_a_replay_are_attributed_by_order_to_the_step_that_was_captured(data: Path) -> None:
    graph, static = (read(data / f"h200_{kind}_rank0.json.gz") for kind in ("static_cudagraph", "static_bucketed"))
    found = operators_by_order(graph, static, rank=0)
    assert len(found) == 855  # all kernels but the two collectives, on streams of their own
    assert set(found.values()) == {"Torch-Compiled Region: 0/0", "CompiledFunctionBackward", "aten::ones_like",
                                   "aten::_fused_adamw_", "aten::_foreach_add_"}  # fmt: skip


def test_another_program_is_refused_at_its_first_kernel(data: Path) -> None:
    graph, eager = (read(data / f"h200_{kind}_rank0.json.gz") for kind in ("static_cudagraph", "ddp_eager"))
    with pytest.raises(ValueError, match=r"kernel 0 of the replay is 'triton_\w+', that of the other timeline 'void"):
        operators_by_order(graph, eager, rank=0)
    with pytest.raises(ValueError, match="rank 0 replays no CUDA graph"):
        operators_by_order(eager, graph, rank=0)


def test_a_replay_knows_its_line_where_frames_were_recorded(shared_data: Path) -> None:
    [row] = replays(read(shared_data / "public/tracelens/vllm_decode_full_graph_execution.json.gz"))
    assert (row.events, row.where) == (421, "vllm/compilation/cuda_graph.py(208): __call__")
