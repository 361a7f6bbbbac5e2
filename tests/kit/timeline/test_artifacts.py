"""A Triton cache folder as Triton 3.6 left it, and what a tuned one looks like."""

import json
import shutil
from pathlib import Path

import pytest

from kit.timeline.artifacts import read_artifacts
from kit.timeline.error import TraceError


def test_a_cache_folder_gives_registers_spills_shared_memory_and_instructions(data: Path) -> None:
    matmul, softmax = read_artifacts(data / "triton")
    assert (matmul.name, matmul.target, matmul.registers, matmul.stack_bytes) == ("matmul_tile", "sm_90a", 40, 88)
    assert (matmul.shared_bytes, matmul.warps, matmul.instructions) == (3072, 1, 404)
    assert (softmax.name, softmax.registers, softmax.stack_bytes, softmax.shared_bytes, softmax.warps) == (
        "rows_softmax_scaled", 20, 0, 16, 4,
    )  # fmt: skip
    assert softmax.words == "37 float, 25 integer and logic, 15 move and compare, 14 shuffle, 30 other"


def test_of_a_tuned_kernel_the_kept_one_is_taken(data: Path, tmp_path: Path) -> None:
    [found] = [path.parent for path in (data / "triton").rglob("matmul_tile.ptx")]
    for folder in ("AAA", "BBB"):
        shutil.copytree(found, tmp_path / "triton" / "0" / folder)
    assert [artifact.folder for artifact in read_artifacts(tmp_path)] == ["AAA", "BBB"]
    (tmp_path / "xy").mkdir()
    (tmp_path / "xy" / "cxy.best_config").write_text(json.dumps({"XBLOCK": 64, "triton_cache_hash": "BBB"}))
    assert [artifact.folder for artifact in read_artifacts(tmp_path)] == ["BBB"]


def test_what_a_process_is_writing_at_the_moment_is_passed_over(data: Path, tmp_path: Path) -> None:
    [found] = [path.parent for path in (data / "triton").rglob("matmul_tile.ptx")]
    shutil.copytree(found, tmp_path / "AAA")
    begun = tmp_path / "AAA" / "tmp.pid_77_0c9e"
    begun.mkdir()
    (begun / "matmul_tile.ptx").write_text("//")
    (begun / "c.best_config").write_text("{")
    assert [artifact.instructions for artifact in read_artifacts(tmp_path)] == [404]


def test_a_kernel_without_cubin_or_json_has_its_instructions(data: Path, tmp_path: Path) -> None:
    [path] = (data / "triton").rglob("matmul_tile.ptx")
    shutil.copy(path, tmp_path)
    [artifact] = read_artifacts(tmp_path)
    assert (artifact.registers, artifact.stack_bytes, artifact.shared_bytes, artifact.instructions) == (
        None, None, None, 404,
    )  # fmt: skip


def test_bad_folders_are_refused_with_what_was_expected(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no \.ptx file; expected Triton's cache \(TRITON_CACHE_DIR\)"):
        read_artifacts(tmp_path)
    [path] = (data / "triton").rglob("matmul_tile.ptx")
    shutil.copy(path, tmp_path)
    (tmp_path / "matmul_tile.json").write_text("[1]")
    with pytest.raises(TraceError, match=r"matmul_tile\.json: .*expected a JSON object as Triton writes it"):
        read_artifacts(tmp_path)
