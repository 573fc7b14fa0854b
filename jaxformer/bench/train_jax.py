"""Training in JAX: jaxformer as its recipes run it, and Flax NNX in the ordinary way: a GPT as a user of Flax writes it, with
Flax's own layers and the torch twin's weights."""

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from flax import nnx

from jaxformer.bench.limits import device_memory
from jaxformer.bench.problems import WEIGHTS, Arrays, Training
from jaxformer.config.models import GPTConfig
from jaxformer.config.settings import OptimizerConfig
from jaxformer.convert.safetensors import load_weights
from jaxformer.data.batches import draw_windows
from jaxformer.data.tasks import TASKS, Pairs
from jaxformer.models import abstract
from jaxformer.runtime.jit import jit
from jaxformer.runtime.memory import keep_freed_memory
from jaxformer.training.losses import cross_entropy
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.pairs import pair_loss
from jaxformer.training.schedules import make_schedule
from jaxformer.training.step import PRECISIONS, make_shaped_train_steps, make_train_steps, train_state
from jaxformer.validation.inputs import check_config

ACTIVATIONS = {
    "relu": nnx.relu,
    "gelu": lambda x: nnx.gelu(x, approximate=False),
    "gelu_tanh": lambda x: nnx.gelu(x, approximate=True),
}


class Block(nnx.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        width, epsilon = config.d_model, config.norm_epsilon
        self.attention_norm = nnx.LayerNorm(width, epsilon=epsilon, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            config.n_heads, width, decode=False, dropout_rate=config.attention_dropout, rngs=rngs
        )
        self.feed_forward_norm = nnx.LayerNorm(width, epsilon=epsilon, rngs=rngs)
        self.up, self.down = nnx.Linear(width, config.d_ff, rngs=rngs), nnx.Linear(config.d_ff, width, rngs=rngs)
        self.dropout = nnx.Dropout(config.residual_dropout, rngs=rngs)
        self.activation = config.activation

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask))
        return x + self.dropout(self.down(ACTIVATIONS[self.activation](self.up(self.feed_forward_norm(x)))))


class GPT(nnx.Module):
    """GPT of nnx layers: `logits = model(tokens)`."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        self.token = nnx.Embed(config.vocab_size, config.d_model, rngs=rngs)
        self.position = nnx.Embed(config.context, config.d_model, rngs=rngs)
        self.dropout = nnx.Dropout(config.embedding_dropout, rngs=rngs)
        self.blocks = nnx.List(Block(config, rngs) for _ in range(config.n_layers))
        self.norm = nnx.LayerNorm(config.d_model, epsilon=config.norm_epsilon, rngs=rngs)
        head = nnx.Linear(config.d_model, config.vocab_size, use_bias=config.head_bias, rngs=rngs)
        self.head = None if config.tied else head

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.dropout(self.token(tokens) + self.position(jnp.arange(tokens.shape[1])))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return self.token.attend(x) if self.head is None else self.head(x)


def load_gpt(path: Path, config: GPTConfig) -> GPT:
    """Load a GPT with the twin's weights, in training mode."""
    weights = safetensors.numpy.load_file(path)
    model = GPT(config, nnx.Rngs(0))
    model.token.embedding[...] = weights["embed.token.weight"]
    model.position.embedding[...] = weights["embed.position.weight"]
    load_norm(model.norm, weights, "norm")
    if model.head is not None:
        load_linear(model.head, weights, "head")
    for i, block in enumerate(model.blocks):
        load_block(block, weights, f"stack.blocks.{i}.", (config.n_heads, config.head_width))
    return model


def load_block(block: Block, weights: dict[str, Any], start: str, heads: tuple[int, int]) -> None:
    """Load a block's weights, whose names begin with `start`; the twin packs queries, keys and values."""
    for norm in ("attention_norm", "feed_forward_norm"):
        load_norm(getattr(block, norm), weights, start + norm)
    load_linear(block.up, weights, f"{start}feed_forward.up")
    load_linear(block.down, weights, f"{start}feed_forward.down")
    kernels, biases = (weights[f"{start}attention.qkv.{leaf}"].reshape(3, *heads, -1) for leaf in ("weight", "bias"))
    for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        projection = getattr(block.attention, name)
        projection.kernel[...], projection.bias[...] = kernel.transpose(2, 0, 1), bias[..., 0]
    out: Any = block.attention.out
    out.kernel[...] = weights[f"{start}attention.out.weight"].T.reshape(*heads, -1)
    out.bias[...] = weights[f"{start}attention.out.bias"]


def load_norm(norm: nnx.LayerNorm, weights: dict[str, Any], name: str) -> None:
    """Load gain and bias of a norm."""
    for leaf, other in (("scale", "weight"), ("bias", "bias")):
        getattr(norm, leaf)[...] = weights[f"{name}.{other}"]


def load_linear(linear: nnx.Linear, weights: dict[str, Any], name: str) -> None:
    """Load matrix and bias of a linear layer."""
    for leaf, value in (("kernel", weights[f"{name}.weight"].T), ("bias", weights.get(f"{name}.bias"))):
        if value is not None:
            getattr(linear, leaf)[...] = value


Ids = jax.Array | np.ndarray
LossAndCount = tuple[jax.Array, jax.Array]


class Jaxformer:
    """jaxformer's side: many steps in one dispatch, with batches drawn inside."""

    def __init__(self, folder: Path, problem: Training, count: int):
        if problem.draws == "ready":
            keep_freed_memory()
        self.problem, self.count, self.seed = problem, count, jax.random.key(problem.seed)
        loss: Any = text_loss if problem.pad is None else partial(pair_loss, pad=problem.pad, smoothing=problem.smoothing)
        self.loss = PRECISIONS[problem.precision](loss)
        optimizer = make_optimizer(problem.optimizer, problem.schedule)
        self.state = train_state(load_weights(folder / WEIGHTS, abstract(problem.model)), optimizer)
        self.data = None if problem.text is None else jnp.asarray(problem.text)
        self.steps = self.make_steps(optimizer)
        self.measured = jit(lambda model, batch: self.loss(model, batch, None))

    def make_steps(self, optimizer: optax.GradientTransformation) -> Any:
        """Return steps(state, data, seed, n), made as in the recipe for this work."""
        problem = self.problem
        first = problem.batches[0][0]
        if problem.draws == "ready":
            ready = [Pairs(*batch) for batch in problem.batches]
            return make_shaped_train_steps(self.loss, optimizer, lambda step: ready[step % len(ready)])
        if problem.draws == "task":
            return make_train_steps(self.loss, optimizer, lambda _, key: TASKS[problem.task].draw(key, len(first)))
        return make_train_steps(self.loss, optimizer, partial(draw_windows, batch=len(first), context=first.shape[1]))

    def check(self) -> list[float]:
        """Return the loss on the first batch."""
        return [self.mean_loss(self.problem.batches[:1])]

    def mean_loss(self, batches: Sequence[Arrays]) -> float:
        """Mean loss over these batches, without dropout."""
        kind = tuple if self.problem.pad is None else Pairs._make
        sums = [self.measured(self.state.model, kind(batch)) for batch in batches]
        total, count = np.asarray(jax.device_get(sums), np.float64).sum(0)
        return float(total / count)

    def warm_up(self) -> None:
        """Compile every shape."""
        self.go(self.problem.shapes)

    def run(self) -> None:
        """Run one round."""
        self.go(self.count)

    def go(self, n: int) -> None:
        """Train n steps."""
        self.state, loss = self.steps(self.state, self.data, self.seed, n)
        self.last_loss = float(loss)

    def figures(self) -> dict[str, Any]:
        """Return the mean loss of the last round, and the memory of an accelerator."""
        return {"loss": self.last_loss, **device_memory()}


def text_loss(model: Any, batch: Any, key: jax.Array | None) -> LossAndCount:
    """Return the cross-entropy of the next token, as in the recipe: its sum and its count."""
    inputs, targets = batch
    return cross_entropy(model(inputs, key=key), targets)


class FlaxNNX:
    """Side of Flax: a GPT of nnx layers, optax's own optimizer, and one jitted step per call."""

    def __init__(self, folder: Path, problem: Training, count: int):

        self.problem, self.count = problem, count
        self.model = load_gpt(folder / WEIGHTS, check_config(problem.model, GPTConfig))
        self.optimizer = nnx.Optimizer(self.model, ordinary(problem.optimizer, make_schedule(problem.schedule)), wrt=nnx.Param)
        self.batches = cycle(problem.batches)

    def check(self) -> list[float]:
        """Return the loss on the first batch."""
        return [self.mean_loss(self.problem.batches[:1])]

    def mean_loss(self, batches: Sequence[Arrays]) -> float:
        """Mean loss over these batches, without dropout."""
        self.model.eval()
        sums = np.asarray([jax.device_get(nnx_sums(self.model, *batch)) for batch in batches], np.float64).sum(0)
        self.model.train()
        return float(sums[0] / sums[1])

    def warm_up(self) -> None:
        """Compile the step; its second call has other types than its first."""
        self.go(2)

    def run(self) -> None:
        """Run one round."""
        self.go(self.count)

    def go(self, n: int) -> None:
        """Train n steps."""
        total = jnp.zeros(())
        for _ in range(n):
            total += nnx_step(self.model, self.optimizer, *next(self.batches))
        self.last_loss = float(total) / n

    def figures(self) -> dict[str, Any]:
        """Return the mean loss of the last round."""
        return {"loss": self.last_loss}


def nnx_loss(model: Any, inputs: Ids, targets: Ids) -> jax.Array:
    """Mean cross-entropy of the next token."""
    return optax.softmax_cross_entropy_with_integer_labels(model(inputs), targets).mean()


@nnx.jit
def nnx_sums(model: Any, inputs: Ids, targets: Ids) -> LossAndCount:
    """Return the summed loss and the number of targets; negative targets are ignored."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(inputs), jnp.maximum(targets, 0))
    return jnp.where(targets < 0, 0.0, losses).sum(), (targets >= 0).sum()


@nnx.jit
def nnx_step(model: Any, optimizer: nnx.Optimizer, inputs: Ids, targets: Ids) -> jax.Array:
    """Take one optimizer step, and return the loss before it."""
    loss, gradient = nnx.value_and_grad(nnx_loss)(model, inputs, targets)
    optimizer.update(model, gradient)
    return loss


def ordinary(config: OptimizerConfig, schedule: Any) -> optax.GradientTransformation:
    """Build optax's Adam or AdamW, preceded by clipping."""
    rules: Any = {"b1": config.beta1, "b2": config.beta2, "eps": config.epsilon}
    if config.name == "adamw":
        rules |= {"weight_decay": config.weight_decay, "mask": lambda params: jax.tree.map(lambda p: p.ndim > 1, params)}
    made = {"adam": optax.adam, "adamw": optax.adamw}[config.name](lambda step: config.learning_rate * schedule(step), **rules)
    return made if config.clip_norm is None else optax.chain(optax.clip_by_global_norm(config.clip_norm), made)
