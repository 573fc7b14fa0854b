"""Compare ports that others wrote, the Flax models of transformers 4.46 and diffusers 0.30, with their PyTorch originals, as
they are or with planted bugs.

transformers 5 has no Flax models, so this needs an environment of its own (once, about two minutes):

    python3 -m venv field-venv
    field-venv/bin/pip install jax==0.10.2 flax==0.12.8 torch==2.13.0 transformers==4.46.3 flatbuffers jaxtyping rich tyro
    field-venv/bin/pip install --no-deps diffusers==0.30.3 pillow importlib_metadata zipp
    field-venv/bin/pip install --no-deps -e .
    field-venv/bin/python -m benchmarks.field
    field-venv/bin/python -m benchmarks.field --bugs

Every model is tiny and random, with excited parameters; nothing is downloaded. The package's own converter takes torch's
weights to Flax, and the comparison gets no rules. torch's `padding_idx` is switched off, since no Flax model has it. Each line
has a verdict and its seconds; a verdict that `benchmarks.field_kinds` does not expect is an error, exit code 2. With `--bugs`,
each bug of `benchmarks.field_bugs` is planted in its port; the figures at the end are the numbers of bugs that were noticed, in
the right module, with the right cause.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.field_bugs import BUGS, Bug
from benchmarks.field_kinds import KINDS, Kind
from benchmarks.field_models import as_of_old, file_of, flax_release, ported
from benchmarks.field_outcome import Outcome, outcome, totals
from benchmarks.field_source import planted
from jaxformer.cli.flags import parse, run
from jaxformer.errors import InputError, ParityError
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.report.report import Report


@dataclass(frozen=True, kw_only=True)
class Field:
    """Compare Flax models of transformers 4.46 and diffusers 0.30 with their PyTorch originals."""

    only: tuple[str, ...] = ()
    """Names of models, such as t5 and whisper; none given: all."""
    bugs: bool = False
    """Plant the bugs, instead of comparing the ports as they are."""
    bug: str = ""
    """Plant only the bugs whose name contains this text."""
    tier: Literal["A", "B"] = "A"
    """A: float64; B: float32 too."""
    verbose: bool = False
    """Print the whole report of each port that is not equal, and of each bug that is not reported as it should be."""
    checks: tuple[str, ...] = field(default=CHECK_NAMES)
    """Names of the checks to run."""


def main(arguments: list[str]) -> None:
    """Print a line for each model or bug; ParityError if a verdict is not the expected one."""
    flags = parse(Field, arguments, prog="python -m benchmarks.field")
    known = sorted({kind.name for kind in KINDS})
    for name in flags.only:
        if name not in known:
            raise InputError(f"only = {name} is not one of {', '.join(known)}")
    as_of_old()
    chosen = [kind for kind in KINDS if not flags.only or kind.name in flags.only]
    if flags.bugs or flags.bug:
        judge_bugs(chosen, flags)
    else:
        judge_ports(chosen, flags)


def judge_ports(chosen: Sequence[Kind], flags: Field) -> None:
    """Compare the ports as they are, and print their verdicts; ParityError if one is not expected."""
    wrong = []
    for kind in chosen:
        report, seconds = compared(kind, flags)
        expected = report.status == ("different" if kind.differs else "equal") and kind.differs in report.verdict
        wrong += [] if expected else [kind.model]
        print(f"{'ok   ' if expected else 'WRONG'}  {kind.model:34} {seconds:5.1f} s  {report.verdict}", flush=True)
        if flags.verbose and report.status != "equal":
            print(report, flush=True)
    print(f"{len(chosen) - len(wrong)}/{len(chosen)} as expected")
    if wrong:
        raise ParityError(f"unexpected verdicts: {', '.join(wrong)}")


def judge_bugs(chosen: Sequence[Kind], flags: Field) -> None:
    """Plant the bugs of these ports, one after another, and print the outcomes; ParityError if one is not noticed."""
    found: list[Outcome] = []
    for kind in chosen:
        for bug in (bug for bug in BUGS if bug.port == kind.name and flags.bug in bug.name):
            found.append(judged(bug, kind, flags))
    print(totals(found))
    if unseen := [each.bug.title for each in found if not each.noticed]:
        raise ParityError(f"not noticed: {', '.join(unseen)}")


def judged(bug: Bug, kind: Kind, flags: Field) -> Outcome:
    """Plant a bug in a port, compare, print the outcome and return it."""
    with planted(file_of(kind), bug.where, bug.old, bug.new):
        report, seconds = compared(kind, flags)
    found = outcome(bug, report, seconds)
    print(found, flush=True)
    if flags.verbose and found.fails:
        print(report, flush=True)
    return found


def compared(kind: Kind, flags: Field, seed: int = 0) -> tuple[Report, float]:
    """Compare one model; return the report and the seconds that it took."""
    port = ported(kind, flax_release(kind.package), seed)
    start = time.perf_counter()
    report = compare(
        port.torch_model,
        port.params,
        port.inputs,
        call_torch=port.call_torch,
        call_jax=port.call_jax,
        checks=flags.checks,
        tier=flags.tier,
    )
    seconds = time.perf_counter() - start
    gc.collect()
    return report, seconds


if __name__ == "__main__":
    run(main)
