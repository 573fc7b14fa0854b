"""What is done to processes: killed, signalled and started twice, at instants that are drawn."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.test_lock import HOLD

RUN = """
import sys
from pathlib import Path
from jaxformer.signals import listen
listen()
import jax, jax.numpy as jnp
from rich.console import Console
from jaxformer.flags import run
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.training import checkpoint
from jaxformer.training.lock import only_writer
from jaxformer.training.loop import Plan, fit
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.runs import RunFolder
from jaxformer.training.step import make_train_steps, train_state

def main(arguments):
    out, steps = Path(arguments[0]), int(arguments[1])
    optimizer = make_optimizer(OptimizerConfig(name="adam", learning_rate=0.01), ScheduleConfig())
    loss = lambda model, batch, key: (((model["w"] - batch) ** 2).sum(), jnp.ones(()))
    take = make_train_steps(loss, optimizer, lambda data, key: jax.random.normal(key, (200, 100)))
    state, seed = train_state({"w": jnp.ones((200, 100))}, optimizer), jax.random.key(0)
    with only_writer(out):
        run = RunFolder(out)
        run.remove_leftovers()
        if checkpoint.kept_states(run.checkpoints):
            state = checkpoint.load_state(run.checkpoints, state)
            run.forget_after(int(state.step))
        else:
            run = RunFolder.create(out, {})
        plan = Plan(steps=steps, evaluate_every=20, save_every=3, tokens_per_step=1,
                    evaluate=lambda model: {"val": 1.0}, on_evaluate=lambda model, line: None)
        print("begins", flush=True)
        state = fit(state, plan, run, lambda state, n: take(state, None, seed, jnp.minimum(n, 3)), Console(quiet=True))
        print(checkpoint.digest(state), [line["step"] for line in run.metrics])

run(main)
"""
"""A run of a parabola, saved every three steps, that goes on where it was: `RUN out steps`."""
ENDS = {signal.SIGINT: (130, -2), signal.SIGTERM: (143, -15)}
"""Exit codes; negative ones say that the system ended the process before Python listened, as a shell says 130 and 143."""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, text=True, **pipes)


def finished(out: Path, steps: int, code: str = RUN) -> str:
    """What the run says at its end."""
    said, error = start(code, out, steps).communicate(timeout=120)
    return said.replace("begins\n", "") or error


def signals(times: int, folder: Path, code: str = RUN, patience: float = 7) -> list[str]:
    """At random instants from the start of a process; what was wrong."""
    draw, wrong = random.Random(0), []
    for i in range(times):
        number, delay = draw.choice([*ENDS]), draw.uniform(0.05, 4)
        process = start(code, folder / str(i), 10**6)
        time.sleep(delay)
        process.send_signal(number)
        begun = time.monotonic()
        try:
            _, said = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            said = ""
        took = time.monotonic() - begun
        has_said = said.count("\n") in (1, 2) and "Traceback" not in said
        if process.returncode not in ENDS[number] or took > 5 or not (has_said or process.returncode < 0):
            wrong.append(f"{number.name} after {delay:.2f} s: {process.returncode} after {took:.1f} s, {said[-80:]!r}")
    return wrong


def kills(times: int, folder: Path, steps: int = 60, code: str = RUN) -> list[str]:
    """SIGKILL again and again, within a second of the start of training; then the run is compared with one left alone."""
    draw = random.Random(1)
    wanted = finished(folder / "whole", steps)
    out, wrong = folder / "killed", []
    for _ in range(times):
        process = start(code, out, steps)
        assert process.stdout
        if process.stdout.readline() != "begins\n":
            wrong.append((process.communicate()[1] or "it does not begin")[-200:])
            continue
        time.sleep(draw.uniform(0, 1))
        process.kill()
        process.communicate()
    found = finished(out, steps, code)
    return wrong if found == wanted else [*wrong, f"{found.strip()[-150:]!r}, not {wanted.strip()!r}"]


def first_saves(times: int, folder: Path, code: str = RUN, longest: float = 0.3) -> list[str]:
    """SIGKILL before and in the first save, each time of a new run, which then goes on."""
    wanted, wrong = finished(folder / "whole", 6), []
    draw = random.Random(2)
    for i in range(times):
        out = folder / f"first{i}"
        process = start(code, out, 6)
        assert process.stdout
        process.stdout.readline()
        time.sleep(draw.uniform(0, longest))
        process.kill()
        process.communicate()
        if (found := finished(out, 6, code)) != wanted:
            wrong.append(found.strip()[-150:])
    return wrong


def writers(pairs: int, folder: Path, code: str = HOLD) -> list[str]:
    """Two processes at once on one folder: one has to be refused."""
    wrong = []
    for i in range(pairs):
        both = [start(code, folder / str(i)) for _ in range(2)]
        said = [process.stdout.readline() for process in both if process.stdout]
        errors = [process.communicate("")[1] for process in both]
        refused = [error for error in errors if "is being written by process" in error]
        if sorted(said) != ["", "held\n"] or len(refused) != 1:
            wrong.append(f"pair {i}: {said}")
    return wrong
