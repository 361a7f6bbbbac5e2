"""Small real models that several tests train: a GPT, a convolutional net, a mixture of experts, two fused streams."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(
        self,
        *,
        vocabulary: int = 61,
        context: int = 16,
        width: int = 16,
        layers: int = 1,
        heads: int = 2,
        tied: bool = False,
    ):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Perceptron(nn.Module):
    """Tokens to logits in four modules: the smallest that trains as a GPT does, where building a step takes long."""

    def __init__(self, *, vocabulary: int = 61, width: int = 16, tied: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids)
        return self.head(x + self.down(F.gelu(self.up(x))))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = x + F.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class Experts(nn.Module):
    """A mixture of experts: each token goes through its two best experts, weighed by the router.

    All experts see all tokens and a mask drops what was not chosen: no capacity, and shapes that no value decides.
    """

    def __init__(self, width: int, experts: int, chosen: int = 2) -> None:
        super().__init__()
        self.chosen, self.router = chosen, nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.router(x)
        best, which = scores.topk(self.chosen, dim=-1)
        picked = F.one_hot(which, scores.shape[-1]).to(x.dtype)
        weight = torch.einsum("btk,btke->bte", best.softmax(-1), picked)
        hidden = F.gelu(torch.einsum("btw,ewh->bteh", x, self.up))
        return torch.einsum("bteh,ehw,bte->btw", hidden, self.down, weight), scores.logsumexp(-1).square()


class MoE(nn.Module):
    """A language model whose one layer is a mixture of experts; returns logits and the router's z-loss a token."""

    def __init__(self, vocabulary: int = 61, width: int = 12, experts: int = 4) -> None:
        super().__init__()
        self.token, self.norm = nn.Embedding(vocabulary, width), nn.LayerNorm(width)
        self.experts, self.head = Experts(width, experts), nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.token(ids)
        mixed, z = self.experts(self.norm(x))
        return self.head(x + mixed), z


class TwoCameras(nn.Module):
    """Two camera streams: each looks at the other by cross-attention, a gate mixes the two."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.left, self.right = (nn.Conv2d(3, width, 2, stride=2) for _ in range(2))
        self.left_to_right, self.right_to_left = (
            nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2)
        )  # fmt: skip
        self.gate, self.head = nn.Linear(2 * width, width), nn.Linear(width, classes)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = (F.gelu(stream(x)).flatten(2).mT for stream, x in ((self.left, left), (self.right, right)))
        a, b = (
            a + self.left_to_right(a, b, b, need_weights=False)[0],
            b + self.right_to_left(b, a, a, need_weights=False)[0],
        )
        share = torch.sigmoid(self.gate(torch.cat([a, b], -1)))
        return self.head((share * a + (1 - share) * b).mean(1))


def expert_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    ids, targets = batch
    logits, z = model(ids)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.01 * z.mean()


def camera_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    left, right, labels = batch
    return F.cross_entropy(model(left, right), labels)


def next_token_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    ids, targets = batch
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def masked_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and count over targets that are not -1 (padding)."""
    ids, targets = batch
    total = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    return total, (targets != -1).sum()
