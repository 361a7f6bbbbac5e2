"""`%%ranks`, `%%rank` and `%ranks`: cells that run on the ranks.

A thin face on `Ranks.execute`. IPython is imported only when this module is, which `%load_ext kit` does.
"""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# IPython's magic_arguments has no types.

import linecache
import re
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from kit.ranks.completion import complete_cell, text_before
from kit.ranks.describe import Docs
from kit.ranks.engine import current
from kit.ranks.errors import CellSyntaxError, RanksError, show_files_as
from kit.ranks.group import Ranks
from kit.ranks.output import discard
from kit.ranks.renewal import Renewal
from kit.ranks.stacks import Stacks
from kit.ranks.status import Status, status

_QUIET = argument("--quiet", action="store_true", help="show nothing of what the ranks write")
_TIMEOUT = argument("--timeout", type=float, default=None, metavar="S", help="stop the cell after S seconds")
_ASKED = re.compile(r"\?{0,2}([^\W\d][\w.]*)\?{0,2}")
_BEFORE_OTHERS = 1000
_GROUP = argument("--group", default=None, metavar="NAME", help="variable that holds the group; default: the latest")


@magics_class
class RanksMagics(Magics):
    """The magics of the ranks."""

    @magic_arguments()
    @argument("what", nargs="?", choices=("status", "stacks", "reload", "restart"), help="for %%ranks without a cell")
    @argument("--only", default=None, metavar="RANKS", help="ranks to run on, as in 0,2-3; default: all")
    @_QUIET
    @_TIMEOUT
    @_GROUP
    @no_var_expand
    @line_cell_magic
    def ranks(
        self, line: str, cell: str | None = None
    ) -> list[Any] | Status | Stacks | Renewal | Docs | tuple[str, ...] | None:
        """Run the cell on all ranks; as `%ranks`, show what they are doing.

        `%ranks stacks` says why they are stuck, `%ranks reload` loads edited modules anew, `%ranks restart` starts
        all ranks anew. A cell that is only `name?` shows what that name is on the first rank.

        What ranks write appears as it comes, with the rank in front. Returns the values of the cell's last expression
        as a list, one for each rank, or nothing when all are None.
        """
        arguments = parse_argstring(self.ranks, line)
        group = self._group(arguments.group)
        if cell is None:
            return _answer(group, arguments.what)
        if arguments.what is not None:
            raise UsageError(f"%%ranks {arguments.what}: expected options only; write %ranks {arguments.what}")
        chosen = None if arguments.only is None else parse_ranks(arguments.only)
        return self._execute(group, cell, chosen, arguments)

    @magic_arguments()
    @argument("only", metavar="RANKS", help="the rank to run on; also 0,2-3")
    @_QUIET
    @_TIMEOUT
    @_GROUP
    @no_var_expand
    @cell_magic
    def rank(self, line: str, cell: str) -> Any:
        """Run the cell on one rank; returns the value of its last expression (a list for several ranks)."""
        arguments = parse_argstring(self.rank, line)
        chosen = parse_ranks(arguments.only)
        values = self._execute(self._group(arguments.group), cell, chosen, arguments)
        return values[0] if isinstance(values, list) and len(chosen) == 1 else values

    def _execute(self, group: Ranks, cell: str, chosen: list[int] | None, arguments: Any) -> list[Any] | Docs | None:
        asked = _ASKED.fullmatch(cell.strip())
        if asked is not None and "?" in cell:
            return group.docs(asked[1], rank=chosen[0] if chosen else None)
        # The line of the magic counts: line numbers in errors are those of the notebook's cell.
        code = "\n" + cell
        name = _cell_name(self.shell, code)
        with group.output_to(discard if arguments.quiet else group.output):
            try:
                values = group.execute(code, ranks=chosen, filename=name, timeout=arguments.timeout)
            except SyntaxError as error:  # IPython would show the way through the kit
                raise CellSyntaxError("".join(traceback.format_exception_only(error)).strip()) from None
        return None if all(value is None for value in values) else values

    def _group(self, name: str | None) -> Ranks:
        if name is None:
            group = current()
            if group is None:
                raise RanksError("no group of ranks is open; expected one. Call kit.launch(2) first.")
            return group
        found = cast(Any, self.shell).user_ns.get(name)
        if not isinstance(found, Ranks):
            raise RanksError(
                f"--group {name}: expected a variable that holds a group of ranks, found "
                f"{'nothing' if found is None else type(found).__name__}. Write {name} = kit.launch(2) first."
            )
        return found


def _answer(group: Ranks, what: str | None) -> Status | Stacks | Renewal | tuple[str, ...]:
    match what:
        case "stacks":
            return group.stacks()
        case "reload":
            return group.reload()
        case "restart":
            return group.restart()
        case _:
            return status(group)


def parse_ranks(text: str) -> list[int]:
    """Rank numbers of a text such as `0,2-3`. Raises UsageError."""
    chosen: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise UsageError(f"ranks {text!r}: expected numbers and ranges such as 0,2-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"ranks {text!r}: the range {part.strip()} runs backwards; expected {last}-{first}")
        chosen += range(first, last + 1)
    return sorted(set(chosen))


def register(ipython: Any) -> None:
    """Add the magics to an IPython shell, and name its cells in errors as it does."""
    ipython.register_magics(RanksMagics)

    def name(file: str) -> str:
        number = _number_of(ipython, file)
        return f"<cell {number}>" if number else file

    show_files_as(name)

    def find(line: str) -> Ranks | None:
        named = re.search(r"--group[ =](\w+)", line)
        found = ipython.user_ns.get(named[1]) if named else current()
        return found if isinstance(found, Ranks) and not found.closed else None

    ipython.Completer.custom_matchers.append(_matcher(find))


def _matcher(find_group: Callable[[str], Ranks | None]) -> Any:
    """Completes names of the ranks in their cells, and keeps those of the notebook out there."""

    @context_matcher(identifier="kit.ranks", priority=_BEFORE_OTHERS)
    def matcher(context: CompletionContext) -> Any:
        text = text_before(context.full_text, line=context.cursor_line, column=context.cursor_position)
        found = complete_cell(text, token=context.token, find_group=find_group)
        completions = [SimpleCompletion(text=word, type="instance") for word in found.words]
        if not completions:
            return {"completions": []}
        return {"completions": completions, "matched_fragment": found.fragment, "suppress": True}

    return matcher


def _number_of(shell: Any, file: str) -> str | None:
    """The number of the notebook cell that a code file is; None for another file."""
    found = shell.compile.format_code_name(file)  # ("Cell", "In[5]") for a cell
    match = re.fullmatch(r"In\[(\d+)\]", found[1]) if found else None
    return match[1] if match else None


def _cell_name(shell: Any, code: str) -> str:
    """The name in tracebacks of the cell that runs; a second text from the same cell gets a number more.

    The shell's own count may stand at the next cell already, so the cell is looked for among the callers.
    """
    frame: FrameType | None = sys._getframe()
    number: str | None = None
    while frame is not None and number is None:
        number = _number_of(shell, frame.f_code.co_filename)
        frame = frame.f_back
    first = name = f"<cell {number or shell.execution_count}>"
    again = 1
    while name in linecache.cache and "".join(linecache.getlines(name)) != code:
        again += 1
        name = f"{first[:-1]}.{again}>"
    return name
