"""`jaxformer launch`: run a command in several processes, all on this machine or one of many."""

import sys
from dataclasses import dataclass

from jaxformer.cli.commands import find
from jaxformer.cli.flags import parse
from jaxformer.cli.main import HELP, dispatch
from jaxformer.errors import InputError
from jaxformer.validation.fields import check_size


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Run a command in several processes that train one model, as in: launch --processes 2 -- train shakespeare --mesh data=2.

    With --processes alone, all of them are started here. With --coordinator and --process too, this is one of them. Without any
    of these three, Slurm, Open MPI, Kubernetes or Cloud TPU assign this process its number. All processes need one file system.
    """

    processes: int | None = None
    """Number of processes."""
    coordinator: str | None = None
    """Host and port where process 0 waits for the others, as node1:1234."""
    process: int | None = None
    """Number of this process, from 0."""
    devices: int | None = None
    """Number of simulated CPU devices in each process."""
    wait: int = 300
    """Seconds in which all processes have to arrive."""
    patience: int = 1800
    """Seconds for the first step, evaluation and checkpoint. The next ones may take 30, or three times the longest so far."""

    def __post_init__(self) -> None:
        for name in ("processes", "devices"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        for name in ("wait", "patience"):
            check_size(name, getattr(self, name))
        if (self.coordinator is None) != (self.process is None) or (self.process is not None and self.processes is None):
            raise InputError("--coordinator, --process and --processes go together; to start all here give --processes alone")


def main(arguments: list[str]) -> int | None:
    """Start the processes, or join the others; then run the command after `--`."""
    flags, command = split(arguments)
    launch = parse(Launch, flags, prog="jaxformer launch")
    if len(command) < 2 or command[0] != "train":
        raise InputError(
            "launch is for a recipe; give one after --, as in: launch --processes 2 -- train reverse --mesh data=2"
        )
    find(command)
    if {*HELP} & {*command}:
        return dispatch(command)
    if launch.processes is not None and launch.process is None:
        from jaxformer.parallel.launch import launch as start

        given = {"devices": launch.devices, "wait": launch.wait, "patience": launch.patience}
        return start(launch.processes, [f"--{name}={value}" for name, value in given.items() if value is not None], command)
    from jaxformer.parallel.join import Found, joined, seat_in_cluster, seat_of
    from jaxformer.parallel.launch import Limits

    if launch.coordinator is None or launch.process is None or launch.processes is None:
        found = seat_in_cluster(launch.wait)
    else:
        found = Found(seat_of(launch.coordinator, launch.process, launch.processes))
    facts = {"processes": found.seat.count, "command": " ".join(command)}
    with joined(found, facts, devices=launch.devices, wait=launch.wait, limits=Limits(patience=launch.patience)):
        code = dispatch(command)
    return code if found.seat.number == 0 else sys.exit(code)  # only process 0 prints the last message


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments into the flags before `--` and the command after it."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]
