"""Default inputs of a compared step: excited parameters, rows of unequal lengths, dropout, and AdamW with clipping."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.config.mesh import MeshConfig
from jaxformer.config.models import EncoderDecoderConfig, ModelConfig
from jaxformer.config.settings import IGNORE_INDEX, OptimizerConfig, ScheduleConfig
from jaxformer.data.batches import Windows
from jaxformer.data.tasks import Pairs
from jaxformer.errors import InputError, type_of
from jaxformer.models import GPT, EncoderDecoder, Model, abstract
from jaxformer.parity.probe.parameters import excite
from jaxformer.pytree import is_weight, map_named, named_leaves, named_weights
from jaxformer.training.losses import cross_entropy
from jaxformer.training.pairs import pair_loss
from jaxformer.training.step import Loss, TrainState, train_state

OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1, clip_norm=0.1), ScheduleConfig()
LEAST_ROWS, LONGEST = 8, 16
MOMENT = 1e-3
"""Size of drawn moments, which is that of small gradients."""
COUNT = 1
"""Number of steps taken before: at step 0 a warm-up's learning rate is 0, which hides the gradient."""
PAD = 0
"""Padding id of an encoder-decoder's pairs."""


def excited(config: ModelConfig) -> Model:
    """Build a model whose parameters hide no bug."""
    return excite(abstract(config), seed=0)


def wide_state(model: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Build the state before a step, in float64, on the host."""
    with jax.enable_x64(True):
        state = train_state(jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), model), optimizer)
        for name, leaf in named_leaves(state.moments).items():
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise InputError(f"the optimizer's {name} is a random key, whose draws hide a difference; compare without it")
        state = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64 if is_weight(leaf) else None), state)
    return replace(state, step=np.full_like(state.step, COUNT), moments=drawn(state.moments, named_weights(model)))


def drawn(moments: Any, parameters: Iterable[str]) -> Any:
    """Draw positive moments of parameters, because zeros hide what is done with them, and set step counters to COUNT."""
    rng, ends = np.random.default_rng(0), tuple(f".{name}" for name in parameters)

    def fill(name: str, leaf: Any) -> Any:
        if f".{name}".endswith(".count"):
            return np.full_like(leaf, COUNT)
        is_moment = is_weight(leaf) and f".{name}".endswith(ends)
        return MOMENT * rng.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype) if is_moment else leaf

    return map_named(fill, moments)


def default_loss(model: Any) -> Loss:
    """Return the recipes' loss; InputError for a model that has none."""
    if isinstance(model, GPT):
        return next_token_loss
    if isinstance(model, EncoderDecoder):
        return partial(pair_loss, pad=PAD)
    raise InputError(f"{type_of(model)} has no loss of its own; give loss(model, batch, key) -> (sum, count), and a batch")


def next_token_loss(model: GPT, batch: Windows, key: Any) -> tuple[Any, Any]:
    """Return the cross-entropy of the next token: its sum and its count."""
    return cross_entropy(model(batch.inputs, key=key), jnp.asarray(batch.targets))


def batch_of(model: Any, mesh: MeshConfig) -> Any:
    """Return `default_batch`; InputError for a model that is not jaxformer's."""
    if isinstance(model, GPT | EncoderDecoder):
        return default_batch(model.config, mesh)
    raise InputError(f"{type_of(model)} has no batch of its own; give batch")


def default_batch(config: ModelConfig, mesh: MeshConfig) -> Any:
    """Draw random ids whose rows have unequal numbers of targets, so that no mean of shards' means is the overall mean."""
    rows, longest = mesh.rows * math.ceil(LEAST_ROWS / mesh.rows), min(LONGEST, config.context - 1)
    rng = np.random.default_rng(0)
    length = max(longest // mesh.sequence, 1) * mesh.sequence
    ids, targets = (rng.integers(1, config.vocab_size, (rows, length)).astype(np.int32) for _ in range(2))
    counted = np.arange(length) < rng.integers(2, length + 1, (rows, 1))
    if isinstance(config, EncoderDecoderConfig):
        start = np.ones((rows, 1), np.int32)
        return Pairs(np.where(counted, ids, PAD), np.concatenate([start, np.where(counted, targets, PAD)], 1))
    return Windows(ids, np.where(counted, targets, IGNORE_INDEX))


def check_weights(model: Any) -> None:
    """Raise InputError if the model holds no arrays, or leaves that no gradient trains."""
    leaves = named_leaves(model)
    if not leaves:
        raise InputError(f"model is {type_of(model)}, which holds no arrays; give a model, or its configuration")
    for name, leaf in leaves.items():
        if not hasattr(leaf, "dtype"):
            which = f"model.{name}" if name else "model"
            raise InputError(f"{which} is {type_of(leaf)}; give a model whose leaves are arrays, or its configuration")
        if not is_weight(leaf):
            raise InputError(f"model.{name} is of type {leaf.dtype}, and no gradient trains it; give a model of floats alone")


def check_rows(batch: Any, mesh: MeshConfig) -> None:
    """Raise InputError if the batch holds anything but arrays of numbers, or the mesh does not divide its rows equally."""
    for name, leaf in named_leaves(batch).items():
        which = f"batch.{name}" if name else "the batch"
        kind = getattr(leaf, "dtype", None)
        if kind is None or not np.ndim(leaf) or not (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, np.bool_)):
            is_what = type_of(leaf) if kind is None else f"an array of {kind} with {np.ndim(leaf)} axes"
            raise InputError(f"{which} is {is_what}; give arrays of numbers, whose first axis is that of rows")
        rows = np.shape(leaf)[0]
        if rows % mesh.rows:
            raise InputError(
                f"{which} has {rows} rows, which data x fsdp = {mesh.data} x {mesh.fsdp} of the mesh does not divide; "
                f"give a multiple of {mesh.rows}"
            )
