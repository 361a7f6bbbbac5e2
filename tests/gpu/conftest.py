"""Groups of ranks on GPUs: one NCCL rank, two gloo ranks that share a GPU, two NCCL ranks with one each."""

import sys

import pytest

GROUPS = {"nccl-1": (1, "nccl"), "gloo-2": (2, "gloo"), "nccl-2": (2, "nccl")}


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="module", params=GROUPS)
def gpu_ranks(request):
    import cloudpickle
    import small_models
    import torch

    world_size, backend = GROUPS[request.param]
    needed = world_size if backend == "nccl" else 1
    if torch.cuda.device_count() < needed:
        pytest.skip(f"{torch.cuda.device_count()} GPUs here, {request.param} needs {needed}")
    from kit.ranks import launch

    modules = [small_models, sys.modules[request.module.__name__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    with launch(world_size, backend=backend, device="cuda") as ranks:
        yield ranks
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
