"""Every promise, many times: `python -m tests.faults [--share 0.1] [NAME ...]` prints the table of docs/reliability.md."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from jaxformer.runs.orbax_errors import tell_unraisable
from tests.faults import files, generated, groups, kills, processes
from tests.faults.disks import full_disks

PROMISES: dict[str, tuple[str, int, Callable[[int, Path], list[str]]]] = {
    "signals": ("a signal at a random instant: 130 or 143 within 5 s, with a word", 120, processes.toy_signals),
    "recipe-signals": ("the same of `train shakespeare`", 40, processes.signals),
    "writers": ("two processes on one folder: one is refused, and told of the other", 60, processes.writers),
    "kills": ("SIGKILL in training, then --resume: the same bits and lines", 100, kills.in_steps),
    "recipe-kills": ("the same of `train shakespeare`", 20, kills.recipe_in_steps),
    "saves": ("SIGKILL while it writes a checkpoint, then --resume: the same", 100, kills.in_saves),
    "first": ("SIGKILL before and in the first save: the same command goes on, with the same bits", 20, kills.first_saves),
    "full": ("a disk that is or gets full, or cannot be written: one line; with room it goes on", 12, full_disks),
    "processes": ("one of two processes killed, stopped, stuck, raising ...: all end in 60 s, go on alike", 9, groups.deaths),
    "flips": (
        "one bit of a run, a saved model, a checkpoint or a file of torch: refused, warned of, or without meaning",
        200,
        files.flips,
    ),
    "cuts": ("the end of one such file is missing: the same", 400, files.cuts),
    "swaps": ("another run's file or folder in the place of one, or a pipe: the same", 100, files.swaps),
    "pickles": ("a hostile pickle in one of three containers: refused, nothing executed", 30, files.pickles),
    "bombs": ("small files that say they are large: refused below 1 GB and 10 s", 48, files.bombs),
    "configs": ("generated configurations: built, or one line of ours", 500, generated.configs),
    "inputs": ("generated ids and masks: finite, or one line of ours", 1000, generated.inputs),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("names", nargs="*", choices=[*PROMISES, []], metavar="NAME")
    parser.add_argument("--share", type=float, default=1.0, help="of the number of times")
    asked = parser.parse_args()
    sys.unraisablehook = tell_unraisable
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it, and so would ours
    print("| promise | tried | failed | seconds |\n|---|---|---|---|", flush=True)
    failures = []
    for name in asked.names or PROMISES:
        said, times, promise = PROMISES[name]
        times, begun = max(1, round(times * asked.share)), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                wrong = promise(times, Path(folder))
            except PermissionError as error:
                times, wrong = 0, [f"not tried: {error}"]
        print(f"| {said} | {times} | {len(wrong)} | {time.monotonic() - begun:.0f} |", flush=True)
        failures += [f"{name}: {each}" for each in wrong]
    print(*failures, sep="\n", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
