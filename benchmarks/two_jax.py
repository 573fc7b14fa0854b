"""Compare models in Flax Linen with the same in Flax NNX, as they are or with planted bugs.

    python -m benchmarks.two_jax
    python -m benchmarks.two_jax --bugs

The kinds of `benchmarks.two_jax_models` are compared both ways, with excited weights and freshly initialised; each has to be
equal. With `--bugs`, each bug of `two_jax_bugs.txt`, of the form of `benchmarks.field_bugs`, is planted in an NNX model, and
the Linen model is the reference; it has to be noticed and placed, with no innocent module. Causes are counted.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.field_bugs import Bug, read
from benchmarks.field_outcome import Outcome, outcome, totals
from benchmarks.field_source import planted
from benchmarks.two_jax_models import LENGTH, VOCAB
from jaxformer.cli.flags import parse, run
from jaxformer.errors import InputError, ParityError
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.reference import Tier

MODELS = "benchmarks.two_jax_models"
BUGS = read(Path(__file__).with_name("two_jax_bugs.txt").read_text())
ROWS = 5
RANDOM = np.random.default_rng(0)
IDS, TARGET = (RANDOM.integers(0, VOCAB, (ROWS, n), dtype=np.int32) for n in (LENGTH, LENGTH - 2))
VALID = np.arange(LENGTH) < np.array([[9], [7], [4], [8], [1]])
IMAGES = RANDOM.standard_normal((ROWS, 12, 9, 3), dtype=np.float32)


class Kind(NamedTuple):
    """Kind of model: its classes, and its inputs."""

    linen: str
    nnx: str
    inputs: tuple[np.ndarray, ...]


KINDS = {
    "gpt": Kind("LinenGPT", "GPT", (IDS,)),
    "encoder": Kind("LinenEncoder", "Encoder", (IDS, VALID)),
    "pair": Kind("LinenPair", "Pair", (IDS, TARGET, VALID)),
    "vit": Kind("LinenViT", "ViT", (IMAGES,)),
    "mixture": Kind("LinenMixture", "Mixture", (IDS,)),
}


@dataclass(frozen=True, kw_only=True)
class TwoJax:
    """Compare models in Flax Linen with the same in Flax NNX."""

    only: tuple[str, ...] = ()
    """Names of kinds, such as gpt and vit; none given: all."""
    bugs: bool = False
    """Plant the bugs, instead of comparing the models as they are."""
    verbose: bool = False
    """Print the whole report of each verdict that is not as expected."""


class Pair(NamedTuple):
    """Both models with the same weights."""

    variables: Any
    """Linen's."""
    apply: Callable[..., Any]
    model: Any
    """NNX's."""


def main(arguments: list[str]) -> None:
    """Print a line for each comparison; ParityError if one is not as expected."""
    flags = parse(TwoJax, arguments, prog="python -m benchmarks.two_jax")
    if unknown := [name for name in flags.only if name not in KINDS]:
        raise InputError(f"only = {unknown[0]} is not one of {', '.join(KINDS)}")
    chosen = flags.only or tuple(KINDS)
    failed = judge_bugs(chosen, flags) if flags.bugs else judge_pairs(chosen, flags)
    if failed:
        raise ParityError(f"not as expected: {', '.join(failed)}")


def judge_pairs(chosen: tuple[str, ...], flags: TwoJax) -> list[str]:
    """Compare clean pairs both ways; return the titles of those that are not equal."""
    failed, done = [], 0
    for name in chosen:
        for excited in (True, False):
            for way, report in both_ways(name, pair(name, excited=excited)):
                title, done = f"{name}, {'excited' if excited else 'fresh'}, {way}", done + 1
                print(f"{title:40} {report.verdict}", flush=True)
                if report.exit_code or report.diverging:
                    failed.append(title)
                    print(report if flags.verbose else "", flush=True)
    print(f"{done - len(failed)}/{done} equal")
    return failed


def judge_bugs(chosen: tuple[str, ...], flags: TwoJax) -> list[str]:
    """Plant the bugs of these kinds; return the titles of those that are not noticed or not placed."""
    found: list[Outcome] = []
    for bug in (bug for bug in BUGS if bug.port in chosen):
        report, seconds = compared_with(bug)
        found.append(outcome(bug, report, seconds))
        print(found[-1], flush=True)
        if flags.verbose and found[-1].fails:
            print(report, flush=True)
    print(totals(found))
    return [each.bug.title for each in found if not each.blamed or each.innocents]


def both_ways(name: str, both: Pair, tier: Tier = "B") -> Iterator[tuple[str, Report]]:
    """Yield the comparisons in which Linen and NNX are the reference."""
    inputs = KINDS[name].inputs
    yield "Linen first", compare(both.variables, both.model, inputs, call_torch=both.apply, tier=tier)
    yield "NNX first", compare(both.model, both.variables, inputs, call_jax=both.apply, tier=tier)


def compared_with(bug: Bug) -> tuple[Report, float]:
    """Compare with a bug in the NNX model; return the report and the seconds that it took."""
    start = time.perf_counter()
    with planted(MODELS, bug.where, bug.old, bug.new):
        both = pair(bug.port, excited=True)
        report = compare(both.variables, both.model, KINDS[bug.port].inputs, call_torch=both.apply, tier="A")
    return report, time.perf_counter() - start


def pair(name: str, *, excited: bool) -> Pair:
    """Make both models of a kind."""
    kind, models = KINDS[name], import_module(MODELS)
    net, model = getattr(models, kind.linen)(), getattr(models, kind.nnx)()
    variables = net.init(jax.random.key(0), *kind.inputs)
    variables = excite(variables, seed=1) if excited else variables
    for collection in variables.values():
        fill(model, collection)
    return Pair(variables, lambda variables, *arrays: net.apply(variables, *arrays), model)


def fill(module: Any, arrays: Any) -> None:
    """Copy Linen's arrays into the attributes of the same names."""
    for name, value in arrays.items():
        held = getattr(module, name)
        fill(held, value) if isinstance(value, dict) else held.__setitem__(..., value)


if __name__ == "__main__":
    run(main)
