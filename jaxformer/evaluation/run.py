"""Gate: every bug of `mutants.MUTANTS` must turn the comparison red.

    jaxformer parity mutants

prints which check noticed which bug, and the module and cause that it named. Everything runs op by op: compiled operations are
shared between mutants, and no compiled function outlives the code that it was made from.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConversionError, ParityError
from jaxformer.evaluation.cases import (
    BATCH,
    CASES,
    CONFIGS,
    DECODINGS,
    LENGTH,
    TIERS,
    TRAININGS,
    check_decoding,
    decode_jax,
    decode_torch,
)
from jaxformer.evaluation.inject import Mutant
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, check_twins32, compare_twins, load_torch
from jaxformer.evaluation.mutants import MUTANTS
from jaxformer.evaluation.outcome import Outcome, first_failure, passed, table_row, verdict
from jaxformer.models import abstract
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check
from jaxformer.parity.recording import record_torch
from jaxformer.parity.report.data import Module
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.parity.trace.reference import Reference, Tier
from jaxformer.parity.trace.transformations import written_out
from jaxformer.parity.training.compare import check_training
from jaxformer.parity.training.step_comparison import EQUAL_GRADIENTS
from jaxformer.parity.validate import Mode
from jaxformer.pytree import map_named
from jaxformer.runtime.packages import extra_package

STEPS: tuple[tuple[tuple[str, ...], Tier, Mode], ...] = (
    (("weights", "forward", "local"), "A", "eval"),
    (("gradients", "activation gradients"), "A", "train"),
    (("weights",), "B", "eval"),
)
"""Steps of a model's comparison: values, gradients in training mode, and float32. It stops at the first step that is red."""


@dataclass(frozen=True)
class Judged:
    """Verdict on the jax side of a case."""

    killed_by: str | None = None
    """Tier and name of the first check that is red; None if all are equal."""
    modules: list[Module] = field(default_factory=list)
    """Modules that were compared; none if a run is compared as a whole."""
    cause: str = ""
    """Cause that was named, if a run is compared as a whole."""


@functools.cache
def reference(case: str, mode: Mode = "eval") -> Reference:
    """Record a model's reference with excited weights and adversarial tokens."""
    with extra_package():
        import torch_ref.models

    config = CONFIGS[case]
    model = excite(abstract(config), seed=1)
    if case == "shifted":
        model = map_named(lambda name, leaf: leaf + 100 if name == "embed.token.table" else leaf, model)
    inputs = adversarial_inputs(config, BATCH, LENGTH, seed=2)
    everything = tuple(name for names, *_ in STEPS for name in names)
    return record_torch(load_torch(torch_ref.models.build(config), model), inputs, call_torch, checks=everything, mode=mode)


@functools.cache
def decoded_by_torch(case: str) -> Hypotheses:
    """Record the reference of a decoding."""
    return decode_torch(DECODINGS[case])


def candidate(case: str) -> Candidate:
    """Return the jax side of a case, without a bug."""
    whole = TRAININGS | DECODINGS
    config = whole[case].model if case in whole else CONFIGS[case]
    return Candidate(abstract(config), call_jax)


def comparison(case: str) -> Callable[[Candidate], Judged]:
    """Return the judge of a case's jax side; torch's side is recorded here, before a bug is injected."""
    if case in CONFIGS:
        return functools.partial(judge_model, {mode: reference(case, mode) for mode in get_args(Mode)})
    return functools.partial(judge_whole_run, checks_of(case))


def judge_model(recorded: Mapping[Mode, Reference], side: Candidate) -> Judged:
    """Compare a model step by step."""
    for names, tier, mode in STEPS:
        report = check(recorded[mode], side.like, rules=side.family, call_jax=side.call, checks=names, tier=tier)
        if report.status != "equal":
            return Judged(first_failure(report), report.modules)
    return Judged()


def judge_whole_run(checks: Mapping[str, Callable[[], Any]], _: Candidate) -> Judged:
    """Compare a whole training or decoding, which builds its own model and has no modules to name."""
    for name, run in checks.items():
        try:
            run()
        except (ConversionError, ParityError) as error:
            return Judged(name, cause=str(error).partition(f"{EQUAL_GRADIENTS}; ")[2])
    return Judged()


def checks_of(case: str) -> dict[str, Callable[[], Any]]:
    """Return the comparisons of a whole run, by tier and name."""
    if case in DECODINGS:
        recorded = decoded_by_torch(case)
        return {"A tokens, float64": lambda: check_decoding(decode_jax(DECODINGS[case]), recorded)}
    training = TRAININGS[case]
    tiers: dict[str, Callable[[], Any]] = {
        "A training, float64": lambda: check_training(compare_twins(training)),
        "B training, float32": lambda: check_twins32(training),
    }
    return {name: run for name, run in tiers.items() if name[0] in TIERS.get(case, "A")}


def try_mutant(mutant: Mutant) -> Outcome:
    """Run the comparison with the bug in the jax side."""
    judge, reached = comparison(mutant.case), []
    with written_out(), mutant.inject(candidate(mutant.case), lambda: reached.append(True)) as mutated:
        judged = judge(mutated)
    return Outcome(mutant, judged.killed_by, bool(reached), judged.modules, judged.cause)


def false_alarm(case: str) -> str | None:
    """Return the check that is red for the unmutated jax side; None if there is no false alarm."""
    judge = comparison(case)
    with written_out():
        return judge(candidate(case)).killed_by


def main() -> int:
    """Print the table; return 0 if every mutant is killed and named as it should be, and no unmutated case is red."""
    outcomes = []
    for mutant in MUTANTS:
        outcomes.append(try_mutant(mutant))
        print(table_row(outcomes[-1]), flush=True)
    red = {case: failed for case in CASES if (failed := false_alarm(case))}
    for case, failed in red.items():
        print(f"without a bug, case {case} fails: {failed}")
    print(verdict(outcomes))
    return int(bool(red) or not passed(outcomes))
