"""Where nodes come from, told from hand-written metadata."""

import sysconfig
from pathlib import Path

import pytest
import torch

from kit.graph.provenance import module_of, phase_of, source_of, user_line
from kit.graph.record import Phase

TORCH = Path(torch.__file__).parent
USER = 'File "/home/me/model.py", line 12, in forward\n    x = self.norm(x)\n'
INSIDE = f'  File "{TORCH}/nn/modules/normalization.py", line 217, in forward\n    return F.layer_norm(\n'


def test_the_users_line_is_found_above_the_frames_of_torch() -> None:
    assert user_line(USER + INSIDE) == "/home/me/model.py:12: x = self.norm(x)"


def test_carets_below_a_line_are_no_code() -> None:
    trace = 'File "/home/me/model.py", line 3, in forward\n    y = a @ b\n        ~~^~~\n' + INSIDE
    assert user_line(trace) == "/home/me/model.py:3: y = a @ b"


def test_an_installed_model_counts_when_nothing_else_does() -> None:
    file = sysconfig.get_path("purelib") + "/transformers/models/gpt2.py"
    assert user_line(f'File "{file}", line 5, in forward\n    return h\n' + INSIDE) == f"{file}:5: return h"


def test_a_trace_inside_torch_alone_gives_nothing() -> None:
    assert user_line(INSIDE) == ""


def test_the_users_line_wins_over_an_installed_model() -> None:
    file = sysconfig.get_path("purelib") + "/transformers/models/gpt2.py"
    trace = USER + f'  File "{file}", line 5, in forward\n    return h\n'
    assert user_line(trace) == "/home/me/model.py:12: x = self.norm(x)"


def test_notes_of_the_kit_win_over_torchs_own_metadata() -> None:
    meta = {
        "custom": {"kit_phase": "backward", "kit_module": "blocks.1", "kit_source": "a.py:1: f(x)"},
        "nn_module_stack": {"k": ("head", torch.nn.Linear)},
        "stack_trace": USER,
    }
    assert (phase_of(meta), module_of(meta), source_of(meta)) == (Phase.BACKWARD, "blocks.1", "a.py:1: f(x)")


def test_a_backward_node_falls_back_to_the_module_of_its_forward() -> None:
    meta = {"fwd_nn_module_stack": {"a": ("", object), "b": ("blocks.0.mlp", torch.nn.Linear)}}
    assert (phase_of(meta), module_of(meta)) == (Phase.BACKWARD, "blocks.0.mlp")


def test_a_parametrization_is_no_module_of_the_user() -> None:
    stack = {
        "a": ("head", "torch.nn.modules.linear.Linear"),
        "b": ("head.parametrizations.weight", "torch.nn.utils.parametrize.ParametrizationList"),
    }
    assert module_of({"nn_module_stack": stack}) == "head"


@pytest.mark.parametrize("spelling", ["L['self'].blocks.0.attn", "L['self']._modules['blocks'][0].attn"])
def test_paths_of_dynamo_become_plain(spelling: str) -> None:
    assert module_of({"nn_module_stack": {"k": (spelling, torch.nn.Module)}}) == "blocks.0.attn"


def test_an_unknown_phase_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="kit_phase 'sideways' in node metadata; expected one of forward, backward"):
        phase_of({"custom": {"kit_phase": "sideways"}})
