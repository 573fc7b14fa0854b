"""Arguments with which a class makes a module again.

Modules of Flax NNX and Equinox do not keep the arguments of their constructors. An argument is taken from an attribute of its
name, in the module or in one inside it, or it is a seed, or has a default, or it is the whole number that gives the same
module: the same settings, and arrays of the same shapes.
"""

import inspect
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from jaxformer.parity.trace.call_sites import join
from jaxformer.parity.trace.pytree_modules import is_module

SEEDS = ("key", "rng", "rng_key", "prng_key", "seed_key")
"""Names of arguments that are random keys."""
SECONDS = 15.0
"""Time limit of the search for whole numbers."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Seed:
    """Argument that only draws initial weights."""

    is_rngs: bool
    """True for an `nnx.Rngs`, False for a key."""

    def value(self) -> Any:
        """Return such an argument."""
        return nnx.Rngs(0) if self.is_rngs else jax.random.key(0)


def arguments_of(module: Any) -> dict[str, Any] | None:
    """Return arguments, by name, with which the module's class makes it again, some of them a `Seed`; None if none are
    found."""
    wanted, own = described(module), attributes(module)
    given: dict[str, Any] = {}
    searched: list[str] = []
    for name, parameter in [*inspect.signature(type(module).__init__).parameters.items()][1:]:
        if parameter.kind in VARIABLE:
            continue
        if name == "rngs" or parameter.annotation in (nnx.Rngs, "nnx.Rngs", "Rngs"):
            given[name] = Seed(is_rngs=True)
        elif name in SEEDS:
            given[name] = Seed(is_rngs=False)
        elif name in own or parameter.default is not parameter.empty:
            given[name] = own.get(name, parameter.default)
        if name not in given or type(given[name]) is int:  # an attribute of this name may be another module's
            searched.append(name)
    if alike(type(module), given, wanted) == 1:
        return given
    return found_by_trying(type(module), given, searched, wanted)


def found_by_trying(kind: type, given: dict[str, Any], searched: list[str], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Search for whole numbers, argument by argument, that make the module more alike; None if it does not become the same."""
    sizes = {each for each in wanted.values() if type(each) is int}
    sizes |= {n for each in wanted.values() if isinstance(each, tuple) for n in each if type(n) is int}
    sizes, ends = {n for n in sizes if n > 0}, time.monotonic() + SECONDS
    sizes |= {n // m for n, m in itertools.permutations(sizes, 2) if n % m == 0}  # a number of heads is a quotient
    starts = ({**dict.fromkeys(searched, size), **given} for size in sorted(sizes))
    given, best = next(((start, found) for start in starts if (found := alike(kind, start, wanted)) >= 0), ({}, 1.0))
    before = -1.0
    while before < best < 1:
        before = best
        for name, size in itertools.product(searched, sorted(sizes)):
            if best < 1 and time.monotonic() < ends and (score := alike(kind, given | {name: size}, wanted)) > best:
                best, given = score, given | {name: size}
    return given if given and best == 1 else None


def alike(kind: type, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Part of a module's description that is the same if it is made with these arguments; -1 if it cannot be made."""
    made: list[Any] = []

    def make() -> None:
        made.append(kind(**{name: each.value() if isinstance(each, Seed) else each for name, each in given.items()}))

    try:
        jax.eval_shape(make)
    except Exception:  # the class may refuse these arguments, or need concrete values
        return -1
    found = described(made[0])
    return sum(name in found and same(found[name], value) for name, value in wanted.items()) / len({*wanted, *found})


def same(one: Any, other: Any) -> bool:
    """True if two described values are equal."""
    return type(one) is type(other) and bool(one == other)


def described(module: Any) -> dict[str, Any]:
    """Describe everything in a module, by path: plain values as they are, arrays by shape and dtype, others by their type."""
    return dict(_described(module, ""))


def _described(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PLAIN):
        yield path, value
    elif (inner := items_of(value)) is not None:
        yield f"{path}:", type(value).__name__
        for name, item in inner.items():
            yield from _described(item, join(path, str(name)))
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield path, (*value.shape, str(value.dtype))
    else:
        yield path, getattr(value, "__qualname__", type(value).__name__)


def items_of(value: Any) -> Mapping[Any, Any] | None:
    """Items of a module, a list, a tuple or a dict; None for other values, random states among them."""
    if isinstance(value, nnx.Rngs | nnx.Variable | type):
        return None
    if isinstance(value, nnx.Module) or is_module(value):
        return {name: item for name, item in vars(value).items() if not name.startswith(("_pytree", "_object"))}
    if isinstance(value, list | tuple | nnx.List):
        return dict(enumerate(value))
    return value if isinstance(value, Mapping) else None


def attributes(module: Any) -> dict[str, Any]:
    """Return attributes by name, of the module first, then of the modules in it; without arrays and modules."""
    found: dict[str, Any] = {}
    level = [module]
    while level:
        below: list[Any] = []
        for each in level:
            for name, item in (items_of(each) or {}).items():
                below += [item] if items_of(item) is not None else []
                if isinstance(name, str) and not holds_arrays(item):
                    found.setdefault(name.lstrip("_"), item)
        level = below
    return found


def holds_arrays(value: Any) -> bool:
    """True for an array, and for what holds arrays or modules."""
    inner = items_of(value)
    if isinstance(value, nnx.Module | nnx.Variable | nnx.Rngs) or is_module(value) or hasattr(value, "dtype"):
        return True
    return inner is not None and any(map(holds_arrays, inner.values()))
