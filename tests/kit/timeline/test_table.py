from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.timeline.read import read
from kit.timeline.table import table, table_by_step

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def test_the_text_shows_milliseconds_shares_and_the_overlap(data: Path) -> None:
    found = table(read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)]))
    assert str(found).splitlines() == [
        "rank  window ms           compute  exposed communication   exposed copy             idle  overlap",
        "   0    160.181   95.972 (59.9 %)          3.002 (1.9 %)  0.297 (0.2 %)  60.911 (38.0 %)   66.8 %",
        "   1    154.797  103.670 (67.0 %)        38.314 (24.8 %)  0.170 (0.1 %)   12.642 (8.2 %)   52.1 %",
    ]


def test_a_rank_without_communication_has_overlap_none_and_an_unknown_rank_is_said(write: Write, span: Span) -> None:
    found = table(read(write([span("kernel", "gemm", 1, 1)], rank=None)))
    assert found.rows == (
        ("unknown", "0.001", "0.001 (100.0 %)", "0.000 (0.0 %)", "0.000 (0.0 %)", "0.000 (0.0 %)", "none"),
    )


def test_rows_of_steps_name_the_step(data: Path) -> None:
    found = table_by_step(read(data / "gloo_ddp_rank0.json.gz"))
    assert found.head[:3] == ("rank", "step", "window ms")
    assert [row[:2] for row in found.rows] == [("0", "ProfilerStep#1"), ("0", "ProfilerStep#2")]


def test_the_html_escapes_names_and_shows_the_notes(write: Write, span: Span) -> None:
    events = [span("user_annotation", "ProfilerStep#1<script>", 0, 9), span("cpu_op", "aten::mm", 1, 2)]
    html = table_by_step(read(write(events, name="a&b.json", rank=None)))._repr_html_()
    assert "ProfilerStep#1&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<li>a&amp;b.json: rank unknown" in html
    assert "<li>CPU-only" in html
    assert html.count("<tr>") == 2
