"""One measured reading in a process of its own: `WHO FILE`, where WHO is "whole", "chunked", "cached" or "hta".

Loads the trace, takes the split of time and the overlap, and prints one line of JSON: CPU seconds of all (start of
Python and imports included) and of the work alone, peak memory, and what came out. It needs nothing but the reader
that it measures, so a peer may live in another environment.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def ours(file: str, mode: str) -> tuple[float, dict[str, Any]]:
    """Ours, in one of its modes."""
    from kit.timeline.measure import breakdown
    from kit.timeline.read import read

    begun = time.process_time()
    timeline = read(file) if mode == "cached" else read(file, mode=mode, cache=False)  # type: ignore[arg-type]
    [row] = breakdown(timeline)
    return begun, {
        "communication_ns": row.communication_ns,
        "compute_ns": row.compute_ns,
        "overlap_share": row.overlap_share,
        "events": len(timeline),
    }


def hta(file: str) -> tuple[float, dict[str, Any]]:
    """HolisticTraceAnalysis as its documentation uses it."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found, unused-ignore]

    begun = time.process_time()
    analysis = TraceAnalysis(trace_files={0: file}, trace_dir=str(Path(file).parent))
    split = analysis.get_temporal_breakdown(visualize=False)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    return begun, {
        "compute_us": float(split["compute_time(us)"].iloc[0]),
        "overlap_share": float(overlap["comp_comm_overlap_pctg"].iloc[0]) / 100,
    }


def main() -> None:
    """Measure one reading."""
    who, file = sys.argv[1:]
    begun, found = hta(file) if who == "hta" else ours(file, who)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = time.process_time() + children.ru_utime + children.ru_stime
    # VmHWM belongs to this program alone; ru_maxrss would count the parent that was forked.
    status = Path("/proc/self/status").read_text().splitlines()
    [peak] = [int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")]
    print(json.dumps({"cpu": cpu, "work": cpu - begun, "peak": peak, **found}))


if __name__ == "__main__":
    main()
