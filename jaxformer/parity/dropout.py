"""Dropout with the very same units dropped on both sides, so that training with dropout is compared exactly.

    output, masks = record_masks(lambda: model(tokens, key=key))
    with feed_masks(torch_model.train(), masks):
        reference = torch_model(torch.from_numpy(tokens))

The masks depend on the key and on shapes alone: record them on one forward pass, then run the training step itself
compiled, with the same key.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest import mock

import jax
import jax.core
import numpy as np

from jaxformer.errors import ParityError
from jaxformer.nn import dropout

Output = TypeVar("Output")


def record_masks(f: Callable[[], Output]) -> tuple[Output, list[np.ndarray]]:
    """f(), run op by op, and the keep masks it drew, in call order (True = kept).

    Raises ParityError where a mask has no value yet, as inside `jax.checkpoint`: record with `remat` off.
    """
    masks: list[np.ndarray] = []
    draw = dropout.keep_mask

    def record(*arguments: Any) -> jax.Array:
        mask = draw(*arguments)
        if isinstance(mask, jax.core.Tracer):
            raise ParityError("a dropout mask is drawn while tracing and has no value yet; record with remat = False")
        masks.append(np.array(mask))
        return mask

    with mock.patch.object(dropout, "keep_mask", record), jax.disable_jit():
        return f(), masks


@contextmanager
def feed_masks(torch_model: Any, masks: Sequence[np.ndarray]) -> Iterator[None]:
    """Inside, every nn.Dropout of the torch model that is training and has p > 0 takes the next mask instead of drawing one.

    Raises ParityError for a mask of another shape, for too few and, when the context ends, for too many.
    """
    import torch
    from torch import nn

    waiting = iter(masks)
    sites = [site for site in torch_model.modules() if isinstance(site, nn.Dropout) and site.p > 0]

    def fed(site: nn.Dropout) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            if not site.training:
                return x
            mask = next(waiting, None)
            if mask is None:
                raise ParityError(f"torch drops out more often than the {len(masks)} times that were recorded")
            if mask.shape != tuple(x.shape):
                raise ParityError(f"dropout mask of shape {mask.shape} for units of shape {tuple(x.shape)}")
            return torch.where(torch.from_numpy(mask), x / (1 - site.p), torch.zeros_like(x))

        return forward

    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(mock.patch.object(site, "forward", fed(site)))
        yield
    left = len(list(waiting))
    if left:
        raise ParityError(f"{left} of {len(masks)} dropout masks were not used by torch")
