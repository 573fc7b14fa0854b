"""A scale that one side has inside of a module, and the other one behind it, where the two are nearly one number: the module is
right, and the number is not torch's, as of a root that is rounded to bfloat16."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.explain.constants import say
from jaxformer.parity.explain.factor import SMALLER, factor_between, round_number
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.run.isolated import Mismatch

NEAR = 2.0**-7
"""How far the two may be apart, as a part of them: as far as bfloat16 rounds."""


class Scale(NamedTuple):
    """Of what a module gives."""

    behind: Site
    """jax's call whose code has it."""
    says: str


def one_scale(wrong: Mapping[Site, list[Mismatch]]) -> dict[Site, Scale]:
    """Of calls whose values differ, those that are right but for where the scale is."""
    alone = {site: mismatches[0] for site, mismatches in wrong.items() if len(mismatches) == 1}
    given = {site: each for site, each in alone.items() if each.child is None and each.torch.dtype.kind == "f"}
    found = {}
    for site, inner in given.items():
        for behind, outer in alone.items():
            if behind != site and outer.torch.shape == inner.torch.shape and (says := scaled(str(site), inner, outer)):
                found[site] = Scale(behind, says)
    return found


def scaled(name: str, inner: Mismatch, outer: Mismatch) -> str:
    """'torch multiplies emb by 4.89897949 = sqrt(24); jax by 4.90625, that rounded to bfloat16'; '' where it is not so."""
    if not all(np.isfinite(array).all() for array in (inner.torch, inner.jax, outer.torch, outer.jax)):
        return ""
    both = [factor_between(array, inner.torch) for array in (inner.jax, outer.torch, outer.jax)]
    own, torchs, jaxs = (number for number, _ in both)
    if not own or not torchs or max(residual for _, residual in both) > EXPLAINED:
        return ""
    torchs, jaxs = round_number(torchs / own), round_number(jaxs)
    if not EXPLAINED < abs(jaxs / torchs - 1) <= NEAR:
        return ""
    types = (np.dtype(kind).name for kind in SMALLER if float(np.asarray(torchs).astype(kind)) == jaxs)
    rounded = next((f", that rounded to {kind}" for kind in types), "")
    return f"torch multiplies {name} by {say(torchs)}; jax by {say(jaxs)}{rounded}"
