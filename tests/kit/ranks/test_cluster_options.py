"""What `launch` is told of a cluster is checked before anything is started."""

import re
import socket
import sys

import pytest

from kit.ranks import engine
from kit.ranks.cluster_launchers import slurm_template
from kit.ranks.cluster_options import options_of
from kit.ranks.errors import LaunchError


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"engine": "slrm"},
            ValueError,
            "engine is 'slrm'; expected 'local', one of 'ipyparallel', 'mpi', 'slurm', 'ssh', or an ipyparallel "
            "Cluster",
        ),
        ({"engine": 3}, TypeError, "engine is 3; expected the name of one, as in 'slurm', or an ipyparallel Cluster"),
        (
            {"partition": "gpu"},
            TypeError,
            "'partition' is an option of another engine; expected an option of engine 'local': it takes no options",
        ),
        (
            {"engine": "mpi", "nodes": 2},
            TypeError,
            "'nodes' is unknown; expected an option of engine 'mpi': it takes host, interface, folder, start_seconds, "
            "mpi_command, mpi_args",
        ),
        (
            {"engine": "slurm", "host": "127.0.0.1", "sbatch": "--gres=gpu:1"},
            TypeError,
            "sbatch is '--gres=gpu:1'; expected a list with one option each, as in ['--verbose']",
        ),
        (
            {"engine": "ssh", "host": "127.0.0.1"},
            ValueError,
            "engine 'ssh' has no hosts; expected hosts={'node1': 2, 'me@node2': 2}, ranks for each host",
        ),
        (
            {"engine": "ssh", "host": "127.0.0.1", "hosts": {"node1": 1}},
            ValueError,
            "hosts have 1 rank in all; expected 2, as many as launch is asked for",
        ),
    ],
)
def test_wrong_options_are_refused(arguments: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        engine.launch(2, **arguments)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_an_address_that_other_machines_cannot_reach_is_not_taken_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(
        LaunchError, match=re.escape("leads to 127.0.1.1, which the machines of a cluster cannot reach")
    ):
        options_of("slurm", {}, world_size=2)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.5")
    options = options_of("slurm", {}, world_size=2)
    assert (options.host, options.interface, options.start_seconds) == ("10.0.0.5", "", None)


def test_on_this_machine_all_stays_on_the_loopback_address() -> None:
    options = options_of("ipyparallel", {}, world_size=2)
    assert (options.host, options.interface) == ("127.0.0.1", "lo")


def test_without_ipyparallel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(LaunchError) as caught:
        engine.launch(2, engine="ipyparallel")
    assert str(caught.value) == (
        "engine 'ipyparallel' needs ipyparallel, which is not installed; expected the kit with its extra `cluster`. "
        "Run `pip install 'static-graph-kit[cluster]'`."
    )


def test_the_batch_script_of_the_engines_holds_what_was_asked_for() -> None:
    options = options_of(
        "slurm",
        {"host": "10.0.0.5", "partition": "gpu", "time_limit": "1:00:00", "sbatch": ["--comment={x}", "--gres=gpu:2"]},
        world_size=2,
    )
    text = slurm_template(options).format(n=2, output_file="/somewhere/log", program_and_args="python -m engine")
    assert text.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --export=ALL",
        "#SBATCH --job-name=kit-ranks",
        "#SBATCH --ntasks=2",
        "#SBATCH --no-kill",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=/somewhere/log",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=1:00:00",
        "#SBATCH --comment={x}",
        "#SBATCH --gres=gpu:2",
        "exec srun --no-kill --kill-on-bad-exit=0 --wait=0 "
        "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} python -m engine",
    ]
