"""Compare training on meshes of eight simulated devices with training on one device: `python -m benchmarks.sharding`.

Ten steps in float64 and thirty in float32 of a GPT and of an encoder-decoder, with dropout; also gradient accumulation over
parts of a batch, and rematerialisation.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config.mesh import MeshConfig
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.data.batches import Windows
from jaxformer.data.tasks import PAD, Pairs
from jaxformer.models import build
from jaxformer.parallel.mesh import on_mesh
from jaxformer.parallel.placement import init, on_host
from jaxformer.parity.numerics.metrics import error
from jaxformer.pytree import is_weight
from jaxformer.training.chunked_loss import read_out_cross_entropy
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.pairs import pair_loss
from jaxformer.training.step import TrainState, make_shaped_train_steps, train_state

MESHES = ("data=8", "fsdp=8", "tensor=4", "data=2,fsdp=2,tensor=2", "data=2,sequence=4")
DROPOUT = dict.fromkeys(("attention_dropout", "residual_dropout", "feed_forward_dropout", "embedding_dropout"), 0.1)
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "context": 32,
    "d_model": 64,
    "n_heads": 8,
    "d_ff": 128,
    "qkv_bias": False,
    **DROPOUT,
}
GPT_CONFIG = GPTConfig(n_layers=2, n_kv_heads=4, gated=True, norm="rms", rotary="half", positions="none", **SIZES)
PAIR_CONFIG = EncoderDecoderConfig(n_layers=2, norm_position="post", tied=True, **SIZES)
OPTIMIZER = make_optimizer(
    OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0), ScheduleConfig(name="constant")
)
ROWS = 32


class Trained(NamedTuple):
    """Result of a run."""

    losses: np.ndarray
    state: TrainState
    largest: float
    """Share of the largest leaf that one device holds."""


def batches(config: ModelConfig, step: int, rows: int = ROWS) -> Any:
    """Make the batch of a step: windows of random ids, or pairs of unequal lengths."""
    rng = np.random.default_rng(step)
    ids, other = (rng.integers(3, config.vocab_size, (rows, 17)).astype(np.int32) for _ in range(2))
    if not isinstance(config, EncoderDecoderConfig):
        return Windows(ids[:, :-1], ids[:, 1:])
    kept = np.arange(17) < rng.integers(3, 18, (rows, 1))
    return Pairs(np.where(kept, ids, PAD)[:, :16], np.where(kept, other, PAD))


def next_token_loss(model: Any, batch: Windows, key: Any) -> Any:
    """Compute the loss of the GPT recipe."""
    states, _ = model.last_hidden_state(batch.inputs, None, key=key)
    return read_out_cross_entropy(model, states, jnp.asarray(batch.targets))


def trained(config: ModelConfig, mesh: str | None, steps: int, dtype: str, parts: int = 1) -> Trained:
    """Train for some steps on a mesh, or on one device if `mesh` is None; `parts`: parts of a batch to accumulate."""
    loss = partial(pair_loss, pad=PAD, smoothing=0.1) if isinstance(config, EncoderDecoderConfig) else next_token_loss

    def fresh(key: Any) -> TrainState:
        state = train_state(build(config, rngs=key), OPTIMIZER)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if is_weight(leaf) else leaf, state)

    with on_mesh(None if mesh is None else MeshConfig.read(mesh)):
        state = init(fresh, jax.random.key(0))
        run = make_shaped_train_steps(loss, OPTIMIZER, partial(batches, config), parts=parts)
        losses = []
        for _ in range(steps):
            state, value = run(state, None, jax.random.key(1), 1)
            losses.append(float(value))
        leaf = max(jax.tree.leaves(state), key=lambda leaf: leaf.size)
        return Trained(np.array(losses), jax.tree.map(on_host, state), leaf.addressable_shards[0].data.size / leaf.size)


def apart(on_mesh: Trained, alone: Trained) -> tuple[float, float]:
    """Return the largest relative error of a loss, and the largest error (max/rms) of a parameter."""
    pairs = zip(jax.tree.leaves(on_mesh.state.model), jax.tree.leaves(alone.state.model), strict=True)
    return float(np.abs(on_mesh.losses / alone.losses - 1).max()), max(error(j, t).peak for j, t in pairs)


def table(steps: int, dtype: str) -> Iterator[str]:
    """Yield a row of the table for each model and mesh."""
    for name, config in (("GPT", GPT_CONFIG), ("encoder-decoder", PAIR_CONFIG)):
        alone = trained(config, None, steps, dtype)
        for mesh in MESHES:
            found = trained(config, mesh, steps, dtype)
            loss, model = apart(found, alone)
            yield f"| {name} | {mesh} | {dtype}, {steps} steps | {loss:.1e} | {model:.1e} | {found.largest:.3f} |"


def same_thing(dtype: str = "float64", steps: int = 3) -> Iterator[str]:
    """Yield rows of runs that have to equal the plain one: gradient accumulation and rematerialisation, without dropout."""
    quiet = replace(GPT_CONFIG, **dict.fromkeys(DROPOUT, 0.0))
    whole = trained(quiet, None, steps, dtype)
    for name, found in {
        "accumulation 4 x 8 = batch 32": trained(quiet, None, steps, dtype, parts=4),
        "the same on data=2,fsdp=2,tensor=2": trained(quiet, "data=2,fsdp=2,tensor=2", steps, dtype, parts=4),
        "rematerialisation = none": trained(replace(quiet, remat=True), None, steps, dtype),
    }.items():
        loss, model = apart(found, whole)
        yield f"| GPT | {name} | {dtype}, {steps} steps | {loss:.1e} | {model:.1e} | |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="two steps alone")
    short = parser.parse_args().short
    print("| model | mesh | run | loss, relative | parameters, max/rms | largest leaf |\n|---|---|---|---|---|---|")
    with jax.enable_x64(True):
        for row in (*table(2 if short else 10, "float64"), *same_thing()):
            print(row, flush=True)
    for row in table(2 if short else 30, "float32"):
        print(row, flush=True)


if __name__ == "__main__":
    main()
