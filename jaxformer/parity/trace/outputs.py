"""Outputs of the user's two calls: one array, or several, of which those that both sides return are compared."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.errors import ParityError, type_of
from jaxformer.parity.report.summarize import say_names
from jaxformer.parity.trace.call_records import is_array, named_arrays, names_in
from jaxformer.parity.trace.source_lines import definition_of
from jaxformer.pytree import named_leaves

Call = Callable[..., Any]
"""call(module, *inputs) -> output"""
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a call's output arrays by their path in it: 'logits', 'states.0'; '' if the output is an array."""


@dataclass
class Outputs:
    """Pairs of torch's and jax's output arrays that are compared; unknown until the calls run."""

    shapes_in_jax: Callable[[], Shapes] = dict
    """Returns the shapes of jax's output, so that torch's output can leave out what jax does not return; empty if unknown
    before the run."""
    torch: Shapes = field(default_factory=dict)
    """Shapes of torch's output; of a loaded reference, the recorded ones."""
    jax: Shapes = field(default_factory=dict)
    pairs: Sequence[tuple[str, str]] = ()
    """torch's and jax's names of the compared arrays."""
    places: list[str] = field(default_factory=list)
    """Lines where the user's calls begin."""

    @property
    def names(self) -> tuple[str, ...]:
        """torch's names of the compared arrays."""
        return tuple(theirs for theirs, _ in self.pairs) or tuple(self.torch)

    def of_torch(self, call: Call) -> Call:
        """Wrap torch's call to return an array, or a tuple of the compared arrays."""
        self.places += filter(None, [definition_of(call)])

        @wraps(call)
        def chosen(*given: Any) -> Any:
            if not (arrays := named_arrays(output := call(*given))):
                return output
            if not self.torch:
                self.torch = shapes_of(arrays)
                if len(arrays) > 1 and (ours := self.shapes_in_jax()):
                    self._pair(ours, every=False)
            return picked(arrays, self.names)

        return chosen

    def of_jax(self, call: Call, *, in_training: bool) -> Call:
        """Wrap jax's call to return the compared arrays, followed in training mode by the state, if it returns one."""
        self.places += filter(None, [definition_of(call)])

        @wraps(call)
        def chosen(model: Any, *inputs: Any) -> Any:
            output, state = parts_of(call(model, *inputs), model, in_training=in_training)
            if not (arrays := named_arrays(output)):
                return output
            if not self.pairs:
                self._pair(shapes_of(arrays), every=True)
            found = picked(arrays, [ours for _, ours in self.pairs])
            return found if state is None else (found, state)

        return chosen

    def _pair(self, ours: Shapes, *, every: bool) -> None:
        """Pair both sides' arrays; ParityError if the pairing is ambiguous, or if jax lacks one of torch's arrays and `every`
        is True."""
        self.jax, pairs = ours, pairs_of(self.torch, ours)
        theirs_alone, ours_alone = left(self.torch, pairs, 0), left(ours, pairs, 1)
        if not pairs or {self.torch[name] for name in theirs_alone} & {ours[name] for name in ours_alone}:
            raise self._unclear("which of them are the same is not clear")
        if every and theirs_alone:
            raise self._unclear(f"jax has no {', '.join(theirs_alone)}")
        self.pairs = pairs

    def _unclear(self, why: str) -> ParityError:
        """Return the error that names both sides' arrays."""
        shown = ([f"{name} {list(shape)}".strip() for name, shape in known.items()] for known in (self.torch, self.jax))
        torch, jax = map(", ".join, shown)
        at = f" (at {self.places[-1]})" if self.places else ""
        hint = "give call_torch and call_jax that give the same arrays, in dicts of the same names"
        return ParityError(f"the output is {torch} in torch and {jax} in jax: {why}; {hint}{at}")

    def left_out(self) -> list[str]:
        """Describe the arrays that only one side returns."""
        return [
            f"output {name} of {side}'s, which {other} does not give"
            for i, (side, other, known) in enumerate((("torch", "jax", self.torch), ("jax", "torch", self.jax)))
            for name in say_names(left(known, self.pairs, i) if self.pairs else [], [*known])
        ]


def left(known: Shapes, pairs: Sequence[tuple[str, str]], side: int) -> list[str]:
    """Return the names of one side (0 for torch's, 1 for jax's) that are in no pair."""
    return [name for name in known if name not in {pair[side] for pair in pairs}]


def shapes_of(arrays: Mapping[str, Any]) -> Shapes:
    """Return the shapes of an output's arrays."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


def parts_of(output: Any, model: Any, *, in_training: bool) -> tuple[Any, Any]:
    """Split a call's result into output and the state after it; the state is None if there is none."""
    return output if in_training and state_behind(output, model) else (output, None)


def state_behind(output: Any, model: Any) -> dict[str, Any]:
    """Return the model's leaves, by name, that a call returns updated after its output, as Linen's `apply` with `mutable`
    does."""
    if isinstance(model, nnx.Module) or not (isinstance(output, tuple) and len(output) == 2):
        return {}
    found, before = {}, named_leaves(model)
    for path, leaf in named_leaves(output[1]).items():
        names = [name for name in before if name == path or name.endswith(f".{path}")]
        if len(names) == 1 and before[names[0]].shape == getattr(leaf, "shape", None):
            found[names[0]] = leaf
    return found


def shapes_in_jax(call: Call, model: Any, inputs: Iterable[Any], *, in_training: bool) -> Shapes:
    """Return the shapes of jax's output; empty if the call cannot be traced: its run reports the error, or works untraced."""
    noted: dict[str, tuple[int, ...]] = {}

    def run(model: Any, *inputs: Any) -> None:
        output, _ = parts_of(call(model, *inputs), model, in_training=in_training)
        noted.update(shapes_of(named_arrays(output)))

    try:
        jax.eval_shape(run, model, *inputs)
    except Exception:
        return {}
    return noted


def pairs_of(theirs: Shapes, ours: Shapes) -> list[tuple[str, str]]:
    """Pair arrays by name; the others by shape, in order; and the rest in order.

    If one side has more arrays of a kind, none of that kind are paired, since it is not clear which ones correspond. The same
    holds if both sides have names: the items of a dict have no order.
    """
    found = {name: name for name in theirs if name in ours}
    unnamed = [[name for name in known if name not in found] for known in (theirs, ours)]
    for shape in dict.fromkeys(theirs[name] for name in unnamed[0]):
        both = zip(unnamed, (theirs, ours), strict=True)
        found |= same_number(*([name for name in names if known[name] == shape] for names, known in both))
    found |= same_number(*(left(known, [*found.items()], side) for side, known in enumerate((theirs, ours))))
    return [(name, found[name]) for name in theirs if name in found]


def same_number(theirs: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    """Pair names in order if both sides have equally many, and an order is known: there is one name, or one side's names are
    indices."""
    ordered = len(theirs) == 1 or any(all(name.rpartition(".")[2].isdigit() for name in names) for names in (theirs, ours))
    return dict(zip(theirs, ours, strict=True)) if len(theirs) == len(ours) and ordered else {}


def picked(arrays: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the array of that name, or a tuple of several; an array that occurs twice is copied, so that each has its own
    gradient."""
    found: dict[int, Any] = {}
    for name in names:
        if id(array := arrays[name]) in found:
            array = array.clone() if hasattr(array, "detach") else array.copy()
        found[id(array)] = array
    return tuple(found.values()) if len(found) > 1 else next(iter(found.values()))


def several(output: Any, name: str, call: Call) -> tuple[Any, ...]:
    """Return the one or more arrays of an output; ParityError if it is anything else."""
    arrays = output if isinstance(output, tuple) else (output,)
    if arrays and all(map(is_array, arrays)):
        return arrays
    names = names_in(output)
    among = f" of {', '.join(names)}" if names else ""
    at = f" (at {place})" if (place := definition_of(call)) else ""
    raise ParityError(
        f"{name} gave {type_of(output)}{among}, not an array; give {name}=lambda model, *inputs: ... that picks one{at}"
    )


def said(name: str) -> str:
    """Name an output in messages: 'the output', or 'output logits'"""
    return f"output {name}" if name else "the output"


def side_by_side(output: Any) -> Any:
    """Join the arrays of an output to one: row by row if they have equally many rows, else one after the other."""
    if not isinstance(output, tuple):
        return output
    if len(output) == 1:
        return output[0]
    rows = {array.shape[0] if array.ndim else 0 for array in output}
    by_row = len(rows) == 1 and 0 not in rows
    parts = [array.reshape(*array.shape[:by_row], math.prod(array.shape[by_row:])) for array in output]
    if hasattr(parts[0], "detach"):
        import torch

        return torch.cat(parts, -1)
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, -1)
    with jax.numpy_dtype_promotion("standard"):
        return jnp.concatenate(parts, -1)


def apart(joined: np.ndarray, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Split a joined array into arrays with the shapes of `outputs`."""
    if len(outputs) == 1:
        return [joined]
    by_row = joined.ndim - 1
    sizes = [math.prod(array.shape[by_row:]) for array in outputs]
    parts = np.split(joined, np.cumsum(sizes)[:-1], -1)
    return [part.reshape(array.shape) for part, array in zip(parts, outputs, strict=True)]
