"""How jobs fare, by what a made-up squeue says; tests/slurm has the real one."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.ranks.cluster_launchers import Jobs, has_ended


def test_a_job_has_ended_in_the_states_that_slurms_manual_calls_terminated() -> None:
    # squeue(1) of Slurm 22.05, JOB STATE CODES; the last two of `over` from the job state codes of 24.05
    over = (
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT "
        "LAUNCH_FAILED RECONFIG_FAIL"
    )
    goes_on = (
        "CONFIGURING COMPLETING PENDING RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED "
        "SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED"
    )
    assert [state for state in over.split() if not has_ended(state)] == []
    assert [state for state in goes_on.split() if has_ended(state)] == []
    assert has_ended(""), "nobody knows the job any more"
    assert has_ended("FAILED (NonZeroExitCode)")
    assert not has_ended("PENDING (Resources)")


class SlurmEngineSetLauncher:
    """By its name a set of engines that is a Slurm job."""

    state = "running"
    job_id = "7"


def test_a_squeue_that_gets_no_answer_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def squeue(script: str) -> None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "squeue").chmod(0o755)
        jobs._asked_at = 0.0

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    jobs = Jobs(SimpleNamespace(engines={"1": SlurmEngineSetLauncher()}))
    busy = "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1"
    squeue(busy)
    assert (jobs.trouble(), jobs.waiting()) == ("", "")
    squeue("echo PENDING Resources")
    assert (jobs.trouble(), jobs.waiting()) == ("", "; Slurm job 7 is PENDING (Resources)")
    squeue(busy)
    assert (jobs.trouble(), jobs.waiting()) == ("", "; Slurm job 7 is PENDING (Resources)")
    squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert jobs.trouble() == "Slurm job 7 of the engines has ended (it left the queue)"
