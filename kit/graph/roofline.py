"""Modelled time of nodes: the roofline. Apart from the prices, because it needs no torch."""

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph


def node_seconds(graph: Graph, *, flops_per_second: float, bytes_per_second: float) -> NDArray[np.float64]:
    """Modelled seconds of each node [n]: max(FLOPs / peak, bytes moved / bandwidth), the roofline.

    Collectives get the time of their memory traffic only: the network is not in this model.
    Raises `ValueError` when a rate is not positive.
    """
    if not (flops_per_second > 0 and bytes_per_second > 0):
        raise ValueError(
            f"flops_per_second={flops_per_second}, bytes_per_second={bytes_per_second}; expected both above "
            "0, for example 60e12 and 1.5e12"
        )
    return np.maximum(graph.flops / flops_per_second, graph.bytes_moved / bytes_per_second)
