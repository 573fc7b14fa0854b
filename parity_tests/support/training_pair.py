"""A pair of models that are trained side by side, with what trains them."""

from dataclasses import replace
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.training.compare import compare_training
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.training.optimizers import clip

B, T, V, D, WIDE, STEPS, PARTS, RATE, CLIP = 6, 5, 11, 8, 9, 20, 2, 0.02, 0.1


class TorchNet(torch.nn.Module):
    """Drops by a module and by a function."""

    def __init__(self, rate: float = 0.3):
        super().__init__()
        self.embed = torch.nn.Embedding(V, D)
        self.up = torch.nn.Linear(D, WIDE)
        self.dropout = torch.nn.Dropout(rate)
        self.down = torch.nn.Linear(WIDE, D)
        self.norm = torch.nn.LayerNorm(D)
        self.head = torch.nn.Linear(D, V)
        self.rate = rate

    def forward(self, ids):
        x = F.dropout(self.embed(ids), self.rate, self.training)
        x = self.norm(x + self.down(self.dropout(F.gelu(self.up(x)))))
        return self.head(x)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = 0.3):
        self.embed = nnx.Embed(V, D, rngs=rngs)
        self.first = nnx.Dropout(rate, rngs=rngs)
        self.up = nnx.Linear(D, WIDE, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.down = nnx.Linear(WIDE, D, rngs=rngs)
        self.norm = nnx.LayerNorm(D, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.head = nnx.Linear(D, V, rngs=rngs)

    def __call__(self, ids):
        x = self.first(self.embed(ids))
        x = self.norm(x + self.down(self.dropout(jax.nn.gelu(self.up(x), approximate=False))))
        return self.head(x)


class LinenNet(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, ids):
        drop = flax.linen.Dropout(0.3, deterministic=False)
        x = drop(flax.linen.Embed(V, D, name="embed")(ids))
        hidden = jax.nn.gelu(flax.linen.Dense(WIDE, name="up")(x), approximate=False)
        x = x + flax.linen.Dense(D, name="down")(drop(hidden))
        return flax.linen.Dense(V, name="head")(flax.linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="norm")(x))


RULES = Family(
    "user",
    {},
    (
        Rule("kernel", "weight", "transposed"),
        Rule("embedding", "weight"),
        Rule("scale", "weight"),
        Rule("bias", "bias"),
    ),
)


def factor(step: int) -> float:
    return min(1.0, (step + 1) / 5)


def rate(step: Any) -> Any:
    return RATE * jnp.minimum(1.0, (step + 1) / 5)


def optimizer(
    *, decay: float | None = 0.01, epsilon: float = 1e-8, root: float = 0.0, clipping: Any = clip, mean: bool = True, **how: Any
) -> Any:
    """torch's own, piece by piece."""
    decayed = how if decay is None else {"weight_decay": decay, **how}
    inner = optax.chain(clipping(CLIP), optax.adamw(rate, eps=epsilon, eps_root=root, **decayed))
    return optax.MultiSteps(inner, PARTS, use_grad_mean=mean)


def matrices(parameters: Any) -> Any:
    return jax.tree.map(lambda array: array.ndim > 1, parameters)


def coupled() -> Any:
    inner = optax.chain(clip(CLIP), optax.add_decayed_weights(0.01), optax.scale_by_adam(), optax.scale_by_learning_rate(rate))
    return optax.MultiSteps(inner, PARTS)


def batches(n: int = STEPS * PARTS) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(0)
    return [(rng.integers(0, V, (B, T), np.int32), rng.integers(0, V, (B, T), np.int32)) for _ in range(n)]


def cross_entropy(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def jax_loss(model, ids, targets):
    return cross_entropy(model(ids), targets)


def linen_loss(parameters, ids, targets, key):
    return cross_entropy(LinenNet().apply({"params": parameters}, ids, rngs={"dropout": key}), targets)


LEARNING = TrainingSpec(
    batches=batches(),
    torch_loss=lambda model, ids, targets: F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()),
    jax_loss=jax_loss,
    torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=RATE),
    jax_optimizer=optimizer(),
    torch_schedule=lambda optimizer: LambdaLR(optimizer, factor),
    jax_schedule=rate,
    clip_norm=CLIP,
    accumulate=PARTS,
)
FEW = replace(LEARNING, batches=batches(3 * PARTS))


def course(learning=LEARNING, torch_model=None, jax_model=None):
    torch.manual_seed(0)
    return compare_training(torch_model or TorchNet(), jax_model or Net(nnx.Rngs(0)), learning, RULES)


def outcome(found):
    return {stage.name: stage.status for stage in found.stages}
