"""Several changes that give the same arrays: no sentence of the report is about another one's place."""

from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.explain.alterations.altered import Found
from jaxformer.parity.explain.alterations.fits import Fit, said


def fit(torch: str, jax: str) -> Fit:
    return Fit(f"torch {torch}; jax {jax}", 1e-16, Found(CALL, torch, jax, 0.0), frozenset())


def test_each_has_its_own_place():
    says = said([fit("computes `loss + more`", "does it twice"), fit("computes `0.1 * share`", "with 0.2 for 0.1 there")])
    first = "torch computes `loss + more`; jax does it twice (residual 1e-16)"
    assert says == f"{first}, or the same: torch computes `0.1 * share`; jax with 0.2 for 0.1 there"


def test_what_is_left_out_is_not_told_once_more_as_another_array():
    left = fit("computes `gate * y`", "has its second operand alone")
    again = [fit("computes `gate * y` and mlp", "the two exchanged"), fit("computes `x + gate * y`", "reads what mlp gives")]
    assert said([left, *again]) == "torch computes `gate * y`; jax has its second operand alone (residual 1e-16)"
    assert "or the same: torch computes `x + gate * y`; jax reads" in said(again)
