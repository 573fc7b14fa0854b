"""Trainers of both sides, step by step, in float64 or in float32; and the specification of a training comparison: batches,
losses, optimizers and schedules of both sides."""

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, to_torch
from jaxformer.errors import InputError, ParityError, type_of
from jaxformer.parity.diagnose.formulas.optimizer_course import Settings, settings_of
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.pairing.placement import OneSided
from jaxformer.parity.runs.load_weights import joined, load_jax, ready
from jaxformer.parity.runs.training_mode import with_state
from jaxformer.parity.trace.torch_hooks import thawed
from jaxformer.parity.training.shared_dropout import feed_masks, with_masks
from jaxformer.pytree import map_named, named_leaves
from jaxformer.runtime.xla_options import exact
from jaxformer.validation.fields import check_function, check_number, check_size

Batch = tuple[np.ndarray, ...]
MAKES = "a function that makes an optimizer, as lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)"


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Batches, losses, optimizers and schedules of both sides."""

    batches: Sequence[Batch]
    """Arguments of the losses, call after call."""
    torch_loss: Callable[..., Any]
    """torch_loss(model, *tensors) -> a scalar; integers come as int64."""
    jax_loss: Callable[..., Any]
    """jax_loss(model, *arrays) -> a scalar, or the scalar and a tree of updated arrays, like Linen's running statistics; with a
    parameter named `key`, it is given a key for dropout."""
    torch_optimizer: Callable[[Any], Any]
    """Function that makes the optimizer: lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)."""
    jax_optimizer: optax.GradientTransformation | optax.MultiSteps
    """optax optimizer, including clipping, schedule and accumulation."""
    torch_schedule: Callable[[Any], Any] | None = None
    """Function that makes the scheduler, which steps after the optimizer: lambda optimizer: LambdaLR(optimizer, factor)."""
    jax_schedule: Callable[[Any], Any] | None = None
    """Learning rate as a function of the step 0, 1, 2, ..., an integer array; compared with the rate of torch's first
    parameters."""
    clip_norm: float | None = None
    """Norm for torch's clip_grad_norm_; None: the gradient is not clipped."""
    accumulate: int = 1
    """Number of batches over which torch averages the gradient of one step."""

    def __post_init__(self) -> None:
        check_size("accumulate", self.accumulate)
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, 0, open_below=True)
        check_function("torch_optimizer", self.torch_optimizer, MAKES)
        if not (hasattr(self.jax_optimizer, "init") and hasattr(self.jax_optimizer, "update")):
            raise InputError(f"jax_optimizer is {type_of(self.jax_optimizer)}; give one of optax, as optax.adamw(1e-3)")
        if not self.batches or len(self.batches) % self.accumulate:
            raise InputError(
                f"{len(self.batches)} batches are not a whole number of steps of {self.accumulate}; give a multiple of it"
            )

    def steps(self, *, float64: bool = True) -> Iterator[Sequence[Batch]]:
        """Yield the batches of each step, with floats in float64 or in float32."""
        floating = np.float64 if float64 else np.float32
        for start in range(0, len(self.batches), self.accumulate):
            batches = self.batches[start : start + self.accumulate]
            yield [tuple(_as_floats(array, floating) for array in batch) for batch in batches]


def _as_floats(array: np.ndarray, floating: type[np.floating]) -> np.ndarray:
    return array.astype(floating) if np.issubdtype(array.dtype, np.floating) else array


FAST_COMPILATION = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Compiler options for few steps: compilation takes half as long, and a step up to a fifth longer."""


class StepSnapshot(NamedTuple):
    """Result of one step of one side, by torch's names."""

    loss: float
    gradients: Mapping[str, np.ndarray]
    """Gradients before clipping."""
    parameters: Mapping[str, np.ndarray]
    """Parameters after the step."""
    parts: Sequence[Mapping[str, np.ndarray]] = ()
    """Gradients of the batches that are accumulated, if there are several and they are known."""


def _optimizer_of(spec: TrainingSpec, model: Any) -> Any:
    """Make torch's optimizer; InputError if it is none, or needs the loss again in a step, as LBFGS."""
    import torch

    optimizer = spec.torch_optimizer(model)
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "param_groups")):
        raise InputError(f"torch_optimizer returns {type_of(optimizer)}; give {MAKES}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(
            "torch_optimizer makes an LBFGS, whose step computes the loss again; give one that takes gradients alone"
        )
    return optimizer


class TorchTrainer:
    """A copy of torch's model, in training mode, with its optimizer."""

    def __init__(self, model: Any, spec: TrainingSpec, *, float64: bool = True):
        self.spec, self.float64, own = spec, float64, thawed(copy.deepcopy(model).train())
        self.model = own.double() if float64 else own.float()
        self.optimizer = _optimizer_of(spec, self.model)
        self.scheduler = spec.torch_schedule(self.optimizer) if spec.torch_schedule else None
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers() if buffer.is_floating_point()}

    def held(self) -> dict[str, np.ndarray]:
        """Current float buffers, by name."""
        return {name: host(buffer).copy() for name, buffer in self.model.named_buffers() if name in self.buffers}

    def changed_buffers(self) -> list[str]:
        """Names of the float buffers that have changed."""
        now = dict(self.model.named_buffers())
        return [name for name, before in self.buffers.items() if not now[name].equal(before)]

    def rates(self) -> dict[str, float]:
        """Learning rate of each parameter that the optimizer has, for the next step."""
        groups = self.optimizer.param_groups
        trained = ((group, parameter) for group in groups for parameter in group["params"] if parameter.requires_grad)
        return {self.names[parameter]: float(group["lr"]) for group, parameter in trained}

    def settings(self) -> Settings | None:
        """Settings that determine the optimizer's first step, if they are known."""
        return settings_of(self.optimizer, self.names, self.spec.clip_norm, self.spec.accumulate)

    def step(self, batches: Sequence[Batch], masks: Sequence[Sequence[np.ndarray]]) -> StepSnapshot:
        """Take one step with the gradient of the mean loss of these batches."""
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        values = []
        for batch, drawn in zip(batches, masks, strict=True):
            wide = [array.astype(np.int64) if array.dtype in (np.int8, np.int16, np.int32) else array for array in batch]
            with torch_float64() if self.float64 else nullcontext(), feed_masks(drawn):
                value = self.spec.torch_loss(self.model, *map(torch.from_numpy, wide))
                (value / len(batches)).backward()
            values.append(_scalar("torch", value, float64=self.float64))
        gradients = {name: host(torch.zeros_like(p) if p.grad is None else p.grad).copy() for p, name in self.names.items()}
        if self.spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.clip_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return StepSnapshot(float(np.mean(values)), gradients, {name: host(p).copy() for p, name in self.names.items()})


class JaxTrainer:
    """The JAX model with torch's weights, in training mode, with its optimizer."""

    def __init__(
        self,
        model: PyTree,
        weights: Mapping[str, np.ndarray],
        spec: TrainingSpec,
        rules: Family,
        *,
        alone: Sequence[OneSided] = (),
        held: Collection[str] = (),
        float64: bool = True,
    ):
        """Load the weights; `alone` are parameters that one side does not have, `held` JAX arrays that are not trained."""
        self.own = {each.name: each.key for each in alone if each.side == "jax"}
        self.rules, self.float64, optimizer = rules, float64, spec.jax_optimizer
        constants = {*rules.constants, *held} - set(self.own)
        self.parameters, self.rest = load_jax(model, weights, rules, float64=float64, held=constants)
        state = jax.jit(optimizer.init, compiler_options=exact())(self.parameters)
        self.state = _int64_counts(state) if float64 else state
        named = "key" in inspect.signature(spec.jax_loss).parameters

        def loss(parameters: PyTree, rest: PyTree, number: Any, arrays: tuple[Any, ...]) -> tuple[jax.Array, PyTree]:
            """Return the loss and the updated arrays that are not parameters; each number gives new random keys."""
            whole = ready(joined(parameters, jax.tree.map(partial(_renewed, number), rest)), training=True)
            key = {"key": _renewed(number, jax.random.key(0))} if named else {}
            value, state = with_state(spec.jax_loss(whole, *arrays, **key), whole)
            after = state or named_leaves(whole)
            return value, map_named(lambda name, leaf: leaf if is_random(leaf) else after[name].astype(leaf.dtype), rest)

        def advance(
            parameters: PyTree, rest: PyTree, state: PyTree, number: Any, arrays: tuple[Any, ...]
        ) -> tuple[PyTree, PyTree, PyTree, jax.Array, PyTree]:
            (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(parameters, rest, number, arrays)
            updates, state = optimizer.update(gradient, state, parameters)
            return optax.apply_updates(parameters, updates), rest, state, value, gradient

        self.advance = jax.jit(advance, compiler_options=exact(FAST_COMPILATION))
        self.drawn = jax.jit(lambda *given: with_masks(loss)(*given)[1], compiler_options=exact(FAST_COMPILATION))
        """Function that returns the dropout masks; since nothing else is requested, only the masks are compiled."""

    def masks(self, number: int, batches: Sequence[Batch]) -> list[list[np.ndarray]]:
        """Dropout masks of a step, batch by batch."""
        return [
            [np.asarray(mask) for mask in self.drawn(self.parameters, self.rest, *given)]
            for given in _numbered(number, batches)
        ]

    def step(self, number: int, batches: Sequence[Batch]) -> StepSnapshot:
        """Take one step: one optimizer call for each batch, which MultiSteps accumulates into a single update."""
        values, gradients = [], []
        for given in _numbered(number, batches):
            held = self.parameters, self.rest, self.state
            self.parameters, self.rest, self.state, value, gradient = self.advance(*held, *given)
            values.append(_scalar("jax", value, float64=self.float64))
            gradients.append(self._named(gradient))
        mean = {name: np.mean([part[name] for part in gradients], 0) for name in gradients[0]}
        parts = gradients if len(gradients) > 1 else ()
        return StepSnapshot(float(np.mean(values)), mean, self._named(self.parameters), parts)

    def _named(self, tree: PyTree) -> dict[str, np.ndarray]:
        """Name arrays by torch's names; arrays that torch does not have, by their keys."""
        leaves = named_leaves(tree)
        return to_torch(tree, self.rules) | {key: np.asarray(leaves[name]) for name, key in self.own.items()}


def _numbered(number: int, batches: Sequence[Batch]) -> Iterator[tuple[jax.Array, tuple[jax.Array, ...]]]:
    """Yield each batch with its own number, on the device."""
    for i, batch in enumerate(batches):
        yield jnp.int32(number * len(batches) + i), tuple(map(jnp.asarray, batch))


def is_key(leaf: jax.Array) -> bool:
    """True if the leaf is a random key."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_random(leaf: jax.Array) -> bool:
    """True if the leaf is a random key, or flax's counter of draws."""
    return is_key(leaf) or leaf.dtype == jnp.uint32


def _renewed(number: Any, leaf: jax.Array) -> jax.Array:
    """Fold the number into a random key; other arrays stay."""
    return jax.random.fold_in(leaf, number) if is_key(leaf) else leaf


def _int64_counts(state: PyTree) -> PyTree:
    """Convert the optimizer's counts to int64: code that divides an int32 count, as most schedules do, continues in float32."""
    for name, leaf in named_leaves(state).items():
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != jnp.float64:
            raise InputError(f"jax_optimizer keeps {name} in {leaf.dtype}, tier A compares float64; give it no type")
    return jax.tree.map(lambda leaf: leaf.astype(jnp.int64) if leaf.dtype == jnp.int32 else leaf, state)


def _scalar(side: str, value: Any, *, float64: bool) -> float:
    array = host(value)
    if array.shape or (float64 and array.dtype != np.float64):
        raise ParityError(f"loss: {side} gave {array.dtype}{list(array.shape)}; tier A compares one float64 number")
    return float(array)
