"""Real inputs for a step's graph, on which its rewrites are compared: the step's own tensors, disturbed.

Biases that start at zero and optimizer state that starts empty would hide that a pass mixed them up, so
small positive noise is added. The example batch is taken as it is: token numbers must stay in range.
"""

import torch

from kit.graph.liveness import peak_bytes
from kit.graph.record import Graph
from kit.step.inputs import Inputs

# Up to here running the graph once takes about as long as tracing it, or less (a second of one core).
MAX_BYTES, MAX_FLOPS = 64e6, 4e9


def sample_of(inputs: Inputs, graph: Graph, *, asked: bool | None) -> list[torch.Tensor] | None:
    """Copies of the inputs with noise, in graph order; None when results are not to be compared.

    `graph`: the step as traced. `asked`: True for any size, False never, None while the peak is at most 64 MB and the
    step at most 4 GFLOP. Not for a step on fake tensors, which has no values.
    """
    if asked is False:
        return None
    if asked is None and (graph.flops.sum() > MAX_FLOPS or peak_bytes(graph) > MAX_BYTES):
        return None
    states = {id(tensor) for state in inputs.states for tensor in state.values()}
    rates = {id(tensor) for tensor in inputs.rates}
    held = {id(tensor) for tensor in inputs.held()} - rates
    return [_disturbed(t, is_state=id(t) in states) if id(t) in held else t for t in inputs.examples()]


def _disturbed(tensor: torch.Tensor, *, is_state: bool) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())).to(tensor)
    return tensor + 0.5 + noise if is_state else tensor + 0.1 * noise
