"""Registry of the checks, in the order in which they run. A new check is a function in a file of its own, and a row here."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import get_args

from jaxformer.errors import InputError
from jaxformer.parity.attribute.comparison import Comparison, Need, Result
from jaxformer.parity.attribute.compiler import compiler, miscompiled
from jaxformer.parity.attribute.low_precision import bfloat16, float32
from jaxformer.parity.attribute.values_and_gradients import (
    activation_gradients,
    dropout,
    forward,
    gradients,
    local,
    running_statistics,
    sensitivity,
)
from jaxformer.parity.attribute.weights import weights
from jaxformer.parity.report.data import Stage
from jaxformer.parity.trace.programs import one_by_one
from jaxformer.parity.trace.reference import LOW_PRECISION, Tier
from jaxformer.validation.fields import check_choice


@dataclass(frozen=True)
class Check:
    """A question that a comparison answers."""

    name: str
    run: Callable[[Comparison], Result | None]
    """Function that runs the check; it returns None if the reference cannot answer."""
    needs: frozenset[Need] = field(default_factory=frozenset)
    """Data that the check needs from torch and from runs of the JAX model."""
    by_module: bool = False
    """True if its differences are those of modules, so that the report shows the table of modules."""


CHECKS = (
    Check("weights", weights),
    Check("forward", forward, frozenset({"forward"}), by_module=True),
    Check("local", local, frozenset({"isolated"}), by_module=True),
    Check("gradients", gradients, frozenset({"gradients"})),
    Check("activation gradients", activation_gradients, frozenset({"gradients"}), by_module=True),
    Check("dropout", dropout, frozenset({"forward"})),
    Check("running statistics", running_statistics, frozenset({"forward"})),
    Check("sensitivity", sensitivity, frozenset({"coverage"})),
    Check("float32", float32, frozenset({"low precision"})),
    Check("bfloat16", bfloat16, frozenset({"low precision", "isolated"})),
    Check("compiler", compiler, frozenset({"forward"})),
)
OF_TRAINING = ("dropout", "running statistics")
OF_VALUES = {"forward", "local", "gradients", "activation gradients"}
"""Checks for which the JAX model runs."""
CHECK_NAMES = tuple(check.name for check in CHECKS if check.name not in (*LOW_PRECISION["C"], *OF_TRAINING, "compiler"))
"""Checks that a caller may choose; the others come with a tier, with training mode, or beside checks of values."""


def chosen_checks(names: tuple[str, ...], tier: Tier, *, in_training: bool = False) -> list[Check]:
    """Return the checks of these names, of the tier and of training mode; InputError for unknown names."""
    if not names or isinstance(names, str):
        raise InputError(f"checks is {repr(names) if names else 'empty'}; give a tuple of some of {', '.join(CHECK_NAMES)}")
    if set(names) == {"sensitivity"} and tier == "A":
        raise InputError("checks = ('sensitivity',) compares nothing in tier A; add others, or leave checks out")
    for name in names:
        check_choice("checks", name, CHECK_NAMES)
    check_choice("tier", tier, get_args(Tier))
    more = (*LOW_PRECISION[tier], *(OF_TRAINING if in_training else ()), *(["compiler"] if {*names} & OF_VALUES else []))
    return [check for check in CHECKS if check.name in {*names, *more}]


def needs_of(checks: Sequence[Check]) -> frozenset[Need]:
    """Union of the needs of these checks."""
    return frozenset[Need]().union(*(check.needs for check in checks))


def run_checks(comparison: Comparison, checks: Sequence[Check]) -> Iterator[Result]:
    """Run the checks and yield their results. A tensor without a match ends the comparison before the first check."""
    comparison.candidate  # noqa: B018
    fault: str | None = None
    with ExitStack() as stack:
        for check in checks:
            if check.name in OF_VALUES and fault is None and (fault := miscompiled(comparison)):
                stack.enter_context(one_by_one())
                comparison = replace(comparison)  # a copy without cached results
            if result := check.run(comparison):
                yield replace(result, more={**comparison.module_fields, **result.more}) if check.by_module else result
        comparison.reference  # noqa: B018  # the torch model has to run even if only weights are compared
    if fault:
        yield Result(Stage("compiler", "warning", f"XLA, not the port: {fault}, by which the port is judged"))
