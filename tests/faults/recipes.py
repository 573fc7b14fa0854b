"""What is done to a real recipe, as a user starts it: killed and signalled, its disk full."""

import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.faults.processes import ENDS

TEXT = "the cat sat on a mat while rain fell over quiet hills.\n" * 60
FLAGS = (
    *("--batch=2", "--evaluate-every=400", "--save-every=20", "--sample=0", "--model.context=16"),
    *("--model.d-model=8", "--model.n-heads=2", "--model.n-layers=2", "--model.d-ff=16"),
)
STEPS = 200
BIG = 10**7
"""Steps of a run that goes on until it is stopped."""


def train(out: Path, *more: str, limit: int | None = None) -> subprocess.Popen[str]:
    """`jaxformer train shakespeare` with two layers; `limit`: the most bytes of any file that it writes."""
    (text := out.parent / "text.txt").write_text(TEXT)
    begin = ("--data", str(text), *FLAGS)
    command = [sys.executable, "-m", "train.shakespeare", *(() if "--resume" in more else begin), "--out", str(out), *more]

    def limited() -> None:
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, preexec_fn=None if limit is None else limited, **pipes)


def left(out: Path, steps: int) -> list[object]:
    """What a run of so many steps leaves that does not depend on the clock: its state, its weights, and its lines."""
    state = json.loads((out / f"checkpoints/{steps}/_CHECKPOINT_METADATA").read_text())["custom_metadata"]["sha256"]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [state, (out / "weights.safetensors").read_bytes(), [(line["step"], line["val_loss"]) for line in lines]]


def begun(process: subprocess.Popen[str], out: Path) -> None:
    """Until the run has a checkpoint, or has ended."""
    while process.poll() is None and not any((out / "checkpoints").glob("[0-9]*")):
        time.sleep(0.01)


def in_a_save(process: subprocess.Popen[str], out: Path) -> None:
    """Until the run writes a checkpoint behind its first one, or has ended; what an earlier process left is none."""

    def unfinished() -> set[int]:
        with suppress(FileNotFoundError):
            return {path.stat().st_ino for path in (out / "checkpoints").glob("*.orbax-checkpoint-tmp")}
        return set()

    before = unfinished()
    begun(process, out)
    while process.poll() is None and not unfinished() - before:
        time.sleep(0.001)


def kills(
    times: int, folder: Path, wait: Callable[[subprocess.Popen[str], Path], None] = begun, longest: float = 1.0
) -> list[str]:
    """SIGKILL at random instants, up to `longest` seconds after what is waited for; after each the same run goes on, and in
    the end it leaves what one leaves that was never killed."""
    draw, wrong = random.Random(3), []
    for name in ("whole", "killed"):
        (folder / name).mkdir(exist_ok=True)
    whole, out = folder / "whole/run", folder / "killed/run"
    train(whole, f"--steps={STEPS}").communicate()
    for i in range(times):
        process = train(out, f"--steps={BIG}", *(["--resume"] if i else []))
        wait(process, out)
        time.sleep(draw.uniform(0, longest))
        process.kill()
        said = process.communicate()[1]
        if process.returncode != -signal.SIGKILL:
            wrong.append(f"kill {i}: it ended by itself with {process.returncode}: {said[-200:]!r}")
    reached = max(int(path.name) for path in (out / "checkpoints").iterdir() if path.name.isdecimal())
    steps = max(STEPS, (reached // 20 + 2) * 20)
    for each, more in ((whole, f"--steps={steps}"), (out, f"--steps={steps}")):
        said = train(each, more, "--resume").communicate()[1]
        if not (each / f"checkpoints/{steps}").exists():
            return [*wrong, f"{each.parent.name} does not go on: {said[-200:]!r}"]
    state = [left(each, steps)[:2] for each in (whole, out)]
    return wrong if state[0] == state[1] else [*wrong, f"step {steps} has other bits"]


def saves(times: int, folder: Path) -> list[str]:
    """SIGKILL while a checkpoint is written."""
    return kills(times, folder, in_a_save, longest=0.3)


def signals(times: int, folder: Path) -> list[str]:
    """Signals at random instants of a run, which it ends within 5 s with a word, saved as far as it was."""
    draw, wrong = random.Random(4), []
    for i in range(times):
        out, number = folder / str(i), draw.choice([*ENDS])
        process, delay = train(out, f"--steps={BIG}"), draw.uniform(0.05, 8)
        time.sleep(delay)
        process.send_signal(number)
        sent = time.monotonic()
        try:
            said = process.communicate(timeout=7)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[1]
        took = time.monotonic() - sent
        is_told = process.returncode < 0 or (said.count("\n") in (1, 2) and "Traceback" not in said)
        if process.returncode not in ENDS[number] or took > 5 or not is_told:
            wrong.append(f"{number.name} after {delay:.2f} s: {process.returncode} after {took:.1f} s, {said[-80:]!r}")
    return wrong


def full_disks(times: int, folder: Path) -> list[str]:
    """No file may grow beyond a size that is drawn, as on a full disk: the run ends with one line, and goes on where there is
    room again."""
    draw, wrong = random.Random(5), []
    for i in range(times):
        out, limit = folder / str(i), draw.choice([0, 100, 500, 2000, 8000, 20000])
        process = train(out, f"--steps={STEPS}", limit=limit)
        said = process.communicate()[1]
        is_told = [line for line in said.splitlines() if not line.startswith(("warning: ", "compiled "))]
        if process.returncode != 2 or len(is_told) != 1 or list(out.rglob("*.unfinished")):
            wrong.append(f"{limit} bytes: {process.returncode}, {said[-300:]!r}")
            continue
        again = ["--resume"] if (out / "config.json").exists() else []
        more = train(out, f"--steps={STEPS}", *again)
        said = more.communicate()[1]
        if more.returncode or not (out / "weights.safetensors").exists():
            wrong.append(f"{limit} bytes, then room: {more.returncode}, {said[-300:]!r}")
    return wrong
