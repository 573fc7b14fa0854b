"""The check of what is drawn in training mode: whether both sides drop at the same places, and as much."""

from jaxformer.parity.judge.comparison import Comparison, Result
from jaxformer.parity.report.data import Stage


def dropout(comparison: Comparison) -> Result | None:
    """None where nothing is drawn, as in inference mode. What one side alone draws is no difference where all is equal."""
    draws = comparison.candidate.draws
    if draws is None or not (draws.torch or draws.jax):
        return None
    diverging = any(row.diverging for row in comparison.rows)
    if diverging and (untied := draws.untied()):
        return Result(Stage("dropout", "failed", untied))
    said = [says for _, _, says in draws.differences()]
    different = bool(said) and diverging
    return Result(Stage("dropout", "different" if different else "equal", "; ".join([*said, draws.says()])))
