"""`jaxformer doctor`: check that this jaxlib computes correctly, or what transformers 4 and 5 make of a folder."""

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.errors import InputError
from jaxformer.runtime.cores import cores
from jaxformer.runtime.crashes import Outcome
from jaxformer.runtime.environment import check_jax
from jaxformer.runtime.packages import releases
from jaxformer.runtime.products import VARIABLE, Work, library, measure_again, measured, options
from jaxformer.runtime.xla_options import IN_FLAGS, NEWEST_TRIED, Fault, cure, faults, jaxlib_release

CLASSES: dict[Work, str] = {"small": "small models in training", "large": "large models in training", "write": "decoding"}
"""Classes of programs, in words."""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Show versions, devices and threads; run programs that some releases of jaxlib compute wrong, each in a process of its
    own; and say what jaxformer switches off. Exit code 0, or 1 if something is wrong and has no cure.

    With a folder: show what transformers 4 and 5 make differently of its files, a line each; its weights are not needed. Exit
    code 0: the same model and texts, 1: not the same, or the files contradict each other, 2: no such folder.
    """

    folder: tyro.conf.Positional[Path | None] = None
    """A folder that transformers wrote. None: the machine."""
    measure: bool = False
    """Measure anew which kernel library multiplies fastest."""
    json: Path | None = None
    """Save the findings about the folder as JSON (its schema: `jaxformer parity schema --of doctor`)."""

    def __post_init__(self) -> None:
        if self.folder is None and self.json is not None:
            raise InputError("--json is of the findings about a folder; name the folder")
        if self.folder is not None and self.measure:
            raise InputError("--measure is of the machine; leave it out, or the folder")


def main(arguments: list[str]) -> int:
    """Print diagnostics, the verdict last."""
    flags = parse(Doctor, arguments, prog="jaxformer doctor")
    if flags.folder is not None:
        return examined(flags.folder, flags.json)
    check_jax()
    print("\n".join(machine()), flush=True)
    from jaxformer.runtime.known_programs import tried

    if flags.measure:
        measure_again()
    for line in libraries():
        print(line, flush=True)
    plain = tried({})
    distinct = {str(compiled): compiled for compiled in map(options, CLASSES)}
    trials = [tried(compiled) if compiled else plain for compiled in distinct.values()]
    cured = {fault: max((trial[fault] for trial in trials), key=lambda outcome: outcome.value is not True) for fault in plain}
    width = max(len(fault.says) for fault in plain)
    print(f"\n{'known faults of XLA':{width}}  {'report':10}  {'jax.jit':24}  jaxformer")
    for fault, outcome in plain.items():
        print(f"{fault.says:{width}}  {fault.report:10}  {word(outcome):24}  {word(cured[fault])}")
    wrong = [fault for fault, outcome in cured.items() if outcome.value is not True]
    print()
    for line in advice(cured=[fault for fault in plain if plain[fault].value is not True and fault not in wrong]):
        print(line)
    if wrong:
        print(f"WRONG: {len(wrong)} of {len(cured)} programs, and nothing cures it: {', '.join(fault.url for fault in wrong)}")
        return 1
    print(f"right: {len(cured)} of {len(cured)} programs, as jaxformer compiles them")
    return 0


def examined(folder: Path, path: Path | None) -> int:
    """Print the findings about a folder, save them if a file is named, and return the exit code."""
    from jaxformer.convert.versions.examine import report_of

    report = report_of(folder)
    if path is not None:
        try:
            path.write_text(report.to_json() + "\n", "utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; give another name") from None
        print(f"report {path}")
    print("\n".join([*(finding.line for finding in report.findings), report.verdict]))
    return int(report.status == "different")


def machine() -> Iterator[str]:
    """Versions, devices and threads, a line each."""
    import jax

    found = {"python": platform.python_version(), **releases()}
    for name in ("torch", "transformers", "orbax-checkpoint"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    yield " · ".join(f"{name} {version}" for name, version in found.items())
    devices = jax.devices()
    yield f"{len(devices)} {devices[0].platform} device{'s' * (len(devices) > 1)} ({devices[0].device_kind}), {cores()} threads"
    if flags := os.environ.get("XLA_FLAGS"):
        yield f"XLA_FLAGS={flags}"
    if (release := jaxlib_release()) > NEWEST_TRIED:
        names = [".".join(map(str, numbers)) for numbers in (release, NEWEST_TRIED)]
        yield "jaxlib {} is newer than {}, the newest that was tried: the table below is measured here".format(*names)


def libraries() -> Iterator[str]:
    """Yield, for each class of programs, the kernel library of its products and the measured times of all."""
    for work, words in CLASSES.items():
        if name := library(work):
            times = ", ".join(f"{each} {1000 * seconds:.1f} ms" for each, seconds in measured(work).items())
            why = f"{VARIABLE} fixes it" if os.environ.get(VARIABLE) else f"{VARIABLE} or --products fixes one"
            yield f"matrix products, {words}: {name} (measured: {times}; {why})"


def word(outcome: Outcome) -> str:
    """Format the outcome of a program in a word or a short text."""
    if outcome.error:
        return f"ends: {outcome.error}" if outcome.crashed else outcome.error[:60]
    return "right" if outcome.value else "wrong"


def advice(cured: list[Fault]) -> Iterator[str]:
    """Yield lines on what is switched off, why, and what a user's own programs need."""
    if off := cure():
        named = ", ".join(f"{name}={value!r}" for name, value in off.items())
        reports = ", ".join(fault.report for fault in faults())
        yield f"switched off in training, decoding and evaluation: YNNPACK's reductions ({named}), for {reports}"
        yield "switched off in comparisons: all of YNNPACK, whose products are less exact"
    if cured:
        yield f"your own jax.jit has none of this; for a process of yours, set XLA_FLAGS={IN_FLAGS}"
