"""Processes that are killed while they train and while they write, and what the run is in the end."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.processes import BIG, Start, forked_toy, recipe


def newest(out: Path) -> int:
    """The step of the last whole checkpoint; -1 before there is one."""
    return max((int(path.name) for path in (out / "checkpoints").glob("[0-9]*") if path.name.isdecimal()), default=-1)


def is_saving(out: Path) -> bool:
    """Whether a checkpoint is being written, or was, when its process was killed."""
    return any((out / "checkpoints").glob("*.orbax-checkpoint-tmp"))


def killed(process: subprocess.Popen[str], moment: Callable[[], bool], delay: float) -> str:
    """SIGKILL so many seconds after that moment; what is wrong where the process ended by itself."""
    while process.poll() is None and not moment():
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    said = process.communicate()[1]
    return "" if process.returncode == -signal.SIGKILL else f"it ended by itself with {process.returncode}: {said[-200:]!r}"


def finished(start: Start, out: Path, steps: int) -> object:
    """What a run of so many steps leaves; what it said, where it did not come to its end."""
    process = start(out, steps)
    said = process.communicate()[1]
    return said[-200:] if process.returncode or newest(out) != steps else left(out, steps)


def left(out: Path, steps: int) -> tuple[Any, ...]:
    """What does not depend on the clock: the state, the weights, the lines, and no litter."""
    state = json.loads((out / f"checkpoints/{steps}/_CHECKPOINT_METADATA").read_text())["custom_metadata"]["sha256"]
    weights = [path.read_bytes() for path in out.glob("weights.safetensors")]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    litter = [path.name for pattern in ("*.unfinished", "*tmp*", "*.damaged") for path in out.rglob(pattern)]
    return state, weights, [[line[name] for name in ("step", "val", "val_loss") if name in line] for line in lines], litter


def in_saves(times: int, folder: Path, start: Start = recipe) -> list[str]:
    """Killed while a checkpoint is written: it was not whole yet."""
    return kills(times, folder, start, is_saving, longest=0.1)


def in_steps(times: int, folder: Path, start: Start = forked_toy) -> list[str]:
    """Killed while steps are taken or the model is evaluated, and no checkpoint is being written."""
    return kills(times, folder, start, lambda out: True, longest=0.4)


def recipe_in_steps(times: int, folder: Path) -> list[str]:
    """The same of the recipe."""
    return in_steps(times, folder, partial(recipe, save_every=1000))


def kills(times: int, folder: Path, start: Start, moment: Callable[[Path], bool], longest: float) -> list[str]:
    """One run, killed so many times, each time up to `longest` seconds after a moment that comes after a new checkpoint; in
    the end it has to leave what one leaves that was never killed."""
    draw, wrong, out, in_save = random.Random(3), [], folder / "killed", moment is is_saving
    counted = tried = 0
    while counted < times and tried < 5 * times:
        tried += 1
        behind = partial(lambda before: newest(out) > before and moment(out), max(newest(out), 0))
        fault = killed(start(out, BIG), behind, draw.uniform(0, longest))
        wrong += [f"kill {tried}: {fault}"] * bool(fault)
        counted += is_saving(out) == in_save
    if counted < times:
        wrong.append(f"{counted} of {tried} kills came at such a moment, not {times}")
    steps = newest(out) + 20
    found, wanted = finished(start, out, steps), finished(start, folder / "whole", steps)
    return wrong if found == wanted else [*wrong, f"step {steps}: {str(found)[:300]}, not {str(wanted)[:300]}"]


def first_saves(times: int, folder: Path, start: Start = recipe, longest: float = 0.3) -> list[str]:
    """Each time a new run, killed between its first file and its first whole checkpoint; then the same command goes on."""
    draw, wrong, wanted = random.Random(2), [], finished(start, folder / "whole", 6)
    counted = tried = 0
    while counted < times and tried < 5 * times:
        out, tried = folder / f"killed{tried}", tried + 1
        fault = killed(start(out, 6), (out / "config.json").exists, draw.uniform(0, longest))
        if newest(out) >= 0:
            continue
        counted += 1
        found = finished(start, out, 6)
        wrong += [f"kill {tried}: {fault or str(found)[:300]}"] * bool(fault or found != wanted)
    return wrong if counted == times else [*wrong, f"{counted} of {tried} kills came before the first checkpoint, not {times}"]
