"""PTX of two kernels that Triton 3.6 compiled for sm_90a (tests/data/triton), and grammar by hand."""

import re
import subprocess
from pathlib import Path

import pytest

from kit.timeline.error import TraceError
from kit.timeline.ptx import kind_of, read_ptx


def ptx_of(data: Path, name: str) -> str:
    [path] = (data / "triton").rglob(f"{name}.ptx")
    return path.read_text()


def test_the_mix_of_a_softmax_is_that_counted_with_grep(data: Path) -> None:
    [kernel] = read_ptx(ptx_of(data, "rows_softmax_scaled"))
    assert (kernel.name, kernel.target, kernel.instructions) == ("rows_softmax_scaled", "sm_90a", 121)
    # 10 max + 10 add + 8 mul + 4 fma + 4 div + 1 neg of f32; 14 shfl; 5 bar; 4 each of ex2, ld.global, st.global.
    mix = dict(kernel.mix)
    assert mix["float"] == 37
    assert mix["shuffle"] == 14
    assert mix["shared"] == 4 + 4
    assert (mix["barrier"], mix["special"], mix["global load"], mix["global store"]) == (5, 4, 4, 4)
    assert (mix["parameter"], mix["control"]) == (4, 1)
    assert mix["move and compare"] == 6 + 2 + 4 + 2 + 1  # mov.u32, mov.b32, setp.lt, setp.eq, setp.lt.u32


def test_a_matrix_kernel_shows_its_tensor_core_work(data: Path) -> None:
    [kernel] = read_ptx(ptx_of(data, "matmul_tile"))
    mix = dict(kernel.mix)
    assert (mix["matrix"], mix["global load"], mix["global store"]) == (8, 48, 16)
    assert mix["shared"] == 48 + 8 + 8 + 4 + 2  # st, st.v2, ld.v2, ldmatrix.trans, ldmatrix


@pytest.mark.parametrize("name", ["rows_softmax_scaled", "matmul_tile"])
def test_every_instruction_is_counted_once(data: Path, name: str) -> None:
    [path] = (data / "triton").rglob(f"{name}.ptx")
    counted = subprocess.run(
        ["grep", "-cE", r"^\s+(@!?%p[0-9]+ )?[a-z][a-z0-9_:.]*[ \t;].*;|^\s+ret;", str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert read_ptx(path.read_text())[0].instructions == int(counted.stdout)


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 0", "matrix"),
        ("wgmma.wait_group.sync.aligned 0", "barrier"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16", "async copy"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1]", "async copy"),
        ("ld.global.L1::evict_last.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ]", "global load"),
        ("ld.volatile.shared.b32 %r1, [%r2]", "shared"),
        ("ld.param.u64 %rd1, [k_param_0]", "parameter"),
        ("st.local.b32 [%rd1], %r1", "local"),
        ("ld.b32 %r1, [%rd1]", "generic load"),
        ("atom.global.gpu.acq_rel.add.f32 %r1, [%rd1], %r2", "atomic"),
        ("fma.rn.bf16x2 %r1, %r2, %r3, %r4", "float"),
        ("add.s32 %r1, %r2, %r3", "integer and logic"),
        ("cvt.rn.bf16x2.f32 %r1, %r2, %r3", "convert"),
        ("setp.lt.f32 %p1, %r1, %r2", "move and compare"),
        ("ex2.approx.ftz.f32 %r1, %r2", "special"),
        ("bra.uni $L__BB0_2", "control"),
    ],
)
def test_instructions_by_the_names_of_the_isa(instruction: str, kind: str) -> None:
    assert kind_of(instruction) == kind


def test_declared_memory_comments_and_inline_assembly() -> None:
    text = """
    .version 8.7
    .target sm_80
    .visible .entry first( .param .u64 a ) .reqntid 32 {
        .reg .b32 %r<9>;
        .shared .align 16 .b8 tile[4096];
        .local .align 8 .b8 __local_depot0[24]; // declared, so no spill; mov.u32 %r9, 1;
        { /* inline; not; three */ mov.u32 %r1, %tid.x; }
    $L__BB0_1:
        @!%p1 bra $L__BB0_1;
        ret;
    }
    .entry second() { ret; }
    """
    first, second = read_ptx(text)
    assert (first.static_shared_bytes, first.static_local_bytes) == (4096, 24)
    assert dict(first.mix) == {"move and compare": 1, "control": 2}
    assert (second.name, second.target, dict(second.mix)) == ("second", "sm_80", {"control": 1})


def test_what_is_no_ptx_or_is_cut_off_is_refused(data: Path) -> None:
    with pytest.raises(TraceError, match=re.escape("a.ptx: holds no .entry; expected PTX text of a kernel")):
        read_ptx("hello", source="a.ptx")
    whole = ptx_of(data, "matmul_tile")
    with pytest.raises(TraceError, match=r"entry matmul_tile has no end; expected its body in braces. Is it cut off\?"):
        read_ptx(whole[: len(whole) // 2])
