"""One trap, compared: a torch module, and a wrong and a right port of it, which a file of this package holds.

A file has `Torch`, `INPUTS`, `wrong` and `right`. A port is a function of torch's parameters by name and the inputs, or an NNX
class, `Wrong` or `Right`, which gets torch's weights by name. `OPTIONS` are further arguments of `jf.compare`. Where a file has
`torch_optimizer`, its ports make optimizers of optax; where it has `torch_steps`, they decode step by step.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxformer as jf
from traps.small import Small, batches, jax_loss, small, torch_loss

ORDERS = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0)}
"""Rank of a torch weight -> axes of the Flax kernel: (out, in) to (in, out), (out, in, H, W) to (H, W, in, out)."""


def report_of(trap: Any, side: str) -> jf.Report:
    """Compare a trap's torch module with its port, `side` "wrong" or "right"."""
    port: Any = getattr(trap, side, None) or getattr(trap, side.capitalize())
    if hasattr(trap, "torch_optimizer"):
        return trained(trap.torch_optimizer, port)
    theirs: Any = jf.excite(trap.Torch().eval(), seed=0)
    options = {"tier": "A", **getattr(trap, "OPTIONS", {})}
    if inspect.isclass(port):
        model = with_weights(getattr(trap, side.capitalize())(nnx.Rngs(0)), theirs)
        return jf.compare(theirs, model, trap.INPUTS, **options)
    weights = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in theirs.state_dict().items()}
    if hasattr(trap, "torch_steps"):
        return jf.compare(theirs, weights, trap.INPUTS, call_jax=trap.forward, generate=(trap.torch_steps, port), **options)
    return jf.compare(theirs, weights, trap.INPUTS, call_jax=port, **options)


def trained(torch_optimizer: Any, port: Any) -> jf.Report:
    """Compare some steps of training with torch's optimizer, and perhaps its schedule, and with the port's."""
    theirs = jf.excite(Small().eval(), seed=0)
    optimizer, *schedule = found if isinstance(found := torch_optimizer(), tuple) else (found,)
    settings = dict(zip(("torch_schedule", "clip_norm"), schedule, strict=False))
    spec = jf.TrainingSpec(
        batches=batches(),
        torch_loss=torch_loss,
        jax_loss=jax_loss,
        torch_optimizer=optimizer,
        jax_optimizer=port(),
        **settings,
    )
    weights = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in theirs.named_parameters()}
    return jf.compare(theirs, weights, batches()[0][:1], call_jax=small, training=spec, tier="A", checks=("forward",))


def with_weights(model: Any, theirs: Any) -> Any:
    """Give an NNX model the weights of a torch module whose attributes have the same names."""
    state = {name: tensor.detach().numpy() for name, tensor in theirs.state_dict().items()}
    names = {"kernel": "weight", "scale": "weight", "embedding": "weight", "mean": "running_mean", "var": "running_var"}
    for path, variable in jax.tree_util.tree_leaves_with_path(nnx.state(model), is_leaf=lambda x: isinstance(x, nnx.Variable)):
        *owners, leaf = [str(getattr(key, "key", key)) for key in path if getattr(key, "key", None) is not None]
        array = state[".".join([*owners, names.get(leaf, leaf)])]
        variable[...] = jnp.asarray(array.transpose(ORDERS[array.ndim]) if leaf == "kernel" else array)
    return model


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw standard normal numbers, float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
