"""Two gloo ranks for the tests that train or profile on real processes."""

import sys

import pytest


@pytest.fixture(scope="session")
def _group_of_two():
    from kit.ranks import launch

    with launch(2) as ranks:
        yield ranks


@pytest.fixture
def ranks2(request, _group_of_two):
    """A group of two ranks; functions of the test's module and its models are sent to them by value."""
    import cloudpickle
    import small_models

    modules = [small_models, sys.modules[request.module.__name__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield _group_of_two
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
