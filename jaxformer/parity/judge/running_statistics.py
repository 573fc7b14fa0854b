"""The check of running statistics in training mode: torch's buffers after the call, and what jax has in their place."""

from jaxformer.parity.judge.comparison import Comparison, Result
from jaxformer.parity.numerics.metrics import over
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.format import count
from jaxformer.parity.run.training_mode import is_statistic

NONE_GIVEN = "call_jax gives no new ones: let it return (output, updated), as apply(variables, x, mutable=['batch_stats']) does"


def running_statistics(comparison: Comparison) -> Result | None:
    """None where torch has none, as in inference mode."""
    if not comparison.in_training:
        return None
    traced = comparison.traced
    torch = [site for site in traced.reference.calls if is_statistic(site, traced.reference)]
    if not torch:
        return None
    pairs = {other: mine for mine, other in traced.pairs.items()}
    missing = [site.path for site in torch if site not in pairs]
    left_out = [f"{path} after the call" for path in missing]
    if len(missing) == len(torch):
        return Result(Stage("running statistics", "n/a", NONE_GIVEN), inconclusive=left_out)
    names = [row.jax for row in comparison.rows if row.diverging and row.torch in {site.path for site in torch}]
    errors = [found for site in torch if (mine := pairs.get(site)) and (found := traced.normal[mine])]
    if names or any(over(each, "activation") for each in errors):
        says = f"{len(names)} of {len(torch)} have other updates: {', '.join(names)}" if names else "of another input"
        return Result(Stage("running statistics", "different", says), inconclusive=left_out)
    largest = max((each.relative for each in errors), default=0.0)
    return Result(
        Stage("running statistics", "equal", f"{count(len(errors), 'buffer')}, relL2 {largest:.1e}"), inconclusive=left_out
    )
