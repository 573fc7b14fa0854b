"""Mutations of lists of layers: their order and their weights; of lists at the same place of alike modules, all at once."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from jaxformer.parity.diagnose.edits import held, replaced
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.operators.modules import LISTS
from jaxformer.parity.diagnose.operators.parameters import all_of, starred
from jaxformer.parity.diagnose.replay import Replay

MOST_LAYERS = 64
SHARED = Change("layers.shared", "runs all of them with the weights of the {whose}", "runs {0} with weights of their own")
ORDER = Change(
    "layers.order",
    {
        "reversed": "runs them from the last to the first",
        "only_first": "runs the first every time",
        "only_last": "runs the last every time",
        "without_first": "leaves out the first",
        "without_last": "leaves out the last",
        "exchanged": "exchanges {one} and {other}",
    },
    "runs {0} in their order",
)


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Weights of one layer in all, then other orders, list by list."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for name, module in replay.module.named_modules():
        if isinstance(module, LISTS) and 1 < len(module) <= MOST_LAYERS:
            found.setdefault((starred(name), len(module)), {})[name] = module
    for (kind, length), by_name in found.items():
        name, lists = next(iter(by_name)) if len(by_name) == 1 else kind, [*by_name.values()]
        for whose, i in (("first", 0), ("last", -1)) if all(map(are_alike, lists)) else ():
            pairs = [zip(layer.parameters(), layers[i].parameters(), strict=True) for layers in lists for layer in layers]
            edits = [partial(held, x, y) for each in pairs for x, y in each]
            yield propose(SHARED, name, partial(all_of, edits), whose=whose, length=length)
        for args, order in orders(length):
            ordered = ((layers, {str(i): layers[n] for i, n in enumerate(order)}) for layers in lists)
            edits = [partial(replaced, layers, "_modules", others) for layers, others in ordered]
            yield propose(ORDER, name, partial(all_of, edits), length=length, **args)


def orders(n: int) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Which of `n` layers run, with the words' arguments."""
    every = [*range(n)]
    yield {"how": "reversed"}, every[::-1]
    yield {"how": "only_first"}, [0] * n
    yield {"how": "only_last"}, [n - 1] * n
    yield {"how": "without_first"}, every[1:]
    yield {"how": "without_last"}, every[:-1]
    for i in every[:-1]:
        yield {"how": "exchanged", "one": i, "other": i + 1}, [*every[:i], i + 1, i, *every[i + 2 :]]


def are_alike(layers: Any) -> bool:
    """True if all layers have parameters of the same shapes."""
    return len({tuple(x.shape for x in layer.parameters()) for layer in layers}) == 1
