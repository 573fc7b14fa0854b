"""Training in JAX: jaxformer as its recipes run it, and Flax NNX in the ordinary way."""

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxformer.bench.problems import WEIGHTS, Arrays, Training
from jaxformer.config.models import GPTConfig
from jaxformer.config.settings import OptimizerConfig
from jaxformer.convert.safetensors import load_weights
from jaxformer.data.batches import draw_windows
from jaxformer.data.tasks import TASKS, Pairs
from jaxformer.models import abstract
from jaxformer.runtime.memory import keep_freed_memory
from jaxformer.runtime.xla_options import jit
from jaxformer.training.losses import cross_entropy
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.pairs import pair_loss
from jaxformer.training.schedules import make_schedule
from jaxformer.training.step import make_shaped_train_steps, make_train_steps, train_state
from jaxformer.validation.inputs import check_config

Ids = jax.Array | np.ndarray
LossAndCount = tuple[jax.Array, jax.Array]


class Jaxformer:
    """jaxformer's side: many steps in one dispatch, with batches drawn inside."""

    def __init__(self, folder: Path, problem: Training, count: int):
        if problem.draws == "ready":
            keep_freed_memory()
        self.problem, self.count, self.seed = problem, count, jax.random.key(problem.seed)
        self.loss: Any = text_loss if problem.pad is None else partial(pair_loss, pad=problem.pad, smoothing=problem.smoothing)
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
        """Return the mean loss of the last round."""
        return {"loss": self.last_loss}


def text_loss(model: Any, batch: Any, key: jax.Array | None) -> LossAndCount:
    """Return the cross-entropy of the next token, as in the recipe: its sum and its count."""
    inputs, targets = batch
    return cross_entropy(model(inputs, key=key), targets)


class FlaxNNX:
    """Side of Flax: a GPT of nnx layers, optax's own optimizer, and one jitted step per call."""

    def __init__(self, folder: Path, problem: Training, count: int):
        from jaxformer.bench.nnx_gpt import load_gpt

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
