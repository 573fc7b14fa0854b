"""What may be otherwise in how a continuous state space is made discrete: x = dt A decays a state by exp(x), and what comes in
may be weighed by dt, as Euler has it, or by dt (exp(x) - 1) / x, which holds the input in between."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation

FACTORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "(exp(x) - 1) / x": lambda x: torch.expm1(x) / x,
    "x / (exp(x) - 1)": lambda x: x / torch.expm1(x),
    "1 / (1 - x/2)": lambda x: 1 / (1 - x / 2),
    "exp(x)": torch.exp,
    "exp(-x)": lambda x: torch.exp(-x),
}
WEIGHING = ("mul", "div", "truediv", "einsum", "matmul")


def alterations_of(operations: list[Operation]) -> Iterator[Alteration]:
    """Of each product, by each x that decays."""
    for operation, exponents in decays(operations):
        for product in operations:
            if product.name in WEIGHING and len(product.runs) == len(exponents) and weighs(exponents[0], product.output):
                for says, factor in FACTORS.items():
                    said = f"has {says} times that, x being {operation}"
                    yield instead(product, said, partial(weighed, exponents, factor))


def decays(operations: list[Operation]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """What exponentials are of; and products that are nowhere positive, as those are that are added up first."""
    for each in operations:
        x = each.output
        if each.name == "exp":
            yield f"what {each.source} is of", [run.args[0] for run in each.runs]
        elif each.name in WEIGHING and isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim and x.max() <= 0:
            yield each.source, [run.output for run in each.runs]


def weighs(x: torch.Tensor, product: Any) -> bool:
    """Whether there is one x for each entry, or for each of the first axes."""
    return isinstance(product, torch.Tensor) and 0 < x.ndim <= product.ndim and product.shape[: x.ndim] == x.shape


def weighed(
    exponents: list[torch.Tensor], factor: Callable[[torch.Tensor], torch.Tensor], function: Any, args: Any, kwargs: Any, n: int
) -> Any:
    """The product, weighed."""
    product, x = function(*args, **kwargs), factor(exponents[n])
    return product * x.reshape(*x.shape, *[1] * (product.ndim - x.ndim))
