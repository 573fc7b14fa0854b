"""`jaxformer runs`: list the runs in a folder, and check their checkpoints."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.errors import UNREADABLE, CheckpointError, InputError, JaxformerError, printable
from jaxformer.runs.folder import CONFIG, NO_SETTINGS, NOT_BEGUN, WEIGHTS, RunFolder, kept_states
from jaxformer.runs.metrics import Line
from jaxformer.runtime.environment import check_jax

LEAVING = 0.2
"""Seconds after which a checkpoint that a live run removes is gone; if it is still there and not complete, it is corrupt."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """List the runs in a folder, each with its checkpoints: step, loss, size, and whether it is what was saved. Exit code 0:
    all are complete; 1: some are not, or cannot be read.
    """

    folder: tyro.conf.Positional[Path] = Path("runs")
    """A folder of runs, or one run."""


def main(arguments: list[str]) -> int:
    """Print a line for each run and each of its checkpoints; return 1 if one is corrupt or cannot be read."""
    folder = parse(Runs, arguments, prog="jaxformer runs").folder
    found = [path for path in [folder, *(sorted(folder.iterdir()) if folder.is_dir() else ())] if may_be_run(path)]
    if not found:
        raise InputError(f"{folder} holds no runs; give a folder that holds some, or a run")
    check_jax()
    verdicts = []
    for path in found:
        kept, lines = judged(path)
        verdicts.append(kept)
        print(printable(f"{path}: {kept}"))
        for step, loss, size, verdict in checkpoints(RunFolder(path), lines):
            verdicts.append(verdict)
            print(printable(f"  step {step:>9,}  loss {loss:>8}  {size / 1e6:10,.1f} MB  {verdict}"))
    return int(any(verdict.startswith("damaged") or UNREADABLE in verdict for verdict in verdicts))


def may_be_run(path: Path) -> bool:
    """True if a folder has settings, has lost them, or has none yet; also if this process may not look.

    A folder of another program, as transformers', has a config.json of its own, and is none.
    """
    try:
        if (path / CONFIG).is_file():
            return not RunFolder(path).is_foreign
        return RunFolder(path).has_lost_settings or RunFolder(path).is_locked_alone
    except OSError:
        return True


def judged(path: Path) -> tuple[str, list[Line]]:
    """Return the verdict on the files of a run or a saved model, and a run's metrics."""
    from jaxformer.checkpoints.opened import check_saved  # imports jax
    from jaxformer.checkpoints.trained import check_tokenizer
    from jaxformer.runs.checkpoint import lost_lines

    run, lines = RunFolder(path), []
    if run.is_locked_alone:
        return NO_SETTINGS, lines
    try:
        run.check_settings()
        if run.holds_model:
            check_saved(path, WEIGHTS)
        else:
            trains, lines = "recipe" in run.config, run.metrics
            run.check_kept()
            run.manifest.check(WEIGHTS)
            if "tokenizer_sha256" in run.config:
                check_tokenizer(run)
            if trains:
                run.check_states()
            if lost := lost_lines(run, max(kept_states(run.checkpoints), default=0)):
                raise CheckpointError(lost)
            if run.is_begun:
                return NOT_BEGUN, lines
        whole, left = CONFIG in run.manifest.entries, run.left_out
    except JaxformerError as error:
        return f"{'not checked' if UNREADABLE in str(error) else 'damaged'}: {error}", lines
    except OSError as error:
        return f"not checked: {error.filename} {UNREADABLE}: {error.strerror}", lines
    if not whole:
        return "files not checked: there is no whole manifest.json", lines
    left_out = f", {left} line{'s' * (left > 1)} of metrics left out" if left else ""
    return f"files whole{left_out}", lines


def checkpoints(run: RunFolder, lines: Sequence[Line]) -> Iterator[tuple[int, str, int, str]]:
    """Yield each kept state: its step, the last validation loss up to it, its bytes, and the verdict.

    None are listed if the run's settings are lost, because then it is unknown whether they belong to the run.
    """
    from jaxformer.runs.checkpoint import verdict

    for step in () if run.has_lost_settings else kept_states(run.checkpoints):
        before = [line for line in lines if line["step"] <= step]
        loss = next((f"{line[name]:.4f}" for line in before[-1:] for name in ("val_loss", "loss") if name in line), "-")
        folder, found = run.checkpoints / str(step), verdict(run.checkpoints, step)
        if found != "whole":
            time.sleep(LEAVING)
            found = verdict(run.checkpoints, step)
        if os.path.lexists(folder):
            yield step, loss, size_of(folder), found


def size_of(folder: Path) -> int:
    """Sum the bytes of all files in a folder that this process may see."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total
