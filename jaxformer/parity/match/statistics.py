"""Which array of jax's is which running statistic of torch's, in training mode."""

from collections.abc import Container, Mapping

from jaxtyping import PyTree

from jaxformer.parity.capture.module_paths import last
from jaxformer.parity.match.names import ModuleMap, nearest_pairs, same_word
from jaxformer.parity.numerics.axis_order import orders_for
from jaxformer.pytree import named_leaves


def pair_statistics(
    torch: Mapping[str, tuple[int, ...]], tree: PyTree, constants: Container[str], parameters: Mapping[str, str]
) -> dict[str, str]:
    """Names of jax's `constants` -> torch's buffers, of which the shapes are given: the nearest by module and name. Of
    `parameters`, names of jax's -> torch's, the modules are known."""
    named = {path_of(name, tree): leaf for name, leaf in named_leaves(tree).items() if name in constants}
    fits = {(name, key) for name, leaf in named.items() for key, shape in torch.items() if orders_for(shape, leaf.shape)}
    worded = {(name, key) for name, key in fits if same_word(last(name), last(key))}
    modules, pairs = ModuleMap(parameters), dict[str, str]()
    for some in (worded, fits):
        left = [key for key in torch if key not in pairs.values()]
        pairs |= dict(nearest_pairs([name for name in named if name not in pairs], left, modules, some))
    return pairs


def path_of(name: str, tree: PyTree) -> str:
    """Without the collection, which stands first in Linen's variables, and in other trees that hold 'params' beside a state."""
    return name.partition(".")[2] if isinstance(tree, Mapping) and "params" in tree else name
