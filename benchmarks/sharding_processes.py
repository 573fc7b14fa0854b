"""Compare training in two processes of four simulated devices with one device: `python -m benchmarks.sharding_processes`."""

import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from benchmarks.sharding import GPT_CONFIG, PAIR_CONFIG, Trained, apart, trained
from jaxformer.parallel.group import is_first
from jaxformer.parallel.join import Found, joined
from jaxformer.parallel.launch import Limits
from jaxformer.parallel.link import LOOPBACK, Seat, free_port

MESH, PROCESSES, DEVICES = "data=2,fsdp=2,tensor=2", 2, 4
RUNS = {
    "gpt64": (GPT_CONFIG, "float64", 10),
    "pair64": (PAIR_CONFIG, "float64", 10),
    "gpt32": (GPT_CONFIG, "float32", 30),
    "pair32": (PAIR_CONFIG, "float32", 30),
}


def run(name: str, mesh: str | None) -> Trained:
    """Train one of `RUNS`, on a mesh or on one device."""
    config, dtype, steps = RUNS[name]
    with jax.enable_x64(dtype == "float64"):
        return trained(config, mesh, steps, dtype)


def child(number: int, port: int, folder: Path, names: list[str]) -> None:
    """Run one of the processes; the first one writes the losses and parameters to the folder."""
    seat = Seat(number, PROCESSES, LOOPBACK[1], port)
    with joined(Found(seat), {}, devices=DEVICES, wait=60, limits=Limits()):
        for name in names:
            found = run(name, MESH)
            if is_first():
                np.savez(folder / name, found.losses, *jax.tree.leaves(found.state.model))


def main(names: list[str]) -> None:
    """Print a row for each run."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.sharding_processes"]
        started = [subprocess.Popen([*command, str(number), str(port), folder, *names]) for number in range(PROCESSES)]
        if sum(process.wait() for process in started):
            sys.exit("a process failed")
        for name in names:
            alone = run(name, None)
            losses, *leaves = np.load(Path(folder) / f"{name}.npz").values()
            state = jax.tree.unflatten(jax.tree.structure(alone.state.model), leaves)
            loss, model = apart(Trained(losses, type(alone.state)(0, state, ()), 0.0), alone)
            config, dtype, steps = RUNS[name]
            kind = type(config).__name__.removesuffix("Config")
            print(
                f"| {kind} | {PROCESSES} x {DEVICES}, {MESH} | {dtype}, {steps} steps | {loss:.1e} | {model:.1e} |", flush=True
            )


if __name__ == "__main__":
    if "".join(sys.argv[1:2]).isdecimal():
        child(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    else:
        main(sys.argv[1:] or [*RUNS])
