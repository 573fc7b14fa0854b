"""Scales that one side applies inside a module and the other side after it, with different numbers.

The module itself is right, and jax's number is not torch's, for example a root that is rounded to bfloat16.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jaxformer.parity.diagnose.by_arrays.values import SMALLER, factor_between, round_number
from jaxformer.parity.diagnose.mutation import Free
from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.diagnose.solve import solved
from jaxformer.parity.numerics.metrics import EXPLAINED, over
from jaxformer.parity.runs.isolated import Isolated, Mismatch
from jaxformer.parity.runs.trace import Scale, Traced
from jaxformer.parity.trace.call_sites import Site

NEAR = 2.0**-7
"""Largest relative difference of the two numbers: bfloat16's rounding error."""


def one_scale(wrong: Mapping[Site, list[Mismatch]]) -> dict[Site, Scale]:
    """Find the calls whose values differ only because the scale is applied elsewhere."""
    alone = {site: mismatches[0] for site, mismatches in wrong.items() if len(mismatches) == 1}
    given = {site: each for site, each in alone.items() if each.child is None and each.torch.dtype.kind == "f"}
    found = {}
    for site, inner in given.items():
        for behind, outer in alone.items():
            if behind != site and outer.torch.shape == inner.torch.shape and (says := scaled(str(site), inner, outer)):
                found[site] = Scale(behind, says)
    return found


def scaled(name: str, inner: Mismatch, outer: Mismatch) -> str:
    """Describe the scales of two mismatches, or return '' if there are none.

    Example: 'torch multiplies emb by 4.89897949 = sqrt(24); jax by 4.90625, that rounded to bfloat16'.
    """
    if not all(np.isfinite(array).all() for array in (inner.torch, inner.jax, outer.torch, outer.jax)):
        return ""
    both = [factor_between(array, inner.torch) for array in (inner.jax, outer.torch, outer.jax)]
    own, torchs, jaxs = (number for number, _ in both)
    if not own or not torchs or max(residual for _, residual in both) > EXPLAINED:
        return ""
    torchs, jaxs = round_number(torchs / own), round_number(jaxs)
    return said(name, torchs, jaxs) if EXPLAINED < abs(jaxs / torchs - 1) <= NEAR else ""


def said(name: str, torchs: float, jaxs: float) -> str:
    """Describe the two numbers, and the dtype to which torch's is rounded."""
    types = (np.dtype(kind).name for kind in SMALLER if float(np.asarray(torchs).astype(kind)) == jaxs)
    rounded = next((f", that rounded to {kind}" for kind in types), "")
    return f"torch multiplies {name} by {say(torchs)}; jax by {say(jaxs)}{rounded}"


def with_scale_behind_a_tap(traced: Traced) -> Traced:
    """Solve for a scale in jax's code after a tap, and judge the later taps without it.

    It applies to a tap that shows a multiple of torch's array, if later taps of the same code differ.
    """
    taps = {*traced.normal_run.taps}
    wrong = [each for found, each in traced.values if over(found, "activation") and each.place and each.place.site in taps]
    for i, inner in enumerate(wrong):
        behind = [each for each in wrong[i + 1 :] if each.reader == inner.reader]
        if behind and inner.child is None and (found := _solved(traced, inner, behind)):
            return found
    return traced


def _solved(traced: Traced, inner: Mismatch, behind: list[Mismatch]) -> Traced | None:
    own, residual = factor_between(inner.jax, inner.torch)
    if not own or residual > EXPLAINED or abs(own - 1) <= EXPLAINED:
        return None
    torchs, most = round_number(1 / own), max(behind, key=lambda each: traced.off(each).relative)

    def given(scale: float) -> Isolated:
        return traced.given({inner.place: inner.torch / scale} if inner.place else {})

    def run(scale: float) -> np.ndarray | None:
        return next(each.jax for each in given(scale).mismatches if each.place == most.place) if scale else None

    found = solved(run, Free(torchs, sure=True), most.jax, most.torch, EXPLAINED)
    if found is None or abs(found[0] / torchs - 1) <= EXPLAINED:
        return None
    isolated, first = given(found[0]), behind[0]
    left = {each.place for each in isolated.mismatches if over(traced.off(each), "activation")}
    if left & {first.place, most.place} or not left <= {each.place for _, each in traced.values}:
        return None
    kept = {each.place: each for each in (inner, first)}
    values = [kept.get(each.place, each) for each in isolated.mismatches]
    back = [each for each in isolated.gradient_mismatches if not each.place or each.place.site != inner.owner]
    scale = Scale(first.owner, said(str(inner.owner), torchs, found[0]))
    return replace(traced, isolated=replace(isolated, mismatches=values, gradient_mismatches=back), scales={inner.owner: scale})
