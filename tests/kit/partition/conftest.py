"""Hand-made graphs and small models for the tests of the partition room."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from kit.graph.record import Graph, Kind, Phase


@dataclass(frozen=True, kw_only=True)
class Row:
    """One node of a hand-made graph; `alias` and `writes` name the node whose memory it shares or mutates."""

    name: str
    reads: Sequence[str] = ()
    kind: Kind = Kind.COMPUTE
    nbytes: int = 4
    is_tensor: bool = True
    alias: str = ""
    writes: str = ""
    parameter: str = ""
    shape: str = "float32[1]"
    target: str = "aten.add.Tensor"
    module: str = ""


def build(rows: Sequence[Row], *, name: str = "made") -> Graph:
    """The Graph of some rows, in order."""
    at = {row.name: number for number, row in enumerate(rows)}
    storage: dict[str, int] = {}
    for number, row in enumerate(rows):
        storage[row.name] = (storage[row.alias] if row.alias else number) if row.is_tensor else -1
    edges = [(at[source], number) for number, row in enumerate(rows) for source in row.reads]
    ends = np.array(edges, np.int32).reshape(-1, 2)
    moved = [0 if row.kind is not Kind.COMPUTE else row.nbytes for row in rows]
    return Graph(
        name=name,
        names=tuple(row.name for row in rows),
        targets=tuple(row.target for row in rows),
        kinds=tuple(row.kind for row in rows),
        phases=(Phase.FORWARD,) * len(rows),
        modules=tuple(row.module for row in rows),
        sources=("model.py:7: y = f(x)",) * len(rows),
        shapes=tuple(row.shape if row.is_tensor else "" for row in rows),
        groups=("",) * len(rows),
        parameter=tuple(row.parameter for row in rows),
        bytes_out=np.array([row.nbytes if row.is_tensor else 0 for row in rows], np.int64),
        bytes_moved=np.array(moved, np.int64),
        flops=np.zeros(len(rows)),
        storage=np.array([storage[row.name] for row in rows], np.int32),
        mutates=np.array([storage[row.writes] if row.writes else -1 for row in rows], np.int32),
        edge_from=ends[:, 0].copy(),
        edge_to=ends[:, 1].copy(),
    )


def build_dag(edges: Sequence[tuple[int, int]], nbytes: Sequence[int]) -> Graph:
    """A graph of plain compute nodes n0, n1, ... that make `nbytes` each."""
    return build(
        [
            Row(name=f"n{node}", reads=[f"n{a}" for a, b in edges if b == node], nbytes=count)
            for node, count in enumerate(nbytes)
        ]
    )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        q, k, v = (
            part.view(batch, rows, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, rows, width))


class Experts(nn.Module):
    """Top-2 of some experts, dense dispatch: every expert sees every token."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(feed_forward(width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probability = self.gate(x).softmax(-1)
        weight, chosen = probability.topk(2, -1)
        weight = torch.zeros_like(probability).scatter(-1, chosen, weight / weight.sum(-1, keepdim=True))
        return sum(expert(x) * weight[..., n : n + 1] for n, expert in enumerate(self.experts))


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.mix = nn.LayerNorm(width), Attention(width, heads)
        self.between, self.inner = nn.LayerNorm(width), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.before(x))
        return x + self.inner(self.between(x))


class Gpt(nn.Module):
    """A decoder-only transformer over `[batch, rows]` ids."""

    def __init__(self, vocabulary: int, rows: int, width: int, heads: int, inner: Sequence[nn.Module]) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(rows, width)
        self.blocks = nn.ModuleList(Block(width, heads, module) for module in inner)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TwoConvolutions(nn.Sequential):
    def __init__(self, read: int, made: int) -> None:
        super().__init__(
            nn.Conv2d(read, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU(inplace=True),
            nn.Conv2d(made, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    """Contracts and expands `[batch, 3, rows, columns]`, with a concatenated skip at each level."""

    def __init__(self, base: int, levels: int) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(TwoConvolutions(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.pool = nn.MaxPool2d(2)
        pairs = list(pairwise(widths))[::-1]
        self.widen = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(TwoConvolutions(b, a) for a, b in pairs)
        self.head = nn.Conv2d(base, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for level in self.down[:-1]:
            skips.append(level(x))
            x = self.pool(skips[-1])
        x = self.down[-1](x)
        for widen, level, skip in zip(self.widen, self.up, reversed(skips), strict=True):
            x = level(torch.cat([skip, widen(x)], 1))
        return self.head(x)


def convolution(read: int, made: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(read, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made))


class Bottleneck(nn.Module):
    def __init__(self, read: int, made: int, stride: int) -> None:
        super().__init__()
        inner = made // 4
        self.short = nn.Identity() if read == made else convolution(read, made, 1, stride)
        self.first, self.second = convolution(read, inner, 1), convolution(inner, inner, 3, stride)
        self.third = convolution(inner, made, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.third(functional.relu(self.second(functional.relu(self.first(x)))))
        y += self.short(x)
        return functional.relu(y)


class ResNet50(nn.Module):
    """The usual one, stride in the 3x3 convolution; the residual is added in place."""

    def __init__(self) -> None:
        super().__init__()
        blocks, read = [], 64
        for made, count, stride in ((256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(read, made, 1 if number else stride))
                read = made
        self.stem, self.pool = convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)
        self.blocks, self.mean, self.head = nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(functional.relu(self.stem(x)))
        return self.head(self.mean(self.blocks(x)).flatten(1))


@pytest.fixture(scope="session")
def make_graph() -> Callable[..., Graph]:
    return build


@pytest.fixture(scope="session")
def make_dag() -> Callable[..., Graph]:
    return build_dag


@pytest.fixture(scope="session")
def row() -> type[Row]:
    return Row


@pytest.fixture
def small_gpt() -> Gpt:
    torch.manual_seed(0)
    return Gpt(64, 16, 32, 2, [feed_forward(32) for _ in range(4)])


@pytest.fixture
def tied_gpt(small_gpt: Gpt) -> Gpt:
    small_gpt.head.weight = small_gpt.token.weight
    return small_gpt


@pytest.fixture
def small_moe() -> Gpt:
    torch.manual_seed(0)
    return Gpt(64, 16, 32, 2, [Experts(32, 4) for _ in range(2)])


@pytest.fixture
def small_unet() -> UNet:
    torch.manual_seed(0)
    return UNet(8, 3)


@pytest.fixture(scope="session")
def reference_models() -> dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]]:
    """The models of the golden table and their batches, without memory: on the meta device."""

    def on_meta(model: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.float32):
        def make() -> tuple[nn.Module, torch.Tensor]:
            with torch.device("meta"):
                return model(), torch.empty(shape, dtype=dtype)

        return make

    return {
        "unet": on_meta(lambda: UNet(64, 4), 4, 3, 128, 128),
        "resnet50": on_meta(ResNet50, 8, 3, 224, 224),
        "moe": on_meta(lambda: Gpt(8192, 256, 512, 8, [Experts(512, 8) for _ in range(6)]), 4, 256, dtype=torch.long),
        "gpt2": on_meta(
            lambda: Gpt(50257, 256, 768, 12, [feed_forward(768) for _ in range(12)]), 4, 256, dtype=torch.long
        ),
    }
