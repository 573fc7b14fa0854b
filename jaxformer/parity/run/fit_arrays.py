"""Which of torch's arrays fits one of jax's: the same kind of numbers, and the same shape in some order of axes."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.capture.call_records import Trace
from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.numerics.axis_order import Order, orders_for, plain_order


def first_fitting(theirs: list[tuple[int, np.ndarray]], ours: Any, *, any_kind: bool = False) -> tuple[int, np.ndarray] | None:
    """The first of torch's numbered arrays that fits; of any kind of numbers if that is allowed. Masks of booleans never fit
    otherwise, since their sense may differ."""
    for i, array in theirs:
        same_kind = _kind(array.dtype) == _kind(ours.dtype) != "bool_"
        if (any_kind or same_kind) and orders_for(array.shape, ours.shape):
            return i, array
    return None


def plain_orders(
    ours: Mapping[Site, list[np.ndarray]], theirs: Trace, pairs: Mapping[Site, Site], counted: Mapping[Site, np.ndarray]
) -> dict[ArrayKey, Order]:
    """The orders of torch's axes that are clear from what jax's calls give in the normal run, in torch's call order."""
    found, back = {}, {other: mine for mine, other in pairs.items()}
    for site in (back[other] for other in theirs if other in back and other != CALL):
        left = list(enumerate(theirs[pairs[site]].output))
        for array in ours[site]:
            if (fitting := first_fitting(left, array)) is not None:
                number, other = fitting
                left = [(i, each) for i, each in left if i > number]
                if (order := plain_order(other, array, counted.get(site))) is not None:
                    found[ArrayKey(site, "output", number)] = order
    return found


def _kind(dtype: Any) -> str:
    kinds = ("floating", "integer", "complexfloating", "bool_")
    return next(kind for kind in kinds if jnp.issubdtype(dtype, getattr(jnp, kind)))
