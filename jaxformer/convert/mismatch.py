"""Explanations why a torch state does not fit a model: one line that says what to do."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import LISTED, listed


class Misfit(NamedTuple):
    """Tensor that cannot be used, and the reason."""

    says: str
    remedy: str = ""
    """Remedy, stated once for all tensors that need the same."""


def say_misfits(misfits: Sequence[Misfit]) -> list[str]:
    """Return one text per remedy: the first reasons, and the remedy."""
    kinds: dict[str, list[str]] = {}
    for says, remedy in misfits:
        kinds.setdefault(remedy, []).append(says)
    return [listed(says, "; ") + remedy for remedy, says in kinds.items()]


def mismatch(wanted: Collection[str], arrays: Mapping[str, np.ndarray], misfits: Sequence[Misfit]) -> str:
    """Describe everything that is wrong: missing or unused names, then tensors of another shape or type, then the remedies."""
    missing, left = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted))

    def nearest(name: str) -> str:
        near = difflib.get_close_matches(name, left, 1)
        return f"{name} (is it {near[0]}?)" if near else name

    parts = []
    if missing:
        parts.append(f"{len(missing)} missing, first {', '.join(map(nearest, missing[:LISTED]))}")
    if left:
        parts.append(f"{len(left)} left over, first {', '.join(left[:LISTED])}")
    found = [f"tensors do not match the model: {'; '.join(parts)}"] if parts else []
    return "; ".join([*found, *say_misfits(misfits), *remedies(wanted, arrays, missing, left)])


def remedies(
    wanted: Collection[str], arrays: Mapping[str, np.ndarray], missing: Sequence[str], left: Sequence[str]
) -> list[str]:
    """Return what to do about names that are missing or unused."""
    if not missing and not left:
        return []
    named = other_prefix(missing, left) or other_numbers(missing, left) or other_depth(wanted, arrays)
    copies = ties(left, wanted, arrays)
    if left and not missing and not named and not copies:
        named = [f"if the JAX model needs none of it, add ignored={{{left[0]!r}: 'why'}} to the family"]
    return [*named, *copies]


def other_prefix(missing: Sequence[str], left: Sequence[str]) -> list[str]:
    """Explain names of which most are right after a prefix that one side lacks: a wrapper's 'module.', a model without its
    head."""
    for longer, shorter, say in (
        (left, missing, "names of the state begin with {0!r}: give {{name.removeprefix({0!r}): tensor}}"),
        (missing, left, "names of the family begin with {0!r}, the state's do not: give {{{0!r} + name: tensor}}"),
    ):
        ends, found = set(shorter), Counter[str]()
        for name in longer:
            found.update(name[: dot.end()] for dot in re.finditer(r"\.", name) if name[dot.end() :] in ends)
        found = Counter({prefix: n for prefix, n in found.items() if bare(prefix) == prefix})
        prefix, count = found.most_common(1)[0] if found else ("", 0)
        if 2 * count > len(missing):
            return [f"{count} {say.format(prefix)}"]
    return []


def other_numbers(missing: Sequence[str], left: Sequence[str]) -> list[str]:
    """Explain layer numbers in the names of only one side."""
    for name in missing:
        other = next((it for it in left if bare(it) == bare(name)), None)
        if other is not None and bare(name) == name:
            return [
                f"torch numbers its layers: it has {other} for {name}; give the start of these names with {{layer}} in stacks"
            ]
        if other is not None and bare(other) == other:
            return [
                f"torch's names carry no layer number: it has {other} for {name}; write {{one}} for {{layer}} in stacks, if "
                "it is a stack of one layer"
            ]
    return []


def bare(name: str) -> str:
    """Remove the layer numbers from a name."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def other_depth(wanted: Collection[str], state: Collection[str]) -> list[str]:
    """Explain different numbers of layers."""
    ours, theirs = depths(wanted), depths(state)
    return [
        f"the number of layers under {start} is {theirs[start]} in the state, {n} in the model"
        for start, n in ours.items()
        if theirs.get(start, n) != n
    ]


def depths(names: Collection[str]) -> dict[str, int]:
    """Return start of the names before the first number -> how many numbers there are."""
    found: dict[str, int] = {}
    for name in names:
        if numbered := re.match(r"(.+?)\.(\d+)\.", name):
            found[numbered[1]] = max(found.get(numbered[1], 0), int(numbered[2]) + 1)
    return found


def ties(left: Sequence[str], wanted: Collection[str], arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Explain unused tensors that hold the same numbers as a used one."""
    says = []
    for alias, array in ((name, arrays[name]) for name in left):
        plain = array.size and (array != array.flat[0]).any()
        same = (name for name in wanted if name in arrays and plain and np.array_equal(arrays[name], array))
        if (name := next(same, None)) is not None:
            says.append(f"{alias} holds what {name} does: if torch ties them, add tied={{{alias!r}: {name!r}}} to the family")
    return [listed(says, "; ")] if says else []


def off_type(found: np.dtype, wanted: np.dtype) -> str:
    """Return what to do about a tensor of another float type."""
    if not (jnp.issubdtype(found, jnp.floating) and jnp.issubdtype(wanted, jnp.floating)):
        return ""
    one, other = jnp.finfo(found), jnp.finfo(wanted)
    exact = one.nmant <= other.nmant and one.nexp <= other.nexp
    return f": give it as tensor.to(torch.{wanted}), which {'loses nothing' if exact else 'rounds it'}"


def off_shape(found: tuple[int, ...], wanted: tuple[int, ...], layout: object = None) -> str:
    """Return what to do about a matrix that is transposed, or a table with more rows or columns; `layout` is the rule's."""
    if found == wanted[::-1]:
        other = {"same": "; its rule needs layout 'transposed'", "transposed": "; its rule needs layout 'same'"}
        return f": it is transposed{other.get(str(layout), '')}"
    off = [axis for axis, sizes in enumerate(zip(found, wanted, strict=False)) if sizes[0] != sizes[1]]
    if len(found) != len(wanted) or len(wanted) < 2 or len(off) != 1 or found[off[0]] < wanted[off[0]]:
        return ""
    more = found[off[0]] - wanted[off[0]]
    return (
        f": {more} more than the model on axis {off[0]}; build it as large, or cut them off, if they only pad a vocabulary: a "
        "rule with layout '(v + _) d -> v d' drops them"
    )


def parted(alias: str, array: np.ndarray, held: str, other: np.ndarray, family: str) -> Misfit:
    """Describe how two tied tensors differ."""
    off = f"{array.dtype}{list(array.shape)} and {other.dtype}{list(other.shape)}"
    if array.shape == other.shape:
        gap = np.abs(array.astype(np.float64) - other.astype(np.float64))
        off = f"{np.count_nonzero(gap)} of {gap.size} numbers, by {gap.max():.1e} at most"
    return Misfit(
        f"{alias} and {held} are tied in family {family}, and differ: {off}",
        "; build the JAX model with both (tied=False), or leave out the one that is not used",
    )
