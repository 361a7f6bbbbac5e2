"""Read what torch.distributed writes with TORCH_DISTRIBUTED_DEBUG=DETAIL (and TORCH_CPP_LOG_LEVEL=INFO).

Each collective leaves a line with its fingerprint: number, kind, shapes, types. Fields without tensors run together
(`SequenceNumber=1OpType=BARRIER`, pytorch/pytorch#148976), and lines of old versions have no number (#78022). Errors
name the ranks at fault. A file may hold the output of several ranks, as torchrun mixes it.
"""

import re
from collections import defaultdict
from datetime import datetime
from pathlib import Path

from kit.timeline.collective_log import LogPart, Message
from kit.timeline.error import NoTraceError
from kit.timeline.exact import as_int
from kit.timeline.flight_recorder import rank_of
from kit.timeline.log_rows import Entry, RankLog
from kit.timeline.record import UNKNOWN_RANK, Group

_CALL = re.compile(r"\[Rank (\d{1,6})\] Running collective: (CollectiveFingerPrint\(.{0,4000})")
_STAMP = re.compile(r"\[[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6,9}) ")
_NUMBER = re.compile(r"SequenceNumber=(\d{1,18})")
_KIND = re.compile(r"OpType=([A-Za-z_0-9]{1,40})")
_SHAPE = re.compile(r"TensorShape=\[([^\]]{0,2000})\]")
_TYPES = re.compile(r"TensorDtypes=([A-Za-z0-9_ ]{1,200})")
_WHO = re.compile(r"^\[(?:default)?(?:rank ?)?(\d{1,6})\]:?", re.IGNORECASE)
_MISMATCH = re.compile(
    r"Detected mismatch between collectives on ranks\. Rank (\d{1,6}) is running collective: (.{0,4000}?), but "
    r"Rank (\d{1,6}) is running collective: (.{0,4000}?)\.?Collectives differ in the following aspects:\s*(.{1,400})"
)
_MISSING = re.compile(r"\[Rank (\d{1,6})\]:? Ranks ([\d, ]{1,400}) failed to pass monitoredBarrier in (\d{1,12}) ms")
_WATCHDOG = re.compile(
    r"Rank (\d{1,6})\].{0,200}Watchdog caught collective operation timeout: Work\w*\(SeqNum=(\d{1,18}), "
    r"OpType=(\w{1,40}),.{0,200}?ran for (\d{1,12}) milliseconds"
)
_TIMEOUT = re.compile(r"Timed out waiting (\d{1,12})ms for (?:recv|send) operation")
_LOST = re.compile(r"Connection (?:reset|closed) by peer")
_SIGNS = re.compile(rb"\[c10d|CollectiveFingerPrint|monitoredBarrier|ProcessGroup\w+\.cpp")
# DETAIL prints c10d's own names of kinds; recorders the names of Python.
_NAMES = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all",
          "_ALLGATHER_BASE": "_all_gather_base", "ALLTOALL_BASE": "all_to_all"}  # fmt: skip
_GROUP = Group(name="")  # the lines do not say which group they are of
_LONGEST_LINE = 16384


def is_debug_log(raw: bytes) -> bool:
    """Whether a text has lines of c10d."""
    return _SIGNS.search(raw) is not None


def read_debug_log(raw: bytes, path: Path) -> list[RankLog]:
    """The logs of all ranks that wrote into the file. Raises `NoTraceError` for text without a line of c10d.

    Lines of anything else are passed over: a log is mixed with what the program prints.
    """
    if not is_debug_log(raw):
        raise NoTraceError(f"{path}: has no line of c10d; expected a log with TORCH_DISTRIBUTED_DEBUG=DETAIL")
    entries: dict[int, list[Entry]] = defaultdict(list)
    messages: dict[int, list[Message]] = defaultdict(list)
    notes: list[str] = []
    seen: set[int] = set()
    owner: int | None = None
    for line in raw.decode("utf-8", errors="replace").splitlines():
        text = line[:_LONGEST_LINE]
        who = _WHO.match(text)
        if who:
            seen.add(int(who[1]))
        call = _CALL.search(text)
        if call and not _MISMATCH.search(text):
            rank = int(call[1])
            entries[rank].append(_entry(call[2], text, len(entries[rank])))
            continue
        if owner is None and not who:
            owner = rank_of(path, notes)
        message = _message(text, int(who[1]) if who else owner if owner is not None else UNKNOWN_RANK)
        if message and message not in messages[message.rank]:
            messages[message.rank].append(message)
    ranks = sorted(seen | entries.keys() | {rank for rank, said in messages.items() if said})
    if not ranks:
        ranks = [rank_of(path, notes)]
    logs = [
        RankLog(part=LogPart(rank=rank, source=str(path), kind="debug log"), entries=entries[rank],
                messages=messages[rank])
        for rank in ranks
    ]  # fmt: skip
    if not any(entries.values()):
        notes.append(
            f"{path.name}: no collective in the log; run with TORCH_DISTRIBUTED_DEBUG=DETAIL and "
            "TORCH_CPP_LOG_LEVEL=INFO"
        )
    logs[0].notes += notes
    return logs


def _entry(fingerprint: str, line: str, order: int) -> Entry:
    number, kind = _NUMBER.search(fingerprint), _KIND.search(fingerprint)
    shape, types = _SHAPE.search(fingerprint), _TYPES.search(fingerprint)
    return Entry(
        sequence=as_int(number[1]) if number else order,
        name=_name(kind[1]) if kind else "?",
        group=_GROUP,
        sizes_in=f"[{shape[1]}]" if shape else "",
        dtypes=types[1].strip() if types else "",
        elements_in=_elements(shape[1]) if shape else -1,
        created_ns=_stamp(line),
    )


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind.lower())


def _elements(shape: str) -> int:
    count = 1
    for dim in re.findall(r"\d{1,18}", shape):
        count *= int(dim)
    return as_int(count)


def _stamp(line: str) -> int:
    """Nanoseconds since 1 January (the year is not written); -1 without a usable time."""
    found = _STAMP.search(line)
    if found is None:
        return -1
    month, day, hour, minute, second = (int(found[number]) for number in range(1, 6))
    try:
        since = datetime(2024, month, day, hour, minute, second) - datetime(2024, 1, 1)
    except ValueError:
        return -1
    return int(since.total_seconds()) * 1_000_000_000 + int(found[6].ljust(9, "0"))


def _message(line: str, rank: int) -> Message | None:
    if found := _MISMATCH.search(line):
        one, other = int(found[1]), int(found[3])
        number = _NUMBER.search(found[2])
        text = (
            f"rank {one} runs {_said(found[2])}, rank {other} runs {_said(found[4])}; they differ in "
            f"{re.sub('vs ', ' vs ', found[5]).replace('Tensor Tensor', 'tensor').strip()}"
        )
        return Message(rank=one, kind="mismatch", text=text, ranks=(one, other), sequence=as_int(number and number[1]))
    if found := _MISSING.search(line):
        late = tuple(int(number) for number in re.findall(r"\d{1,6}", found[2]))
        text = f"rank {', '.join(map(str, late))} did not come within {found[3]} ms"
        return Message(rank=int(found[1]), kind="missing", text=text, ranks=late)
    if found := _WATCHDOG.search(line):
        text = f"{_name(found[3])} number {found[2]} ran for {found[4]} ms before the watchdog gave up"
        return Message(rank=int(found[1]), kind="timeout", text=text, sequence=int(found[2]))
    if found := _TIMEOUT.search(line):
        return Message(rank=rank, kind="timeout", text=f"waited {found[1]} ms for another rank and gave up")
    if _LOST.search(line):
        return Message(rank=rank, kind="lost", text="the connection to another rank was lost: that rank ended")
    return None


def _said(fingerprint: str) -> str:
    entry = _entry(fingerprint, "", 0)
    return " ".join(part for part in (entry.name, entry.sizes_in and f"of {entry.sizes_in}", entry.dtypes) if part)
