"""Comparison in a process of its own, so that a crash of the compiler or of the user's code is reported.

After a crash a second process runs the JAX model's operations one by one: it names the module, or judges the port by them.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxformer.errors import InputError, ParityError, first_line
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.report import Report
from jaxformer.runtime.crashes import CRASHED, Child, twice
from jaxformer.runtime.packages import extra_package


def isolated(compare: Callable[..., Report], *given: Any, **options: Any) -> Report:
    """Run compare(*given, **options) in a process of its own. Raises InputError if an argument cannot be pickled."""
    with extra_package():
        import cloudpickle
    try:
        payload = cloudpickle.dumps(partial(compare, *given, **options))
    except Exception as error:
        why = f"isolate = True hands both models to another process, and they cannot be pickled: {first_line(error)}"
        raise InputError(f"{why}; name them to `jaxformer parity compare` instead, which builds them there") from None
    outcome, crash = twice(lambda environment: Child(payload, environment, quiet=False).outcome())
    if crash:
        return ended(crash)
    if outcome.raised is not None:
        raise outcome.raised
    if outcome.error:
        raise ParityError(outcome.error)
    return outcome.value


def ended(crash: str) -> Report:
    """Make the report of a comparison that ended before it had one, as where its process crashed."""
    return Report(tier="", tolerance=0.0, stages=[Stage("forward", "failed", crash)])


def first_crash() -> list[Stage]:
    """Stage about the crash of the first process, in the second process; empty elsewhere."""
    if not (said := os.environ.get(CRASHED)):
        return []
    return [Stage("compiler", "warning", f"XLA, not the port: {said}; the port is judged by its operations, one by one")]
