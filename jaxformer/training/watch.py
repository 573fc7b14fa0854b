"""Watch a training step: the norms of what it reads, computes and changes, every N steps, in a program of its own.

    step = jf.watch(step, every=100, out="runs/mine")

The step itself is not touched, so that training is the same to the bit: at a watched step its arguments go through a second
program first, which takes the step too and returns nothing but norms. A watched step costs about as much as two.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxformer.errors import InputError, first_line, type_of
from jaxformer.parallel.group import run_together
from jaxformer.parallel.placement import on_host
from jaxformer.parity.trace.programs import UNTRACEABLE
from jaxformer.runs.watched import ROUNDING, Monitor, quantity
from jaxformer.runtime.jit import jit
from jaxformer.training.norms import norms_of
from jaxformer.training.step import TrainState, TrainSteps
from jaxformer.validation.fields import check_function, check_path, check_size, whole


class Look:
    """Compiled program that computes the norms of a step from its arguments, which it leaves as they are."""

    def __init__(self, step: Callable[..., Any]):
        self.step = step
        self._programs: dict[Any, tuple[Any, list[str]]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Return the norms by series; InputError if jit cannot trace the step, or the step does not take the arguments."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        traced = [hasattr(leaf, "shape") or (isinstance(leaf, int | float) and type(leaf) is not bool) for leaf in leaves]
        fixed = tuple(None if is_traced else leaf for leaf, is_traced in zip(leaves, traced, strict=True))
        if (tree, fixed) not in self._programs:
            self._programs[tree, fixed] = self._made(tree, fixed)
        program, names = self._programs[tree, fixed]
        try:
            found = run_together(program, [leaf for leaf, is_traced in zip(leaves, traced, strict=True) if is_traced])
        except UNTRACEABLE as error:
            why = str(error).splitlines()[0]
            raise InputError(f"the step cannot be watched: jit cannot trace it ({why}); give one that can be jitted") from None
        except TypeError as error:
            given = ", ".join(map(type_of, (*args, *kwargs.values())))
            raise InputError(
                f"the step cannot be watched: given {given}, it raised TypeError: {first_line(error)}; give what the step takes"
            ) from error
        norms = zip(names, on_host(found).tolist(), strict=True)
        return {name: norm for name, norm in norms if norm or quantity(name) != ROUNDING}

    def _made(self, tree: Any, fixed: tuple[Any, ...]) -> tuple[Any, list[str]]:
        """Return the program for arguments of this structure, and the list of series, which its tracing fills."""
        names: list[str] = []

        @jit
        def program(arrays: list[Any]) -> Array:
            given = iter(arrays)
            args, kwargs = jax.tree.unflatten(tree, [next(given) if leaf is None else leaf for leaf in fixed])
            count = len(args)
            norms = norms_of(lambda *given: self.step(*given[:count], **dict(zip(kwargs, given[count:], strict=True))))
            found = norms(*args, *kwargs.values())
            names[:] = found
            return jnp.stack([*found.values()])

        return program, names


class Watched:
    """Training step that is watched."""

    def __init__(self, step: Callable[..., Any], monitor: Monitor, taken: int):
        self.step, self.monitor, self.taken = step, monitor, taken
        self._look = Look(step)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take a step, after a look at it if it is due."""
        self.taken += 1
        if self.monitor.is_due(self.taken):
            self.monitor.write(self.taken, self._look(*args, **kwargs))
        return self.step(*args, **kwargs)


def watch(step: Callable[..., Any], *, every: int, out: str | Path, taken: int = 0) -> Watched:
    """Return the step, watched: at the first step and at every so many steps, the norms of its layers (see `norms_of`) are
    written to OUT/watch.jsonl and, if tensorboardX is installed, for TensorBoard.

    `step` is any function that jit can trace, and that returns its new state or changes it in place: `(state, batch)`,
    `(params, opt_state, batch)`, NNX's `(model, optimizer, batch)`. Its gradient is what it gives to `jf.tap("gradient", ...)`.
    Where a value leaves the band of the watched steps before, a line is printed with layer and quantity. `taken` is the number
    of steps taken before, where a run goes on. InputError for other arguments, and for a folder with rows of later steps.
    """
    check_function("step", step, "the training step")
    check_size("every", every := whole(every))
    check_size("taken", taken := whole(taken), least=0)
    return Watched(step, Monitor.begin(check_path("out", out), every, taken), taken)


def watched_steps(
    train_steps: TrainSteps, data: Any, seed: Array, monitor: Monitor | None
) -> Callable[[TrainState, Array], tuple[TrainState, Any]]:
    """Return steps(state, n) of a run, as `fit` takes them; with a monitor, they stop before each watched step for a look."""
    if monitor is None:
        return lambda state, n: train_steps(state, data, seed, n)
    look = Look(train_steps.step)

    def steps(state: TrainState, n: Array) -> tuple[TrainState, Any]:
        total, left = 0.0, int(n)
        first_taken = int(state.health.taken)
        while left:
            step, taken = int(state.step), int(state.health.taken)
            if monitor.is_due(step + 1):
                monitor.write(step + 1, look(state, train_steps.source(data, step), seed))
            many = next(many for many in range(1, left + 1) if many == left or monitor.is_due(step + many + 1))
            state, loss = train_steps(state, data, seed, jnp.int32(many))
            left, taken = left - many, int(state.health.taken) - taken
            total += float(loss) * taken if taken else 0.0
        applied = int(state.health.taken) - first_taken
        return state, total / applied if applied else math.nan

    return steps
