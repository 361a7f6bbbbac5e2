"""Groups of gloo ranks for the tests that train or profile on real processes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@pytest.fixture(scope="session")
def _group_of_two():
    from kit.ranks import launch

    with launch(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def _group_of_four():
    from kit.ranks import launch

    with launch(4) as ranks:
        yield ranks


@contextmanager
def _sent_by_value(module_name: str) -> Iterator[None]:
    """Functions of a test module, and the models they use, go to the ranks whole."""
    import cloudpickle
    import small_models

    modules = [small_models, sys.modules[module_name]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def ranks2(request, _group_of_two):
    """A group of two ranks."""
    with _sent_by_value(request.module.__name__):
        yield _group_of_two


@pytest.fixture
def ranks4(request, _group_of_four):
    """A group of four ranks."""
    with _sent_by_value(request.module.__name__):
        yield _group_of_four
