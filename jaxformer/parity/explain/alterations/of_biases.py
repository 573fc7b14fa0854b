"""What may be otherwise in where a bias is added: behind the function that follows the product."""

from collections.abc import Iterator
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.other_functions import ACTIVATIONS, PLAIN_NAMES

PRODUCTS = ("linear", "conv1d", "conv2d", "conv3d")


def alterations_of(operations: list[Operation]) -> Iterator[Alteration]:
    """Of a product whose sum an activation reads."""
    products = [each for each in operations if each.name in PRODUCTS and bias_of(each.args, each.kwargs) is not None]
    for product in products:
        for other in operations:
            if PLAIN_NAMES.get(other.name, other.name) in ACTIVATIONS and reads(other, product):
                says = f"adds its bias behind {other.source}"
                yield Alteration(f"computes {product.source}", says, lambda p=product, o=other: moved(p, o))


def bias_of(args: Any, kwargs: Any) -> torch.Tensor | None:
    """Of a product."""
    return args[2] if len(args) > 2 else kwargs.get("bias")


def reads(other: Operation, product: Operation) -> bool:
    """Whether an operation reads the sum."""
    x = next(iter(other.args), None)
    return isinstance(x, torch.Tensor) and x.shape == product.output.shape and torch.equal(x, product.output)


def moved(product: Operation, other: Operation) -> Altered:
    """Inside, the bias of each product is added to what the activation makes of it."""
    biases: list[torch.Tensor] = []

    def bare(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
        bias = bias_of(args, kwargs)
        if bias is not None:
            biases.append(bias.reshape(-1, *[1] * (len(args[1].shape) - 2)))
        kept = {key: value for key, value in kwargs.items() if key != "bias"}
        return function(*args[:2], None, *args[3:], **kept)

    return Altered({product.place: bare, other.place: lambda f, a, k, n: f(*a, **k) + biases.pop(0)})
