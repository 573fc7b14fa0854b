"""What the user's two calls give: one array, or several, of which those that both give are compared."""

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
"""Of the arrays that a call gives, by where they stand: 'logits', 'states.0'; '' is what it gives by itself."""


@dataclass
class Outputs:
    """Which arrays of torch's output and of JAX's are compared. Nothing is known before the calls run."""

    shapes_in_jax: Callable[[], Shapes] = dict
    """Those of JAX's call, for torch's to leave out what JAX does not give; none where they are not known before it runs."""
    torch: Shapes = field(default_factory=dict)
    """What torch's call gave; of a reference that was loaded, what was recorded."""
    jax: Shapes = field(default_factory=dict)
    pairs: Sequence[tuple[str, str]] = ()
    """torch's and JAX's names of those that are compared."""
    places: list[str] = field(default_factory=list)
    """Where the user's calls begin."""

    @property
    def names(self) -> tuple[str, ...]:
        """torch's."""
        return tuple(theirs for theirs, _ in self.pairs) or tuple(self.torch)

    def of_torch(self, call: Call) -> Call:
        """The same call, which gives an array, or a tuple of those that are compared."""
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
        """The same; in training mode it may give a state behind that."""
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
        """ParityError where it is not clear which are the same, and where jax has not `every` one of torch's."""
        self.jax, pairs = ours, pairs_of(self.torch, ours)
        theirs_alone, ours_alone = left(self.torch, pairs, 0), left(ours, pairs, 1)
        if not pairs or {self.torch[name] for name in theirs_alone} & {ours[name] for name in ours_alone}:
            raise self._unclear("which of them are the same is not clear")
        if every and theirs_alone:
            raise self._unclear(f"jax has no {', '.join(theirs_alone)}")
        self.pairs = pairs

    def _unclear(self, why: str) -> ParityError:
        """The error that names both sides' arrays."""
        shown = ([f"{name} {list(shape)}".strip() for name, shape in known.items()] for known in (self.torch, self.jax))
        torch, jax = map(", ".join, shown)
        at = f" (at {self.places[-1]})" if self.places else ""
        hint = "give call_torch and call_jax that give the same arrays, in dicts of the same names"
        return ParityError(f"the output is {torch} in torch and {jax} in jax: {why}; {hint}{at}")

    def left_out(self) -> list[str]:
        """What one side alone gives, in words."""
        return [
            f"output {name} of {side}'s, which {other} does not give"
            for i, (side, other, known) in enumerate((("torch", "jax", self.torch), ("jax", "torch", self.jax)))
            for name in say_names(left(known, self.pairs, i) if self.pairs else [], [*known])
        ]


def left(known: Shapes, pairs: Sequence[tuple[str, str]], side: int) -> list[str]:
    """Names of one side (0 for torch's, 1 for JAX's) that stand in no pair."""
    return [name for name in known if name not in {pair[side] for pair in pairs}]


def shapes_of(arrays: Mapping[str, Any]) -> Shapes:
    """Of an output."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


def parts_of(output: Any, model: Any, *, in_training: bool) -> tuple[Any, Any]:
    """What a call gives: its output, and the state behind it; None where there is none."""
    return output if in_training and state_behind(output, model) else (output, None)


def state_behind(output: Any, model: Any) -> dict[str, Any]:
    """The leaves of a model, by name, that its call gives anew behind its output, as Linen's `apply` with `mutable` does."""
    if isinstance(model, nnx.Module) or not (isinstance(output, tuple) and len(output) == 2):
        return {}
    found, before = {}, named_leaves(model)
    for path, leaf in named_leaves(output[1]).items():
        names = [name for name in before if name == path or name.endswith(f".{path}")]
        if len(names) == 1 and before[names[0]].shape == getattr(leaf, "shape", None):
            found[names[0]] = leaf
    return found


def shapes_in_jax(call: Call, model: Any, inputs: Iterable[Any], *, in_training: bool) -> Shapes:
    """Of what a call gives; none where it cannot be traced: its run will say why, or does without."""
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
    """Which is which: those of one name; of the others those of one shape, in their order; and what is left in its order. Where
    one side has more of a kind, none of that kind are: which ones is not clear. So it is where both have names: what is in a
    dict has no order."""
    found = {name: name for name in theirs if name in ours}
    unnamed = [[name for name in known if name not in found] for known in (theirs, ours)]
    for shape in dict.fromkeys(theirs[name] for name in unnamed[0]):
        both = zip(unnamed, (theirs, ours), strict=True)
        found |= same_number(*([name for name in names if known[name] == shape] for names, known in both))
    found |= same_number(*(left(known, [*found.items()], side) for side, known in enumerate((theirs, ours))))
    return [(name, found[name]) for name in theirs if name in found]


def same_number(theirs: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    """In their order, where both have as many, and there is an order."""
    ordered = len(theirs) == 1 or any(all(name.rpartition(".")[2].isdigit() for name in names) for names in (theirs, ours))
    return dict(zip(theirs, ours, strict=True)) if len(theirs) == len(ours) and ordered else {}


def picked(arrays: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The array of that name, or a tuple of several; one that stands there twice is copied, so that each has its gradient."""
    found: dict[int, Any] = {}
    for name in names:
        if id(array := arrays[name]) in found:
            array = array.clone() if hasattr(array, "detach") else array.copy()
        found[id(array)] = array
    return tuple(found.values()) if len(found) > 1 else next(iter(found.values()))


def several(output: Any, name: str, call: Call) -> tuple[Any, ...]:
    """The arrays of an output, one or more; ParityError if it is none."""
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
    """'the output', or 'output logits'"""
    return f"output {name}" if name else "the output"


def side_by_side(output: Any) -> Any:
    """One array of an output: several with equally many rows row by row, others one after the other."""
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
    """The several arrays again, in the shapes of `outputs`."""
    if len(outputs) == 1:
        return [joined]
    by_row = joined.ndim - 1
    sizes = [math.prod(array.shape[by_row:]) for array in outputs]
    parts = np.split(joined, np.cumsum(sizes)[:-1], -1)
    return [part.reshape(array.shape) for part, array in zip(parts, outputs, strict=True)]
