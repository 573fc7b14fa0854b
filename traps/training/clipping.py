"""Clipping by the norm.

`clip_grad_norm_` multiplies by `limit / (norm + 1e-6)`, optax's `clip_by_global_norm` by `limit / norm`. That is a
millionth of the gradient, which grows over thousands of steps, and more where the norm itself is small.
"""

import jax
import jax.numpy as jnp
import optax
import torch

LIMIT = 0.1


def torch_optimizer():
    return lambda model: torch.optim.SGD(model.parameters(), lr=0.1), None, LIMIT


def wrong():
    return optax.chain(optax.clip_by_global_norm(LIMIT), optax.sgd(0.1))


def clip(updates, state, params=None):
    factor = jnp.minimum(1.0, LIMIT / (optax.tree.norm(updates) + 1e-6))
    return jax.tree.map(lambda update: update * factor, updates), state


def right():
    return optax.chain(optax.GradientTransformation(lambda params: optax.EmptyState(), clip), optax.sgd(0.1))
