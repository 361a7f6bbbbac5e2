"""Inductor's own output for Triton (2.13, triton 3.6; tests/data/triton/inductor_output_code.txt) and its JSON texts.

The code was written for: y = layer_norm(x); z = gelu(y @ w); a = relu(z + 1); relu(a @ w + 1).sum(1).
"""

import json
from pathlib import Path

import pytest

from kit.timeline.error import TraceError
from kit.timeline.origins import (
    GraphOrigins,
    KernelOrigins,
    Origin,
    joined,
    origins_of_text,
    read_output_code,
    resolved,
)

KERNELS = (
    "triton_per_fused_native_layer_norm_0", "extern_kernels.mm", "triton_poi_fused_add_gelu_relu_1",
    "extern_kernels.mm", "triton_per_fused_add_relu_sum_2",
)  # fmt: skip


def test_calls_of_real_triton_code_come_in_order_with_the_users_variables(data: Path) -> None:
    [graph] = read_output_code(data / "triton" / "inductor_output_code.txt").graphs
    assert tuple(call.kernel for call in graph.calls) == KERNELS
    assert [call.nodes for call in graph.calls] == [
        ("y",), ("y", "matmul"), ("z", "add", "a"), ("z", "add", "a", "matmul_1"), ("add_1", "relu_1", "sum_1"),
    ]  # fmt: skip


def test_json_of_level_two_names_nodes_by_the_graphs_own_code(data: Path) -> None:
    code = (data / "triton" / "inductor_output_code.txt").read_text()
    stack = (
        '  File "<eval_with_key>.7", line 9, in forward\n    gelu_4 = torch.ops.aten.gelu.default(mm_2);  mm_2 = None\n'
    )
    told = {"triton_poi_fused_add_gelu_relu_1:3": [stack, stack.replace("gelu_4", "add_2")]}
    graph = origins_of_text(code, key="fabc", stacks_of=json.dumps(told))
    assert graph.keys == ("fabc",)
    assert [call.nodes for call in graph.calls][2] == ("gelu_4", "add_2")
    assert [call.nodes for call in graph.calls][1] == ("y", "matmul")  # the comment, where JSON says nothing


def test_json_of_level_one_gives_nodes_before_grad_and_the_users_line(data: Path) -> None:
    code = (data / "triton" / "inductor_output_code.txt").read_text()
    stack = (
        '  File "/home/me/net.py", line 12, in forward\n    z = F.gelu(y @ self.w)\n'
        '  File "/usr/lib/python3.11/site-packages/torch/nn/functional.py", line 5, in gelu\n    return x'
    )
    nodes = {"cppCodeToPost": {"triton_poi_fused_add_gelu_relu_1:3": ["mul_4", "erf"]}, "postToPre": {"erf": ["z"]}}
    graph = origins_of_text(
        code, nodes_of=json.dumps(nodes), stacks_of=json.dumps({"triton_poi_fused_add_gelu_relu_1:3": [stack]})
    )
    assert graph.calls[2].nodes == ("mul_4", "z")
    assert graph.calls[2].lines == ("/home/me/net.py:12: z = F.gelu(y @ self.w)",)


def test_ranks_with_a_key_each_share_a_graph() -> None:
    call = Origin(kernel="triton_poi_fused_0", nodes=("add",))
    parts = [KernelOrigins(graphs=(GraphOrigins(keys=(key,), calls=(call,)),), notes=("n",)) for key in ("a", "b")]
    other = KernelOrigins(graphs=(GraphOrigins(keys=("c",), calls=(call, call)),))
    whole = joined([*parts, other])
    assert [graph.keys for graph in whole.graphs] == [("a", "b"), ("c",)]
    assert whole.notes == ("n",)
    assert repr(whole) == "KernelOrigins(2 graphs, 3 kernel calls, 3 with their nodes)"


def test_a_call_is_resolved_with_the_nodes_of_those_before() -> None:
    seen = []
    graph = GraphOrigins(
        keys=(), calls=tuple(Origin(kernel=str(n), nodes=nodes) for n, nodes in enumerate([("a",), ("a", "b"), ("c",)]))
    )
    resolved(graph, lambda call, before: seen.append(before) or call)
    assert seen == [set(), {"a"}, {"a", "b"}]


def test_what_is_no_output_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("def call(args):\n    return args\n")
    with pytest.raises(TraceError, match="calls no kernel; expected Inductor's output code"):
        read_output_code(tmp_path / "x.py")
    with pytest.raises(TraceError, match=r"Inductor's provenance: .*expected its node mappings"):
        origins_of_text("", nodes_of="{")
