"""Run the text of a cell as IPython does: the value of a last expression is the cell's value.

The source is kept in `linecache` under the cell's name, on the rank and in the notebook, so that
tracebacks show its lines.
"""

import ast
import io
import linecache
import tokenize
from types import CodeType
from typing import Any


def compile_cell(source: str, filename: str) -> tuple[CodeType, CodeType | None]:
    """The statements of a cell and, when its last one is an expression without `;`, that expression.

    Raises SyntaxError.
    """
    tree = ast.parse(source, filename)
    last: ast.Expression | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not _is_silenced(source):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]  # an ast.Expr, tested above
    body = compile(tree, filename, "exec")
    return body, compile(last, filename, "eval") if last else None


def remember_source(source: str, filename: str) -> None:
    """Let tracebacks find the lines of a cell; the entry is never checked against a file."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def run_cell(source: str, filename: str, namespace: dict[str, Any]) -> Any:
    """Run a cell in a namespace; its value or None. Raises what the cell raises."""
    remember_source(source, filename)
    body, last = compile_cell(source, filename)
    exec(body, namespace)
    return eval(last, namespace) if last else None


def _is_silenced(source: str) -> bool:
    """Whether the last expression ends with `;` (a comment may follow)."""
    if ";" not in source:  # taking a cell apart costs more than running most
        return False
    passed_over = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    last = [token.string for token in tokens if token.type not in passed_over][-1:]
    return last == [";"]
