"""Registers and stack of the kernels in a cubin, read from its ELF sections.

A cubin is a 64-bit ELF file of machine 190. Each kernel has a code section `.text.<kernel>`; `.nv.info` lists
attributes, each one byte format, one byte number, two bytes (a value, or how many bytes follow): number 0x2f is
(symbol, registers of a thread), 0x12 is (symbol, smallest stack in bytes). The layout is not documented by NVIDIA; it
is what `cuobjdump --dump-resource-usage` prints as REG and STACK, and the tests hold it to that tool (CUDA 12.8,
sm_90a). A stack that the PTX does not declare is spilled registers: Triton's `n_spills` is the same number over 4.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kit.timeline.error import TraceError

_CUDA = 190
_REGISTERS, _STACK = 0x2F, 0x12
_SIZED = 0x04  # the attribute's format whose value follows
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinKernel:
    """What the assembler gave one kernel: registers of a thread, bytes of stack of a thread."""

    name: str
    registers: int
    stack_bytes: int


def read_cubin(raw: bytes, *, source: str = "cubin") -> tuple[CubinKernel, ...]:
    """The kernels of a cubin. Raises `TraceError` for bytes that are none, or that break off."""
    if raw[:5] != b"\x7fELF\x02" or len(raw) < 64 or struct.unpack_from("<H", raw, 18)[0] != _CUDA:
        raise TraceError(f"{source}: not a cubin; expected a 64-bit ELF file of machine {_CUDA}")
    try:
        sections = list(_sections(raw))
        symbols = [
            name for section in sections if section[1] == _SYMBOL_TABLE for name in _symbols(raw, section, sections)
        ]
        found: dict[int, dict[int, int]] = {_REGISTERS: {}, _STACK: {}}
        for name, _, start, size, _ in sections:
            if name == ".nv.info":
                for number, symbol, value in _attributes(raw[start : start + size]):
                    found.get(number, {})[symbol] = value
        names = {name.removeprefix(".text.") for name, *_ in sections if name.startswith(".text.")}
        return tuple(
            CubinKernel(name=symbols[symbol], registers=registers, stack_bytes=found[_STACK].get(symbol, 0))
            for symbol, registers in found[_REGISTERS].items()
            if symbols[symbol] in names
        )
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise TraceError(f"{source}: breaks off or is damaged ({error}); expected a whole cubin") from error


_Section = tuple[str, int, int, int, int]  # name, type, start, size, link


def _sections(raw: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", raw, 40)
    size, count, names_at = struct.unpack_from("<HHH", raw, 58)
    rows = [_SECTION.unpack_from(raw, table + size * number) for number in range(count)]
    text = rows[names_at][4]
    for row in rows:
        yield _text(raw, text + row[0]), row[1], row[4], row[5], row[6]


def _symbols(raw: bytes, section: _Section, sections: list[_Section]) -> Iterator[str]:
    _, _, start, size, link = section
    for place in range(start, start + size, _SYMBOL.size):
        yield _text(raw, sections[link][2] + _SYMBOL.unpack_from(raw, place)[0])


def _text(raw: bytes, start: int) -> str:
    return raw[start : raw.index(b"\0", start)].decode()


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(number, symbol, value) of attributes that hold two 32-bit numbers."""
    place = 0
    while place + 4 <= len(info):
        form, number, size = struct.unpack_from("<BBH", info, place)
        place += 4
        if form != _SIZED:
            continue
        if size == 8:
            symbol, value = struct.unpack_from("<II", info, place)
            yield number, symbol, value
        place += size
