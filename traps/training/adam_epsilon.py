"""Epsilon of Adam.

torch adds epsilon to the root of the second moment. optax has two: `eps` as torch's, and `eps_root` under the root, which
the gradient of a gradient needs. TensorFlow's epsilon is a third, before the correction of the bias.
"""

import optax
import torch


def torch_optimizer():
    return lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)


def wrong():
    return optax.adam(1e-2, eps=0.0, eps_root=1e-3)


def right():
    return optax.adam(1e-2, eps=1e-3)
