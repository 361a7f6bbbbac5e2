"""Seeds and samplers on the ranks: runs repeat."""

from kit.ranks import engine
from kit.ranks.group import Ranks

DRAW = "import random, numpy\n(torch.rand(3).tolist(), numpy.random.rand(2).tolist(), random.random())"
TRAIN = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
net = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOOP = """
data = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64)
sampler = DistributedSampler(data, world_size, rank, shuffle=True, seed=0, drop_last=True)
losses = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
losses
"""


def train() -> list[list[float]]:
    with engine.launch(2, threads=1) as ranks:
        ranks.execute(TRAIN)
        ranks.seed(7)
        losses: list[list[float]] = ranks.execute(LOOP)
        return losses


def test_every_generator_repeats_and_ranks_differ(pair: Ranks) -> None:
    assert pair.seed(5) == [5, 6]
    first = pair.execute(DRAW)
    pair.seed(5)
    assert pair.execute(DRAW) == first
    assert first[0] != first[1]


def test_two_training_runs_on_fresh_ranks_are_equal_to_the_last_bit() -> None:
    first = train()
    assert first == train()
    assert len(first[0]) == 4
    assert first[0] != first[1], "dropout and samples differ between the ranks"
