"""What a kernel's PTX holds: its instructions by kind, and what it declares.

The grammar and the names of instructions are those of NVIDIA's PTX ISA manual (chapters "Directives" and "Instruction
Set"): a statement ends at `;`, a guard `@%p1` and a label `$L:` may stand before it, `//` and `/* */` are comments.
Counts are of the text, not of what runs: a loop counts once. PTX has virtual registers without bound; what was really
given to a thread is in the cubin (`cubin`).
"""

import re
from collections import Counter
from dataclasses import dataclass

from kit.timeline.error import TraceError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)")
_LABEL = re.compile(r"\A(?:\$?[\w$]+:\s*)+")
_GUARD = re.compile(r"\A@!?%\w+\s+")
_MEMORY = re.compile(r"\.(?P<space>shared|local)\b[^;\[]*\[(?P<bytes>\d+)\]")
_FLOAT = re.compile(r"\.(?:f16|f16x2|bf16|bf16x2|f32|f32x2|f64|tf32|e4m3x2|e5m2x2)\b")

# Instruction families, first match wins; "integer" and "float" arithmetic share opcodes and part by type.
_FAMILIES = (
    ("matrix", r"mma\b|wmma\b|wgmma\.mma|tcgen05\.mma"),
    ("async copy", r"cp\.(?:async|reduce)|tcgen05\.(?:cp|ld|st)"),
    ("global load", r"ld(?:u)?\.(?:[\w:]+\.)*?global|ldu\b"),
    ("global store", r"st\.(?:[\w:]+\.)*?global"),
    ("shared", r"(?:ld|st)\.(?:[\w:]+\.)*?shared|ldmatrix|stmatrix"),
    ("local", r"(?:ld|st)\.(?:[\w:]+\.)*?local"),
    ("parameter", r"ld\.(?:[\w:]+\.)*?(?:param|const)|st\.param"),
    ("generic load", r"ld\b"),
    ("generic store", r"st\b"),
    ("atomic", r"atom\b|red\b|redux\.async"),
    ("shuffle", r"shfl|redux|vote|match|elect|activemask"),
    ("barrier", r"bar\b|barrier|mbarrier|membar|fence|wgmma\.|tcgen05\.|griddepcontrol"),
    ("control", r"bra\b|brx|call|ret\b|exit\b|trap\b|nanosleep"),
    ("special", r"ex2|lg2|sin\b|cos\b|rcp|rsqrt|sqrt|tanh"),
    ("convert", r"cvt|cvta"),
    ("move and compare", r"mov\b|set\b|setp|selp|slct|prmt|isspacep|createpolicy"),
)
_KINDS = tuple((name, re.compile(rf"\A(?:{pattern})")) for name, pattern in _FAMILIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PtxKernel:
    """One entry of a PTX text: `mix` pairs of kind and count, the most first.

    `static_shared_bytes`, `static_local_bytes`: arrays that it declares with a size (Triton takes shared memory at the
    launch instead, which no PTX tells).
    """

    name: str
    target: str
    mix: tuple[tuple[str, int], ...]
    static_shared_bytes: int
    static_local_bytes: int

    @property
    def instructions(self) -> int:
        """All instructions in the text."""
        return sum(count for _, count in self.mix)


def read_ptx(text: str, *, source: str = "PTX") -> tuple[PtxKernel, ...]:
    """The entries of a PTX text, in order. Raises `TraceError` when it has none, or one that does not end."""
    text = _COMMENT.sub(" ", text)
    target = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    found = []
    for entry in _ENTRY.finditer(text):
        start = text.find("{", entry.end())
        end = _closing(text, start)
        if start < 0 or end < 0:
            raise TraceError(f"{source}: entry {entry['name']} has no end; expected its body in braces. Is it cut off?")
        body = text[start + 1 : end]
        counts = Counter(kind_of(statement) for statement in _statements(body))
        sizes = Counter[str]()
        for declared in _MEMORY.finditer(body):
            sizes[declared["space"]] += int(declared["bytes"])
        found.append(
            PtxKernel(
                name=entry["name"], target=target[1] if target else "", mix=tuple(counts.most_common()),
                static_shared_bytes=sizes["shared"], static_local_bytes=sizes["local"],
            )
        )  # fmt: skip
    if not found:
        raise TraceError(f"{source}: holds no .entry; expected PTX text of a kernel")
    return tuple(found)


def kind_of(instruction: str) -> str:
    """The family of one instruction, such as `ld.global.v4.b32 {...}, [%rd1]`."""
    operation = instruction.split(None, 1)[0]
    for name, pattern in _KINDS:
        if pattern.match(operation):
            return name
    return "float" if _FLOAT.search(operation) else "integer and logic"


def _closing(text: str, start: int) -> int:
    depth = 0
    for place in re.finditer(r"[{}]", text[start:]) if start >= 0 else ():
        depth += 1 if place[0] == "{" else -1
        if depth == 0:
            return start + place.start()
    return -1


def _statements(body: str) -> list[str]:
    """Instructions of a body; braces of inline assembly and of operand lists do not matter here."""
    found = []
    for piece in body.split(";"):
        words = piece.strip().lstrip("{}").strip()
        while words.startswith(".loc"):  # the one directive that ends with its line
            words = words.partition("\n")[2].strip()
        words = _LABEL.sub("", words).lstrip("{}").strip()
        while words.startswith(".loc"):
            words = _LABEL.sub("", words.partition("\n")[2].strip())
        words = _GUARD.sub("", words)
        if words and not words.startswith((".", '"')):
            found.append(words)
    return found
