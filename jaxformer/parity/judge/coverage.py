"""The check of what this run covers: weights on which torch's output does not depend cannot be judged."""

from jaxformer.parity.judge.comparison import Comparison, Result
from jaxformer.parity.report.data import Stage


def sensitivity(comparison: Comparison) -> Result | None:
    """How many weights have no influence on torch's output; None where torch was not asked."""
    found = comparison.reference.not_covered
    if found is None:
        return None
    says = f"{len(found)} without influence on the output, so not judged" if found else "the output depends on every parameter"
    return Result(Stage("sensitivity", "equal", says), list(found))
