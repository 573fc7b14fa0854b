"""Layers in one loop: `jax.lax.scan` over stacked parameters, in its turns, each of which is a layer.

Where scans are `written_out`, the body of one runs once a layer, on slices of the model's arrays. The paths of all calls in it
get the layer's number, behind the outermost module of which every array is cut: `layers.dense` is `layers.2.dense`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax

from jaxformer.parity.capture.call_sites import Turn, Visits
from jaxformer.parity.capture.module_paths import ancestors, below
from jaxformer.pytree import named_leaves


@contextmanager
def watch_scans(model: Any, visits: Visits) -> Iterator[None]:
    """Notes in `visits.turns` which layer of which stacks of the model's is running."""
    names = {id(leaf): name.removeprefix("params.") for name, leaf in named_leaves(model).items()}
    scan_as_it_is = jax.lax.scan

    def scan(f: Callable[..., Any], init: Any, xs: Any = None, *args: Any, reverse: bool = False, **how: Any) -> Any:
        scanned = {names[id(leaf)] for leaf in jax.tree.leaves(xs) if id(leaf) in names}
        starts = frozenset(stacks_of(scanned, names.values(), visits.open[-1][1] if visits.open else ""))
        done = 0

        def turn(carry: Any, x: Any) -> Any:
            nonlocal done
            length = max((leaf.shape[0] for leaf in jax.tree.leaves(xs)), default=0)
            visits.turns.append(Turn(starts, length - 1 - done if reverse else done))
            done += 1
            try:
                return f(carry, x)
            finally:
                visits.turns.pop()

        return scan_as_it_is(turn if starts else f, init, xs, *args, reverse=reverse, **how)

    with mock.patch.object(jax.lax, "scan", scan):
        yield


def stacks_of(scanned: set[str], names: Iterable[str], around: str) -> Iterator[str]:
    """The outermost modules inside of the module `around` in which all arrays are scanned; an array outside of such is one."""
    others = set(names) - scanned
    for name in scanned:
        inside = [path for path in (name, *ancestors(name)) if path != around and below(path, around)]
        yield [path for path in inside if not any(below(other, path) for other in others)][-1]
