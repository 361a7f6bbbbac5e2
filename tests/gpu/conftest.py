"""Two NCCL ranks, each on its own GPU; skipped where there are fewer than two."""

import sys

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def _group_of_two_gpus():
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} GPUs here, these tests need 2")
    from kit.ranks import launch

    with launch(2, backend="nccl", device="cuda") as ranks:
        yield ranks


@pytest.fixture
def gpus2(request, _group_of_two_gpus):
    import cloudpickle
    import small_models

    modules = [small_models, sys.modules[request.module.__name__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield _group_of_two_gpus
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
