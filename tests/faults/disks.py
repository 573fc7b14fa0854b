"""Disks that are full, hold no more files, or cannot be written: a run says it in one line, and with room it goes on."""

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.kills import finished, newest
from tests.faults.processes import BIG, Start, recipe

STEPS = 40
SIZES = "size=4k", "size=8k", "size=16k", "size=40k", "size=80k", "size=120k", "size=200k"
CASES = "filled", *SIZES, "nr_inodes=3", "nr_inodes=9", "ro"
"""Disks: one that is filled while the run trains, too few bytes from the start, too few files, and one that is read only."""
ROOM = "size=100m,nr_inodes=10000,rw"


@contextmanager
def disk(folder: Path, options: str) -> Iterator[Callable[[str], None]]:
    """A small disk in memory there, and what remounts it with other options; PermissionError where none may be mounted."""

    def mount(*arguments: str) -> None:
        done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
        if done.returncode:
            raise PermissionError(f"no disk can be mounted ({done.stderr.strip()}); try it as root, or under `unshare -rm`")

    folder.mkdir()
    mount("-t", "tmpfs", "-o", options, "tmpfs")
    try:
        yield lambda options: mount("-o", f"remount,{options}")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def full_disks(times: int, folder: Path, start: Start = recipe) -> list[str]:
    """One disk after another, each with its fault, which then is taken away."""
    wanted, wrong = finished(start, folder / "whole", STEPS), []
    draw = random.Random(5)
    for i in range(times):
        limit = CASES[i % len(CASES)]
        with disk(folder / str(i), ROOM if limit == "filled" else limit) as remount:
            out = folder / str(i) / "run"
            process = start(out, BIG if limit == "filled" else STEPS)
            if limit == "filled":
                fill(process, out, draw.uniform(0, 1))
            said = process.communicate()[1]
            fault = "" if process.returncode == 2 else f"it ends with {process.returncode}"
            fault = fault or ("" if told(said) else "it says more than one line")
            fault = fault or ", ".join(path.name for path in folder.glob(f"{i}/run/**/*.unfinished"))
            remount(ROOM)
            (folder / str(i) / "ballast").unlink(missing_ok=True)
            steps = max(STEPS, newest(out) + 1)
            found = finished(start, out, steps)
            expected = wanted if steps == STEPS else finished(start, folder / f"whole{i}", steps)
            fault = fault or ("" if found == expected else f"then, with room, {str(found)[:200]}, not {str(expected)[:200]}")
        wrong += [f"{limit}: {fault}: {said[-300:]!r}"] * bool(fault)
    return wrong


def told(said: str) -> bool:
    """Whether a process said one line, beside warnings and where its programs are."""
    return len([line for line in said.splitlines() if not line.startswith(("warning: ", "compiled "))]) == 1


def fill(process: subprocess.Popen[str], out: Path, delay: float) -> None:
    """Fill the disk of a run that has a checkpoint after its first one."""
    while process.poll() is None and newest(out) < 1:
        time.sleep(0.01)
    time.sleep(delay)
    try:
        with (out.parent / "ballast").open("wb") as ballast:
            while True:
                ballast.write(bytes(2**16))
    except OSError:
        pass
