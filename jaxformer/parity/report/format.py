"""How figures are written, wherever a report is shown."""

from jaxformer.parity.report.data import Step


def figure(value: float) -> str:
    """'1.7e-04'; an exact zero is '0'."""
    return "0" if value == 0 else f"{value:.1e}"


def worst_step(steps: list[Step]) -> Step:
    """The step with the largest error of the loss or the parameters."""
    return max(steps, key=lambda step: max(rank(step.loss_error), rank(step.parameter_error)))


def rank(error: float) -> float:
    """An error to sort by: NaN counts as infinity."""
    return float("inf") if error != error else error


def count(number: int, noun: str) -> str:
    """'1 call', '1,200 calls'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
