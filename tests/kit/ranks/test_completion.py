"""Names that live on the ranks, completed and described in a real IPython shell."""

from collections.abc import Iterator

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from kit.ranks import errors, magics
from kit.ranks.describe import Docs
from kit.ranks.errors import RanksError
from kit.ranks.group import Ranks


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    magics.register(shell)
    yield shell
    errors.show_files_as(str)


@pytest.fixture
def filled(pair: Ranks) -> Ranks:
    pair.execute("model = torch.nn.Linear(2, 3)\ndef only_there(a: int) -> int:\n    'Adds one.'\n    return a + 1")
    return pair


def completed(shell: InteractiveShell, text: str) -> list[str]:
    """The text with each completion put into its place."""
    with provisionalcompleter():
        found = list(shell.Completer.completions(text, len(text)))
    return [text[: one.start] + one.text + text[one.end :] for one in found]


@pytest.mark.parametrize(
    ("cell", "whole"),
    [
        ("%%ranks\nonly_th", "%%ranks\nonly_there"),
        ("%%ranks\nx = 1\ny = model.wei", "%%ranks\nx = 1\ny = model.weight"),
        ("%%rank 1\nprint(model.in_fea", "%%rank 1\nprint(model.in_features"),
        ("%%ranks --quiet\nf(-model.weight.is_lea", "%%ranks --quiet\nf(-model.weight.is_leaf"),
    ],
)
def test_names_and_attributes_of_the_ranks_complete(
    shell: InteractiveShell, filled: Ranks, cell: str, whole: str
) -> None:
    assert completed(shell, cell) == [whole]


def test_the_notebooks_own_names_are_not_offered_in_a_cell_of_the_ranks(shell: InteractiveShell, filled: Ranks) -> None:
    shell.user_ns["only_theft"] = 1
    assert completed(shell, "%%ranks\nonly_th") == ["%%ranks\nonly_there"]
    assert completed(shell, "only_th") == ["only_theft"]


def test_hidden_names_come_only_when_asked_for(filled: Ranks) -> None:
    assert not [name for name in filled.complete("model.") if name.startswith("model._")]
    assert "model._parameters" in filled.complete("model._para")


def test_nothing_is_called_to_complete(filled: Ranks) -> None:
    filled.execute("called = []\ndef tell():\n    called.append(1)")
    assert filled.complete("tell().") == []
    assert filled.pull("called") == [[], []]


def test_nothing_is_asked_while_a_call_is_made(filled: Ranks) -> None:
    found: list[list[str]] = []
    with filled.output_to(lambda rank, stream, text: found.append(filled.complete("mod"))):
        filled.execute("if rank == 0: print('x')")
    assert found == [[]]


def test_a_question_mark_in_a_cell_shows_what_a_name_is(shell: InteractiveShell, filled: Ranks) -> None:
    for cell in ("%%ranks\nonly_there?", "%%rank 0\n?only_there", "%%ranks\n\nonly_there??\n"):
        docs = shell.run_cell(cell).result
        assert isinstance(docs, Docs)
        assert (docs.name, docs.rank, docs.type) == ("only_there", 0, "function")
        assert repr(docs).split("\n")[:2] == [
            "only_there: function on rank 0",
            "Signature: only_there(a: int) -> int",
        ]
        assert docs.doc == "Adds one."


def test_docs_of_one_rank_and_of_an_attribute(filled: Ranks) -> None:
    filled.execute("here = rank * 10")
    assert filled.docs("here", rank=1).shown == "10"
    assert filled.docs("model.out_features").shown == "3"


def test_docs_of_an_unknown_name_say_so(filled: Ranks) -> None:
    with pytest.raises(RanksError) as caught:
        filled.docs("nothing")
    assert str(caught.value) == (
        "nothing: NameError: name 'nothing' is not defined on rank 0; "
        "expected a name that a %%ranks cell or push() made"
    )


def test_the_line_magic_answers_words(shell: InteractiveShell, filled: Ranks) -> None:
    assert shell.run_cell("%ranks stacks").result.explain() == "all ranks are idle"
    assert shell.run_cell("%ranks reload").result == ()
    assert "model" in shell.run_cell("%ranks restart").result.lost
    with pytest.raises(UsageError, match="write %ranks restart"):
        shell.run_cell("%%ranks restart\n1").raise_error()
