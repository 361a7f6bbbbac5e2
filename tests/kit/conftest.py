"""Groups of gloo ranks for the tests that train or profile on real processes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class _Kept:
    """A group that tests share; started when first asked for, and anew when a test closed it or lost a rank."""

    def __init__(self, size):
        self._size = size
        self._ranks = None

    def get(self):
        from kit.ranks import launch

        if self._ranks is None or self._ranks.closed or len(self._ranks.alive) < self._size:
            self.close()
            self._ranks = launch(self._size)
        return self._ranks

    def close(self):
        if self._ranks is not None:
            self._ranks.close()


@pytest.fixture(scope="session")
def _group_of_two():
    kept = _Kept(2)
    yield kept
    kept.close()


@pytest.fixture(scope="session")
def _group_of_four():
    kept = _Kept(4)
    yield kept
    kept.close()


@contextmanager
def _sent_by_value(module_name: str) -> Iterator[None]:
    """Functions of a test module, and the models they use, go to the ranks whole."""
    import against_one_process
    import cloudpickle
    import small_models
    import split_models

    modules = [against_one_process, small_models, split_models, sys.modules[module_name]]
    modules = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]  # two groups
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def ranks2(request, _group_of_two):
    """A group of two ranks."""
    with _sent_by_value(request.module.__name__):
        yield _group_of_two.get()


@pytest.fixture
def ranks4(request, _group_of_four):
    """A group of four ranks."""
    with _sent_by_value(request.module.__name__):
        yield _group_of_four.get()
