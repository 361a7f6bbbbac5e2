"""Groups of NCCL ranks, each on its own GPU: one rank, and two."""

import sys

import pytest

GROUPS = {"nccl-1": 1, "nccl-2": 2}


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="module", params=GROUPS)
def gpu_ranks(request):
    import cloudpickle
    import small_models
    import split_models
    import torch

    world_size = GROUPS[request.param]
    if torch.cuda.device_count() < world_size:
        pytest.skip(f"{torch.cuda.device_count()} GPUs here, {request.param} needs {world_size}")
    from kit.ranks import launch

    modules = [small_models, split_models, sys.modules[request.module.__name__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    with launch(world_size, backend="nccl", device="cuda") as ranks:
        yield ranks
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
