"""What is started and broken, a toy and a real recipe; signals at any instant, and two writers of one folder."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runs.test_lock import HOLD

Start = Callable[[Path, int], subprocess.Popen[str]]
"""start(out, steps): a run in that folder, which goes on from its last checkpoint where it has one."""
TOY = """
import sys
from pathlib import Path
from jaxformer.runtime.shutdown import listen
listen()
import jax, jax.numpy as jnp
from rich.console import Console
from jaxformer.cli.flags import run
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.runs import checkpoint
from jaxformer.runs.lock import only_writer
from jaxformer.training.loop import Plan, fit
from jaxformer.training.optimizers import make_optimizer
from jaxformer.runs.folder import RunFolder, kept_states
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
        if kept_states(run.checkpoints):
            state = checkpoint.load_state(run.checkpoints, state)
            run.forget_after(int(state.step))
        else:
            run = RunFolder.create(out, {})
        plan = Plan(steps=steps, evaluate_every=20, save_every=3, tokens_per_step=1,
                    evaluate=lambda model: {"val": 1.0}, on_evaluate=lambda model, line: None)
        fit(state, plan, run, lambda state, n: take(state, None, seed, jnp.minimum(n, 3)), Console(quiet=True))

run(main)
"""
"""A run of a parabola, saved every three steps."""
FORKING: Any = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    ["jax", "jaxformer.training.loop", "jaxformer.training.step", "jaxformer.training.optimizers", __name__]
)
BIG = 10**7
"""Steps of a run that goes on until it is stopped."""
TEXT = "the cat sat on a mat while rain fell over quiet hills.\n" * 60
ENDS = {signal.SIGINT: (130, -2), signal.SIGTERM: (143, -15)}
"""Exit codes; negative ones say that the system ended the process before Python listened, as a shell says 130 and 143."""


def python(*arguments: object) -> subprocess.Popen[str]:
    """A process of Python, with pipes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *map(str, arguments)], text=True, **pipes)


def last_words(process: subprocess.Popen[str], patience: float) -> str:
    """What it says on stderr until its end; after so many seconds it is killed."""
    try:
        return process.communicate(timeout=patience)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


def toy(out: Path, steps: int, code: str = TOY) -> subprocess.Popen[str]:
    """The parabola."""
    return python("-c", code, out, steps)


def forked_toy(out: Path, steps: int, save_every: int = 300) -> Any:
    """The parabola, by a process that is forked where everything is imported: for a quarter of the processor
    time."""
    log = out.with_suffix(".log")
    process = FORKING.Process(
        target=_become, args=(TOY.replace("save_every=3", f"save_every={save_every}"), [str(out), str(steps)], log)
    )
    process.start()

    def communicate() -> tuple[str, str]:
        process.join()
        return "", log.read_text()

    return Forked(process, communicate)


class Forked:
    """The methods of a Popen that are used here."""

    def __init__(self, process: Any, communicate: Callable[[], tuple[str, str]]):
        self.poll, self.kill, self.communicate = lambda: process.exitcode, process.kill, communicate
        self.process = process

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode


def _become(code: str, arguments: list[str], log: Path) -> None:
    """The rest of a forked process."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    sys.argv = ["toy", *arguments]
    exec(code, {"__name__": "__main__"})


def recipe(out: Path, steps: int, save_every: int = 20) -> subprocess.Popen[str]:
    """`jaxformer train shakespeare` with two layers, as a user starts it; a run that comes to its end saves only there. It
    reads this file, since a disk may have no room for a text."""
    begin = "--batch=2 --evaluate-every=1000 --sample=0 --model.context=16 --model.d-model=8 --model.n-heads=2 --model.d-ff=16"
    save_every = save_every if steps == BIG else steps
    goes_on = any((out / "checkpoints").glob("[0-9]*"))
    more = ["--resume"] if goes_on else ["--data", Path(__file__), "--model.n-layers=2", *begin.split()]
    return python("-m", "train.shakespeare", "--out", out, f"--steps={steps}", f"--save-every={save_every}", *more)


def signals(times: int, folder: Path, start: Start = recipe, longest: float = 8, patience: float = 7) -> list[str]:
    """One at a random instant of a process, up to `longest` seconds from its start; what was wrong."""
    draw, wrong = random.Random(0), []
    for i in range(times):
        number, delay = draw.choice([*ENDS]), draw.uniform(0.05, longest)
        process = start(folder / str(i), BIG)
        time.sleep(delay)
        process.send_signal(number)
        begun = time.monotonic()
        said = last_words(process, patience)
        took = time.monotonic() - begun
        is_told = process.returncode < 0 or (said.count("\n") in (1, 2) and "Traceback" not in said)
        if process.returncode not in ENDS[number] or took > 5 or not is_told:
            wrong.append(f"{number.name} after {delay:.2f} s: {process.returncode} after {took:.1f} s, {said[-80:]!r}")
    return wrong


def toy_signals(times: int, folder: Path) -> list[str]:
    """The same of the parabola, which trains after two seconds."""
    return signals(times, folder, toy, longest=4)


def writers(pairs: int, folder: Path, code: str = HOLD) -> list[str]:
    """Two processes at once on one folder: one has to be refused."""
    wrong = []
    for i in range(pairs):
        both = [python("-c", code, folder / str(i)) for _ in range(2)]
        said = [process.stdout.readline() for process in both if process.stdout]
        errors = [process.communicate("")[1] for process in both]
        refused = [error for error in errors if "is being written by process" in error]
        if sorted(said) != ["", "held\n"] or len(refused) != 1:
            wrong.append(f"pair {i}: {said}")
    return wrong
