"""Which calls of a JAX model read arrays that were made without values."""

from dataclasses import replace

import numpy as np

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.capture.empty_arrays import filled_otherwise
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.run.isolated import Isolated
from jaxformer.parity.run.trace import Traced


def reads_of_unset(traced: Traced) -> dict[Site, str]:
    """jax's calls whose own code reads one -> the line that makes it. A pass for each line: what is read changes with the
    numbers that stand there, and an array that is wholly overwritten changes nothing."""
    found: dict[Site, str] = {}
    for line in dict.fromkeys(traced.normal_run.unset):
        with jax_float64(traced.tables), filled_otherwise(line):
            again = replace(traced.isolation).run(traced.isolated.orders, corrected=False)
        for site in _changed(traced.isolated, again):
            found.setdefault(site, line)
    return found


def _changed(before: Isolated, after: Isolated) -> list[Site]:
    values = {(each.owner, each.place): each.jax for each in before.mismatches}
    return [
        each.owner
        for each in after.mismatches
        if not np.array_equal(values.get((each.owner, each.place), np.nan), each.jax, equal_nan=True)
    ]
