"""Check of weights: whether the JAX model holds torch's weights, bit for bit."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.axes import Axes, Layout, sum_of
from jaxformer.convert.host import same_bits
from jaxformer.convert.layouts import find_layout, rows_of_heads, same_numbers, say_rows
from jaxformer.convert.rules import Family, Part, Place, in_torchs_layout, places, sums
from jaxformer.errors import LISTED, ParityError, listed
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.numerics.float32_tables import is_rounded, most_off, say_rounded
from jaxformer.parity.numerics.metrics import difference
from jaxformer.parity.pairing.placement import Side, told
from jaxformer.parity.report.data import ON_TORCHS, Stage
from jaxformer.parity.report.text import count
from jaxformer.parity.runs.load_weights import has_shapes_alone
from jaxformer.pytree import named_weights


def weights(comparison: Comparison) -> Result:
    """Check the matched tensors, and report those that only one side has and doubtful matches."""
    matched, stage = comparison.matched, bitwise(comparison)
    if stage.status != "failed":
        names: dict[Side, list[str]] = {
            "torch": list(comparison.state.weights),
            "jax": list(named_weights(comparison.like)),
        }
        stage = replace(stage, says="; ".join([stage.says, *told(matched.alone, names), *matched.notes, *added_up(comparison)]))
    if (matched.wrong or not all(each.is_neutral for each in matched.alone)) and stage.status == "equal":
        stage = replace(stage, status="different")
    return Result(stage)


def added_up(comparison: Comparison) -> list[str]:
    """Note JAX tensors that hold a sum of torch's."""
    both = dict.fromkeys(" + ".join(names) for names in sums(comparison.like, comparison.matched.family).values())
    says = "each has the gradient of the sum, and weights go this way alone"
    return [f"JAX holds torch's {listed([*both])} added up: {says}"] if both else []


def bitwise(comparison: Comparison) -> Stage:
    """Compare the matched tensors bit for bit; frozen ones may differ by rounding."""
    state, like, family = comparison.state, comparison.like, comparison.matched.family
    used = sum(family.why_ignored(name) is None for name in state.weights)
    if has_shapes_alone(like):
        if comparison.needs <= {"coverage"}:  # nothing else will be judged
            says = "the JAX model has shapes alone; give one with weights, or check more than weights"
            return Stage("weights", "failed", says)
        return Stage("weights", "equal", f"{count(used, 'tensor')}, each used once; the JAX model had none of its own")
    jax = in_torchs_layout(like, family)
    torch = {name: state.weights[family.tied.get(name, name)] for name in jax}
    torch |= {name: sum_of([torch[it] for it in names]) for name, names in sums(like, family).items()}
    other = [name for name, array in torch.items() if not same_bits(jax[name], array)]
    rounded = [name for name in other if name in state.frozen and is_rounded(jax[name], torch[name])]
    wrong = [name for name in other if name not in rounded]
    if wrong:
        parts = places(like, family)
        said = ", ".join(describe_difference(name, parts[name], jax[name], torch, family, like) for name in wrong[:LISTED])
        says = f"{len(wrong)} of {len(jax)} tensors differ, first {said}; {ON_TORCHS}"
        return Stage("weights", "different", says)
    notes = [f"frozen {name} {say_rounded(most_off(jax[name], torch[name]))}; torch's is used below" for name in rounded]
    return Stage("weights", "equal", "; ".join((f"{used} of {len(state.weights)} tensors used once, bitwise equal", *notes)))


def describe_difference(
    name: str,
    parts: Mapping[Part, Place],
    jax: np.ndarray,
    weights: Mapping[str, np.ndarray],
    family: Family,
    like: PyTree,
) -> str:
    """Describe how a torch tensor differs: the JAX tensors, by how much, and which torch values the first one holds instead, if
    any."""

    def piece(part: Part, side: np.ndarray) -> np.ndarray:
        rule = family.rule(parts[part].name)
        return rule.to_jax(side, family.sizes_for(like)) if rule.packed else part.cut(side)

    cut = {part: [piece(part, side) for side in (jax, weights[name])] for part in sorted(parts)}
    wrong = [part for part, both in cut.items() if not same_bits(*both)]
    held = dict.fromkeys(parts[part].name for part in wrong)
    called = name if name in held else f"{name}, in JAX {' and '.join(held)}"
    mine, torch = cut[wrong[0]]
    try:
        says = f"relL2 {difference(name, mine, torch).relative:.1e}"
    except ParityError as error:
        return f"{called} ({str(error).removeprefix(f'{name}: ')})"
    if mine.ndim == 2 and same_bits(np.ascontiguousarray(mine), np.ascontiguousarray(torch.T)):
        return f"{called} ({says}: JAX holds it transposed)"
    if flipped := next(
        (axes for axes in some_axes(torch.ndim) if same_bits(np.ascontiguousarray(np.flip(torch, axes)), mine)), ()
    ):
        return f"{called} ({says}: JAX holds it {backwards(flipped)})"
    same = (other for other, array in weights.items() if array.size == mine.size and same_numbers(array, mine))
    if not (mine == mine.flat[0]).all() and (other := next(same, None)):
        what = f"it {in_words(find_layout(torch, mine))}" if other == name else f"what torch has in {other}"
        return f"{called} ({says}: JAX holds {what})"
    return f"{called} ({says})"


def in_words(layout: Layout | None) -> str:
    """Describe another order of the same values; a flipped kernel keeps the order of its axes."""
    if isinstance(layout, Axes) and rows_of_heads(layout):
        return f"with {say_rows(layout)}"
    axes = layout.backwards if isinstance(layout, Axes) else ()
    return backwards(axes) if axes else "with its axes in another order"


def backwards(axes: tuple[int, ...]) -> str:
    """Describe axes along which a kernel is flipped."""
    return f"backwards along {'axis' if len(axes) == 1 else 'axes'} {' and '.join(map(str, axes))}, as a flipped kernel"


def some_axes(n: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of axes: single axes first, then pairs, ..."""
    return chain.from_iterable(combinations(range(n), many) for many in range(1, n + 1))
