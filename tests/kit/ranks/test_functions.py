"""A function goes once when it is nothing but code, and whole whenever it may mean something else."""

import math
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from kit.ranks import functions
from kit.ranks.functions import KnownFunctions, SentFunctions
from kit.ranks.group import Ranks


def made(text: str, name: str = "f", **given: Any) -> Callable[..., Any]:
    """A function as a cell of the notebook makes it."""
    namespace: dict[str, Any] = {"__name__": "__main__", **given}
    exec(compile(text, "<cell>", "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return 1",
        "def f(x: int) -> 'str': return [str(n) for n in range(x)]",
        "def f(): return math.pi",
        "def f():\n    global seen\n    seen = 1\n    return seen",
    ],
)
def test_code_alone_has_a_number(text: str) -> None:
    sent = SentFunctions()
    first = sent.number_of(made(text, math=math), cloudpickle.dumps)
    assert first is not None


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return rate",  # a value of the person's
        "def f(x=1): return x",
        "def f(*, x=1): return x",
        "def f(x: rate): return x",
        "def f(): return lambda: 1",  # torch.compile keeps what it knows with the code
        "def g(n):\n    def h(): return n\n    return h\nf = g(1)",
        "def f(): return 1\nf.rate = 2",
        "def f(): return f",
    ],
)
def test_what_may_mean_something_else_goes_whole(text: str) -> None:
    assert SentFunctions().number_of(made(text, rate=0.1), cloudpickle.dumps) is None


def test_a_name_that_gets_a_value_later_is_seen() -> None:
    sent, f = SentFunctions(), made("def f(): return rate")
    assert sent.number_of(f, cloudpickle.dumps) is not None
    f.__globals__["rate"] = 2
    assert sent.number_of(f, cloudpickle.dumps) is None


def test_numbers_are_kept_apart_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "SLOTS", 3)
    sent, known = SentFunctions(), KnownFunctions()
    all_of_them = [made(f"def f(): return {n}") for n in range(5)]
    for turn in range(2):
        for n, function in enumerate(all_of_them):
            told = sent.number_of(function, cloudpickle.dumps)
            assert told is not None
            number, packed = told
            assert number == 5 * turn + n
            known.learn(number, packed)
            assert known.of(number)() == n
    with pytest.raises(LookupError):
        known.of(9 - 3)


def test_each_call_has_globals_of_its_own() -> None:
    sent, known = SentFunctions(), KnownFunctions()
    told = sent.number_of(
        made("def f():\n    global n\n    n = globals().get('n', 0) + 1\n    return n"), cloudpickle.dumps
    )
    assert told is not None
    known.learn(*told)
    assert [known.of(told[0])(), known.of(told[0])()] == [1, 1]


def test_on_ranks_the_newest_text_runs_and_a_failure_is_no_loss(pair: Ranks) -> None:
    good, bad = made("def f(): return 'one'"), made("def f(): raise ValueError('boom')")
    assert pair.run(good) == ["one"] * 2
    for _ in range(2):
        with pytest.raises(Exception, match="boom"):
            pair.run(bad)
    assert pair.run(good) == ["one"] * 2
    assert pair.run(made("def f(): return 'two'")) == ["two"] * 2
    pair.restart()
    assert pair.run(good) == ["one"] * 2


def test_a_library_is_a_module_that_is_there() -> None:
    f = made("def f(): return other.x", other=types.ModuleType("other"))
    assert SentFunctions().number_of(f, cloudpickle.dumps) is None
