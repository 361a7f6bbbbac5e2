"""What tests of trained modules share: batches, optimizers, and how far a value is from one process's."""

import torch


def token_batches(count=5, rows=8, length=17):
    ids = torch.randint(0, 61, (count, rows, length), generator=torch.Generator().manual_seed(1))
    return [(step[:, :-1], step[:, 1:].clone()) for step in ids]


def optimizer_of(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    return torch.optim.AdamW(parameters, lr=1e-3)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def relative(seen, expected):
    return ((seen - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()
