"""How figures and names are written, wherever a report is shown."""

from jaxformer.parity.report.report import Module, Step


def figure(value: float) -> str:
    """'1.7e-04'; a bitwise zero is '0'."""
    return "0" if value == 0 else f"{value:.1e}"


def name_of(module: Module) -> str:
    """Its path on our side."""
    return module.jax or "the model"


def worst_step(steps: list[Step]) -> Step:
    """The step whose loss or parameters are furthest off; a NaN is furthest of all."""
    return max(steps, key=lambda step: max(rank(step.loss_error), rank(step.parameter_error)))


def rank(error: float) -> float:
    """How bad an error is: NaN as bad as infinity."""
    return float("inf") if error != error else error


def count(number: int, noun: str) -> str:
    """'1 call', '1,200 calls'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
