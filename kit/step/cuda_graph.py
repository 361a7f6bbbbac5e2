"""Run a compiled step as one CUDA graph: one launch for the whole step, collectives included.

The first steps run as they are (they compile, and NCCL makes its communicators); then one step is
captured and every later one is a replay over the same memory. Batches are copied into static
buffers. The graph is dropped before a group is aborted or destroyed: with captured NCCL
collectives alive, `destroy_process_group` hangs (measured, torch 2.11).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kit._torch import flight
from kit._torch.groups import before_abort

WARM_UP_STEPS = 3


class CudaGraphRun:
    """Calls `run(*held, *batch)` a few times, then captures it and replays.

    `held`: how many leading inputs keep their memory from call to call (parameters, state).
    """

    def __init__(self, run: Callable[..., Sequence[torch.Tensor]], *, held: int) -> None:
        self.run = run
        self._held = held
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []
        self._tell = self.forget  # held here: the list of those to tell is weak
        before_abort(self._tell)

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """One step; the outputs are copies that the next replay does not overwrite."""
        if self._graph is None and self._calls < WARM_UP_STEPS:
            self._calls += 1
            return self._beside(inputs)
        if self._graph is None:
            self._capture(inputs)
        for static, new in zip(self._batch, inputs[self._held :], strict=True):
            static.copy_(new, non_blocking=True)
        if self._graph is not None:
            self._graph.replay()
        return [output.clone() for output in self._outputs]

    def forget(self) -> None:
        """Drop the graph; the next call warms up again."""
        self._graph, self._outputs, self._calls = None, [], 0

    def _beside(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on a side stream, as work that is captured later must have run before."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = list(self.run(*inputs))
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, inputs: Sequence[torch.Tensor]) -> None:
        self._batch = [tensor.clone() for tensor in inputs[self._held :]]
        graph = torch.cuda.CUDAGraph()
        flight.silence()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._outputs = list(self.run(*inputs[: self._held], *self._batch))
        self._graph = graph
