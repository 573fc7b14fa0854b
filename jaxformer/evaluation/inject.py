"""Injections: put a bug into the jax side of a comparison, and into nothing else.

An injection is a context manager: it takes the candidate of a comparison and yields the mutated one. It calls `reached` when
the mutated code runs, or at once if the mutation lies in data.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from jaxformer.convert.rules import Rule
from jaxformer.models import abstract
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.pytree import named_leaves

Reached = Callable[[], None]
Injection = Callable[[Candidate, Reached], AbstractContextManager[Candidate]]
Weights = dict[str, Any]


@dataclass(frozen=True)
class Mutant:
    """Bug with a name, and the case that has to notice it."""

    name: str
    inject: Injection
    case: str = "plain"
    diverging: str = ""
    """Regular expression for the ends of the paths of the modules that contain the bug.

    These modules, and no others, must be named. '' if the bug is not in one kind of module.
    """
    cause: str = ""
    """Pattern (see `jaxformer.evaluation.outcome`) that every cause of a diverging module must match.

    '' if no cause can be found, which counts as wrong where modules are named.
    """
    says: str = ""
    """Regular expression for the cause of a whole run, which is text only."""


def config(**fields: Any) -> Injection:
    """Build the jax model with other configuration fields."""

    @contextmanager
    def inject(candidate: Candidate, reached: Reached) -> Iterator[Candidate]:
        changed = replace(candidate.like.config, **fields)
        if changed != candidate.like.config:
            reached()
        yield replace(candidate, like=abstract(changed))

    return inject


def patch(owner: Any, **replacements: Callable[..., Callable[..., Any]]) -> Injection:
    """Replace functions of a module, a class or a table of functions: name=f, where f(original) is the replacement.

    `from a import f` copies the name: patch f where it is used.
    """
    table = owner if isinstance(owner, dict) else owner.__dict__

    @contextmanager
    def inject(candidate: Candidate, reached: Reached) -> Iterator[Candidate]:
        mutated = {name: _noticing(make(table[name]), reached) for name, make in replacements.items()}
        with ExitStack() as stack:
            for name, f in mutated.items():
                in_table = isinstance(owner, dict)
                stack.enter_context(mock.patch.dict(owner, {name: f}) if in_table else mock.patch.object(owner, name, f))
            yield candidate

    return inject


def instead(owner: Any, **functions: Callable[..., Any]) -> Injection:
    """Replace functions as `patch` does, without use of the original."""
    return patch(owner, **{name: lambda original, f=f: f for name, f in functions.items()})


def weights(change: Callable[[Weights], Weights]) -> Injection:
    """Let the jax code read change(tensors), a dict by name, in place of its tensors."""

    @contextmanager
    def inject(candidate: Candidate, reached: Reached) -> Iterator[Candidate]:
        def call(model: Any, *inputs: Any) -> Any:
            tensors = named_leaves(model)
            changed = change(tensors)
            if any(changed[name] is not tensors[name] for name in tensors):
                reached()
            return candidate.call(jax.tree.unflatten(jax.tree.structure(model), [changed[name] for name in tensors]), *inputs)

        yield replace(candidate, call=call)

    return inject


def reads_as(value: float, *endings: str) -> Injection:
    """Read tensors whose path ends in one of `endings` as a constant."""
    endings = tuple(f".{ending}" for ending in endings)

    def change(tensors: Weights) -> Weights:
        return {name: jnp.full_like(leaf, value) if f".{name}".endswith(endings) else leaf for name, leaf in tensors.items()}

    return weights(change)


def swapped(first: str, second: str, within: str = "") -> Injection:
    """Exchange the tensors of two sub-modules of equal shapes, everywhere or within one kind of module."""

    def counterpart(name: str) -> str:
        exchanged = {first: second, second: first} if within in name else {}
        return ".".join(exchanged.get(part, part) for part in name.split("."))

    return weights(lambda tensors: {name: tensors[counterpart(name)] for name in tensors})


def read_as(name: str, other: str) -> Injection:
    """Read one tensor in place of another of its shape."""
    return weights(lambda tensors: tensors | {name: tensors[other]})


def without(path: str) -> Injection:
    """Remove a tensor from the jax model."""
    parent, name = path.rsplit(".", 1)

    @contextmanager
    def inject(candidate: Candidate, reached: Reached) -> Iterator[Candidate]:
        like = jax.tree.map(lambda leaf: leaf, candidate.like)
        setattr(attrgetter(parent)(like), name, None)
        if jax.tree.structure(like) != jax.tree.structure(candidate.like):
            reached()
        yield replace(candidate, like=like)

    return inject


def rule(first: Rule) -> Injection:
    """Put a rule before the conversion's own rules."""

    @contextmanager
    def inject(candidate: Candidate, reached: Reached) -> Iterator[Candidate]:
        if any(name.endswith(first.jax) for name in named_leaves(candidate.like)):
            reached()
        yield replace(candidate, family=replace(candidate.family, rules=(first, *candidate.family.rules)))

    return inject


def _noticing(f: Callable[..., Any], reached: Reached) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        reached()
        return f(*args, **kwargs)

    return called
