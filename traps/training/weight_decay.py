"""Decay in the gradient or beside it.

`torch.optim.Adam(weight_decay=w)` adds w times the weight to the gradient, which Adam then scales; `AdamW` and
`optax.adamw` shrink the weight by itself. Nor are the defaults the same: 1e-2 in torch's AdamW, 1e-4 in optax's.
"""

import optax
import torch


def torch_optimizer():
    return lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)


def wrong():
    return optax.adamw(1e-2, weight_decay=0.1)


def right():
    return optax.chain(optax.add_decayed_weights(0.1), optax.adam(1e-2))
