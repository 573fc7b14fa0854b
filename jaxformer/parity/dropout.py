"""Dropout with the very same units dropped on both sides, so that training with dropout is compared exactly.

output, masks = with_masks(model)(tokens, key=key)
with feed_masks(torch_model.train(), masks):
    reference = torch_model(torch.from_numpy(tokens))
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax
import numpy as np

from jaxformer.errors import ParityError
from jaxformer.nn import dropout


def with_masks(f: Callable[..., Any]) -> Callable[..., tuple[Any, list[jax.Array]]]:
    """f that returns (output, keep masks) with the masks it drew in call order, True = kept; pure, so it can be jitted.

    Layers run one by one and are not rematerialised: a mask cannot leave a scan or a checkpoint.
    """

    def recording(*args: Any, **kwargs: Any) -> tuple[Any, list[jax.Array]]:
        masks: list[jax.Array] = []
        draw = dropout.keep_mask

        def keep_mask(*drawn: Any) -> jax.Array:
            masks.append(draw(*drawn))
            return masks[-1]

        with (
            mock.patch.object(dropout, "keep_mask", keep_mask),
            mock.patch.object(jax.lax, "scan", _one_by_one),
            mock.patch.object(jax, "checkpoint", lambda layer: layer),
        ):
            return f(*args, **kwargs), masks

    return recording


def _one_by_one(layer: Callable[[Any, Any], tuple[Any, None]], carry: Any, layers: Any, **how: Any) -> tuple[Any, None]:
    for i in range(jax.tree.leaves(layers)[0].shape[0]):
        carry, _ = layer(carry, jax.tree.map(lambda leaf, i=i: leaf[i], layers))
    return carry, None


@contextmanager
def feed_masks(torch_model: Any, masks: Sequence[np.ndarray | jax.Array]) -> Iterator[None]:
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
            return torch.where(torch.from_numpy(np.array(mask)), x / (1 - site.p), torch.zeros_like(x))

        return forward

    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(mock.patch.object(site, "forward", fed(site)))
        yield
    left = len(list(waiting))
    if left:
        raise ParityError(f"{left} of {len(masks)} dropout masks were not used by torch")
