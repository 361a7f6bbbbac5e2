"""Report C13: event names that Kineto wrote without escaping, and files that break off."""

import gzip
import json
from pathlib import Path

import pytest

from kit.timeline.error import TraceError
from kit.timeline.read import read


def names_of(path: Path, *, strict: bool = True) -> list[str]:
    timeline = read(path, strict=strict)
    return [timeline.strings[i] for i in timeline.name]


@pytest.fixture
def capture(data: Path) -> str:
    """Text of a real capture of torch 2.13 on two gloo ranks."""
    return gzip.decompress((data / "gloo_ddp_rank0.json.gz").read_bytes()).decode()


@pytest.mark.parametrize(
    "label",
    [
        'layer "attn"',
        '{"device": "cpu", "dtype": "float32"}(1): run',
        'ends with a quote"',
        '", "',
        '"',
        'layer "attn", "name": of it',
    ],
)
def test_a_name_with_quotes_is_mended_and_every_other_event_kept(tmp_path: Path, capture: str, label: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(capture)
    before = names_of(path)
    place = before.index("DistributedDataParallel.forward")
    path.write_text(capture.replace("DistributedDataParallel.forward", label, 1))
    with pytest.raises(json.JSONDecodeError):
        json.loads(path.read_text())
    timeline = read(path)
    after = names_of(path)
    assert (after[:place], after[place + 1 :]) == (before[:place], before[place + 1 :])
    assert after[place] == label
    assert (timeline.parts[0].mended, timeline.parts[0].dropped, timeline.parts[0].rank) == (1, 0, 0)
    line = capture[: capture.index("DistributedDataParallel.forward")].count("\n")
    [note] = [note for note in timeline.notes if "mended" in note]
    assert note.startswith(
        "trace.json: 1 events were no valid JSON and were mended (quotes in names, bare inf); "
        f"the first is {label!r} at traceEvents["
    )
    assert f"(line {line - 2}, " in note  # the event begins two lines above its name


def test_all_broken_names_are_counted_and_the_first_shown(tmp_path: Path, capture: str) -> None:
    path = tmp_path / "trace.json"
    count = capture.count('"aten::t"')
    assert count > 5
    path.write_text(capture.replace('"aten::t"', '"a "quoted" t"'))
    timeline = read(path)
    assert timeline.parts[0].mended == count
    assert names_of(path).count('a "quoted" t') == count
    assert sum("mended" in note and "'a \"quoted\" t'" in note for note in timeline.notes) == 1


def test_times_stay_exact_while_mending(tmp_path: Path, capture: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(capture)
    before = read(path)
    path.write_text(capture.replace("DistributedDataParallel.forward", 'a "b" c', 1))
    after = read(path)
    assert after.start_ns.tolist() == before.start_ns.tolist()
    assert after.duration_ns.tolist() == before.duration_ns.tolist()


@pytest.mark.parametrize(
    ("name", "read_as"),
    [
        ("tab\tin it", "tab\tin it"),
        ("new\nline", "new\nline"),
        ("bell\x07", "bell\x07"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_control_characters_and_backslashes_in_names_are_read(tmp_path: Path, name: str, read_as: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{{"ph": "X", "cat": "cpu_op", "name": "{name}", "ts": 1, "dur": 1}}]}}')
    assert names_of(path) == [read_as]


def test_bare_infinities_of_bandwidth_columns_are_mended(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "gpu_memcpy", "name": "copy", "ts": 1, "dur": 0, '
        '"args": {"bytes": 4, "memory bandwidth (GB/s)": inf, "stream": 7}}]}'
    )
    timeline = read(path)
    assert (timeline.copied_bytes.tolist(), timeline.stream.tolist()) == ([4], [7])


def test_broken_utf8_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "caf\xe9", "ts": 1, "dur": 1}]}')
    assert names_of(path) == ["caf\ufffd"]


def test_half_a_pair_of_utf16_is_replaced_and_a_whole_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    name = r"a\ud800b\udc00c\ud83d\ude00"
    path.write_text(f'{{"traceEvents": [{{"ph": "X", "cat": "cpu_op", "name": "{name}", "ts": 1, "dur": 1}}]}}')
    assert names_of(path) == ["a\ufffdb\ufffdc\U0001f600"]


def test_a_file_cut_off_in_the_middle_says_how_to_read_its_beginning(tmp_path: Path, capture: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(capture)
    whole = names_of(path)
    path.write_text(capture[: len(capture) // 2])
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: breaks off after ")
    assert str(caught.value).endswith(
        'expected the end of "traceEvents". Write the trace again, or read what is there with strict=False'
    )
    timeline = read(path, strict=False)
    assert 50 < len(timeline) < len(whole)
    assert any("the file breaks off after" in note for note in timeline.notes)
    assert timeline.parts[0].rank == 0


def test_every_cut_of_a_small_file_reads_the_events_before_it(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": f"op{i}", "ts": i, "dur": 1, "args": {"a": [i]}} for i in range(4)]
    text = json.dumps({"distributedInfo": {"rank": 3}, "traceEvents": events})
    ends = [text.index(json.dumps(event)) + len(json.dumps(event)) for event in events]
    path = tmp_path / "trace.json"
    for cut in range(text.index("[{") + 1, len(text) - 2):
        path.write_text(text[:cut])
        assert len(read(path, strict=False)) == sum(end <= cut for end in ends), text[:cut]


def test_an_event_beyond_mending_names_its_place_and_is_dropped_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '{"traceEvents": [\n{"ph": "X", "name": "a", "ts": 1, "dur": 1},\n{"ph": "X", "name" 7 "b"},\n'
        '{"ph": "X", "name": "c", "ts": 3, "dur": 1}]}'
    )
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}: at traceEvents[1] (line 3, character 63) is no valid JSON; expected an event object. "
        "strict=False reads the other events"
    )
    timeline = read(path, strict=False)
    assert (names_of(path, strict=False), timeline.parts[0].dropped) == (["a", "c"], 1)


def test_the_profilers_own_file_with_a_quoted_label_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as recorder, record_function('layer "attn"'):
        torch.ones(8, 8) @ torch.ones(8, 8)
    path = tmp_path / "trace.json"
    recorder.export_chrome_trace(str(path))
    assert 'layer "attn"' in names_of(path)
    assert "aten::mm" in names_of(path)
