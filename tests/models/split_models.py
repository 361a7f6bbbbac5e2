"""Models written for tensor parallelism: -1 for the heads, the length read after a colwise module."""

import torch
import torch.nn.functional as F
from small_models import GPT, Block
from torch import nn

# How `split_gpt` is split: its blocks; its vocabulary too; its blocks with activations along the sequence.
PLAN = {"blocks.*.qkv": "colwise", "blocks.*.out": "rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
VOCABULARY = {"token": "rowwise_rep", "head": "colwise_rep"}
SEQUENCE = PLAN | {
    "blocks.0": "split_input", "blocks.*.norm1": "sequence", "blocks.*.norm2": "sequence", "norm": "sequence",
    "head": "colwise_rep",
}  # fmt: skip
PACKED = {"blocks.*.qkv": 3}


class SplitBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x))
        head_width = self.out.in_features // self.heads
        q, k, v = qkv.view(*qkv.shape[:2], 3, -1, head_width).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class FixedHeads(SplitBlock):
    """Fits any width, and computes with half of each head when it is split: what must be found out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x))
        q, k, v = qkv.view(*qkv.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Apart(nn.Module):
    """Attention with projections apart, half as many key heads as query heads, and dropout on what is whole."""

    def __init__(self, width: int = 16, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, width // 2), nn.Linear(width, width // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        q, k, v = (p(normed).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))


class Styles(nn.Module):
    """One module for each style that a GPT does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 8, padding_idx=7)
        self.columns = nn.Embedding(10, 8)
        self.narrow = nn.Linear(8, 4)
        self.wide = nn.Linear(8, 6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.narrow(self.rows(ids)), self.wide(self.columns(ids))], -1)


def split_gpt(block: type[Block] = SplitBlock, **options: object) -> GPT:
    """A GPT of such blocks, with an even vocabulary, the same on every rank."""
    torch.manual_seed(0)
    model = GPT(**{"vocabulary": 62, **options})
    for one in model.blocks:
        one.__class__ = block
    return model
