"""Statistics in place of tensors: is the first module that differs the same one?

    python -m benchmarks.statistics --count 60

Mutants of the project's own models, of which each changes values in one module, are compared twice: with whole tensors, where
each module is also run alone, and with statistics, where the first array that differs in the normal run names the module.
"""

from dataclasses import dataclass
from functools import cache
from itertools import islice

from jaxformer.cli.flags import parse, run
from jaxformer.convert.rules import to_jax
from jaxformer.evaluation.cases import BATCH, CONFIGS, LENGTH
from jaxformer.evaluation.inject import Mutant
from jaxformer.evaluation.ladder import adversarial_inputs, call_torch, load_torch
from jaxformer.evaluation.mutants import MUTANTS
from jaxformer.evaluation.run import candidate, reference
from jaxformer.models import abstract
from jaxformer.parity.numerics.metrics import over
from jaxformer.parity.recorded import check
from jaxformer.parity.report.report import Report
from jaxformer.parity.summary.summary import Summary, summarize
from jaxformer.parity.trace.selection import ALL
from jaxformer.parity.trace.transformations import written_out
from jaxformer.runtime.packages import extra_package


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Compare mutants by tensors and by statistics."""

    count: int = 60
    """Number of mutants that change values."""


@cache
def summary(case: str) -> Summary:
    """Return the statistics of a case's torch model."""
    with extra_package():
        import torch_ref.models

    recorded, config = reference(case), CONFIGS[case]
    model = load_torch(torch_ref.models.build(config), to_jax(recorded.weights, abstract(config), candidate(case).family))
    return summarize(model, adversarial_inputs(config, BATCH, LENGTH, seed=2), call_torch, ALL)


def first(report: Report) -> str:
    """Return the first module whose own values differ; '' if there is none."""
    return next((module.name for module in report.diverging if over(module.local, "activation")), "")


def both(mutant: Mutant) -> tuple[str, str] | None:
    """Return the first module that differs, by tensors and by statistics; None if the mutant changes no values of a module."""
    recorded, known = reference(mutant.case), summary(mutant.case)
    with written_out(), mutant.inject(candidate(mutant.case), lambda: None) as side:
        whole = check(recorded, side.like, rules=side.family, call_jax=side.call, checks=("forward", "local"), tier="A")
        if not (by_tensors := first(whole)):
            return None
        model = to_jax(recorded.weights, side.like, side.family)
        return by_tensors, first(check(known, model, rules=side.family, call_jax=side.call))


def outcomes(count: int) -> list[tuple[Mutant, str, str]]:
    """Return the mutants with what both ways name, each printed as it is known."""
    found = []
    tried = (mutant for mutant in MUTANTS if mutant.case in CONFIGS and mutant.diverging)
    for mutant, names in islice(((mutant, names) for mutant in tried if (names := both(mutant))), count):
        found.append((mutant, *names))
        print(f"{'same ' if names[0] == names[1] else 'OTHER'}  {mutant.name:44}  {names[0]}  {names[1]}", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Print a line for each mutant, and the number of those with the same module."""
    flags = parse(Statistics, arguments, prog="python -m benchmarks.statistics")
    found = outcomes(flags.count)
    same = sum(by_tensors == by_statistics for _, by_tensors, by_statistics in found)
    print(f"the same first module in {same} of {len(found)} mutants")
    return int(same < len(found))


if __name__ == "__main__":
    run(main)
