"""Each rank's split of time as a small table.

The numbers are those of `measure`; this module only writes them down, with the notes under them, so that a reader
never sees a share without knowing what it is a share of.
"""

from kit.tables import Table
from kit.timeline.measure import Breakdown, breakdown, breakdown_by_step, breakdown_within
from kit.timeline.record import UNKNOWN_RANK, Timeline

_HEAD = ("window ms", "compute", "exposed communication", "exposed copy", "idle", "overlap")


def table(timeline: Timeline) -> Table:
    """One row a rank: its whole window, in milliseconds and shares of that window.

    "overlap" is the share of communication that compute hides, "none" without communication.
    """
    rows = tuple((_rank(row), *_cells(row)) for row in breakdown(timeline))
    return Table(head=("rank", *_HEAD), rows=rows, notes=timeline.notes, left=())


def table_by_step(timeline: Timeline) -> Table:
    """One row for each step of each rank, with the columns of `table`."""
    rows = tuple((_rank(row), row.step, *_cells(row)) for row in breakdown_by_step(timeline))
    return Table(head=("rank", "step", *_HEAD), rows=rows, notes=timeline.notes, left=(1,))


def table_within(timeline: Timeline, start_ns: int, end_ns: int) -> Table:
    """One row a rank with the columns of `table`, of what lies in [start_ns, end_ns)."""
    rows = tuple((_rank(row), *_cells(row)) for row in breakdown_within(timeline, start_ns, end_ns))
    return Table(head=("rank", *_HEAD), rows=rows, left=())


def _rank(row: Breakdown) -> str:
    return "unknown" if row.rank == UNKNOWN_RANK else str(row.rank)


def _cells(row: Breakdown) -> tuple[str, ...]:
    parts = (row.compute_ns, row.exposed_communication_ns, row.exposed_copy_ns, row.idle_ns)
    overlap = "none" if row.overlap_share is None else f"{100 * row.overlap_share:.1f} %"
    return (f"{row.window_ns / 1e6:.3f}", *(_share(part, row.window_ns) for part in parts), overlap)


def _share(part_ns: int, window_ns: int) -> str:
    return f"{part_ns / 1e6:.3f} ({100 * part_ns / window_ns if window_ns else 0.0:.1f} %)"
