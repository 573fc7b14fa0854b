"""Decoding on both sides: tokens that both generate from the same weights with the user's own functions, all at once or step by
step, each with its own cache. Step by step, both sides are fed torch's tokens, and the logits of each step are compared."""

import copy
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.errors import InputError
from jaxformer.parity.numerics.float32_tables import NO_TABLES, Tables
from jaxformer.parity.numerics.float64 import jax_float64, torch_float64
from jaxformer.parity.numerics.metrics import error, host
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.text import count
from jaxformer.parity.runs.load_weights import joined, load_jax, ready

TOLERANCE = 1e-12
"""Largest relL2 of a row's logits: a cache adds the same numbers in another order."""
FLOAT32 = 1e-6
"""Largest difference that a cache or table held in float32 may explain alone."""
MOST_STEPS = 4096
"""Number of steps after which torch's side is stopped if it does not end by itself."""

Steps = Generator[Any, Any, Any]
"""Generator that yields the logits `B V` of each step, first those of the prompt, `B T V` or `B V`, and is sent the next ids
`B`."""


def run_steps(
    side: str, steps: Steps, put: Callable[[np.ndarray], Any], fed: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Run all steps and return their logits, feeding the ids `fed`, or the likeliest ids of the previous step.

    At most one step more than there are ids, or than MOST_STEPS, is run.
    """
    found: list[np.ndarray] = []
    try:
        logits = next(steps)
        while True:
            found.append(_checked(side, host(logits)))
            if len(found) > (MOST_STEPS if fed is None else len(fed)):
                break
            logits = steps.send(put(likeliest(found[-1]) if fed is None else fed[len(found) - 1]))
    except StopIteration:
        pass
    steps.close()
    return found


def likeliest(logits: np.ndarray) -> np.ndarray:
    """Next ids `B`, by the logits of the last position."""
    return _last(logits).argmax(-1)


def compare_steps(theirs: Sequence[np.ndarray], ours: Sequence[np.ndarray], cause: Callable[[], str] = str) -> Stage:
    """Compare the logits of both sides: the first step that differs, the first token that does, and the `cause`."""
    worst = 0.0
    for step, (t, j) in enumerate(zip(theirs, ours, strict=False)):
        name = _name(step)
        if t.ndim != j.ndim:
            t, j = _last(t), _last(j)
        if t.shape != j.shape:
            return Stage("generate", "different", f"{name}: torch gave logits {list(t.shape)}, jax {list(j.shape)}")
        places = [(each, error(j[each], t[each]).relative) for each in np.ndindex(t.shape[:-1])]
        for (row, *position), off in places:
            if off > TOLERANCE:
                at = f"{name}, row {row}" + "".join(f", position {n}" for n in position)
                says = f"{at}: the logits differ by relL2 {off:.1e}, tolerance {TOLERANCE:.0e}{_hint(step, off, cause)}"
                return Stage("generate", "different", f"{says}; {_first_token(theirs, ours)}")
        worst = max([worst, *(off for _, off in places)])
    if len(theirs) != len(ours):
        return Stage("generate", "different", f"torch took {count(len(theirs) - 1, 'step')}, jax {_more(theirs, ours)}")
    rows, steps = count(len(theirs[0]), "row"), count(len(theirs) - 1, "step")
    return Stage("generate", "equal", f"{rows}, the prompt and {steps}: all tokens the same, logits within relL2 {worst:.1e}")


def _hint(step: int, off: float, cause: Callable[[], str]) -> str:
    if off <= FLOAT32:
        return " (float32's size: does a side hold its cache or a table in float32?)"
    if says := cause():
        return f": {says}"
    return " (all before is the same: look at the cache, the position and the mask of a step)" if step else ""


def _first_token(theirs: Sequence[np.ndarray], ours: Sequence[np.ndarray]) -> str:
    """Describe the first token that differs."""
    for step, (t, j) in enumerate(zip(theirs, ours, strict=False)):
        differing = np.flatnonzero(likeliest(t) != likeliest(j)) if _last(t).shape == _last(j).shape else []
        for row in differing:
            tokens = f"torch {likeliest(t)[row]}, jax {likeliest(j)[row]}"
            return f"the first token that differs is row {row}'s after {_name(step)}: {tokens}"
    return "all tokens are the same"


def _name(step: int) -> str:
    return f"step {step}" if step else "the prompt"


def _more(theirs: Sequence[np.ndarray], ours: Sequence[np.ndarray]) -> str:
    return "more" if len(ours) > len(theirs) else str(len(ours) - 1)


def _last(logits: np.ndarray) -> np.ndarray:
    """Logits of the last position, `B V`."""
    return logits[:, -1] if logits.ndim == 3 else logits


def _checked(side: str, logits: np.ndarray) -> np.ndarray:
    if logits.ndim not in (2, 3) or not logits.size or logits.dtype.kind != "f":
        given = f"{side}_generate yielded {logits.dtype}{list(logits.shape)}"
        raise InputError(f"{given}; yield the logits `B V` of each step, those of the prompt as `B T V` or `B V`")
    return logits


class Written(NamedTuple):
    """Output of one side's generation."""

    ids: np.ndarray
    """Token ids, `B T`."""
    logits: np.ndarray | None
    """Logits by which each id was chosen, `B T V`; None if they are not given."""


def compare_generation(
    torch_model: Any,
    jax_model: PyTree,
    torch_generate: Callable[[Any], Any],
    jax_generate: Callable[[Any], Any],
    rules: Family = TWIN,
    tables: Tables = NO_TABLES,
) -> Stage:
    """Compare the ids `B T`, or (ids, logits `B T V`), that `torch_generate(model)` and `jax_generate(model)` give.

    The models are copies with torch's weights, in evaluation mode, in float64. All ids must be equal. Logits show how close to
    a tie the first difference is. Alternatively both functions are generators that decode step by step, each with its own
    cache: they yield the logits of the prompt, `B T V` or `B V`, then `B V` for each step, and are sent torch's ids `B`. All
    logits must then be equal.
    """
    import torch

    weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
    with torch.no_grad(), torch_float64():
        theirs = torch_generate(copy.deepcopy(torch_model).eval().double())
        stepwise = inspect.isgenerator(theirs)
        found: Any = run_steps("torch", theirs, torch.from_numpy) if stepwise else _written("torch", theirs)

    def judged(explain: Callable[..., str]) -> Stage:
        with jax_float64(tables):
            model = ready(joined(*load_jax(jax_model, weights, rules, float64=True)), training=False)
            ours = like(found, jax_generate(model))
        if isinstance(found, Written):
            return compare_written(found, ours)
        return compare_steps(found, ours, lambda: explain(torch_model, torch_generate, found, ours, fed(found)[:-1]))

    from jaxformer.parity.diagnose.decoding.steps import explain_steps

    if not tables.held:
        return judged(explain_steps)
    stage = judged(lambda *_: "")
    if stage.status == "equal":
        return stage
    with jax.disable_jit():  # also shows tables that code computes outside of any jit
        return judged(explain_steps)


def like(found: Written | list[np.ndarray], ours: Any) -> Any:
    """Collect the output of the JAX side, all at once or step by step, as torch's side gives it."""
    if inspect.isgenerator(ours) == isinstance(found, Written):
        one, other = ("jax", "torch") if isinstance(found, Written) else ("torch", "jax")
        raise InputError(f"{one}_generate yields logits step by step, {other}_generate does not; give both alike")
    if isinstance(found, Written):
        return _written("jax", ours)
    return run_steps("jax", ours, lambda ids: jnp.asarray(ids, jnp.int32), fed(found))


def fed(found: list[np.ndarray]) -> list[np.ndarray]:
    """Ids that both sides are sent: torch's likeliest."""
    return [likeliest(logits) for logits in found]


def compare_written(theirs: Written, ours: Written) -> Stage:
    """Compare the ids of both sides; report the first step that differs in the first row that differs."""
    shapes = theirs.ids.shape, ours.ids.shape
    if shapes[0] != shapes[1]:
        return Stage("generate", "different", f"torch wrote ids {list(shapes[0])}, jax {list(shapes[1])}")
    differing = np.argwhere(theirs.ids != ours.ids)
    if not len(differing):
        return Stage("generate", "equal", f"{count(shapes[0][0], 'row')} of {count(shapes[0][1], 'token')}, all the same")
    row, step = differing[0]
    says = f"row {row}, step {step}: torch wrote {theirs.ids[row, step]}, jax {ours.ids[row, step]}"
    if theirs.logits is not None:
        second, first = np.partition(theirs.logits[row, step].astype(np.float64), -2)[-2:]
        says += f", the two likeliest {first - second:.1e} apart"
    return Stage("generate", "different", says)


def _written(side: str, value: Any) -> Written:
    ids, logits = map(host, value) if isinstance(value, tuple) and len(value) == 2 else (host(value), None)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{side}_generate gave {ids.dtype}{list(ids.shape)}; give integer ids `B T`, or (ids, logits `B T V`)")
    if logits is not None and logits.shape[:-1] != ids.shape:
        raise InputError(f"{side}_generate gave logits {list(logits.shape)} for ids {list(ids.shape)}; give `B T V` for `B T`")
    return Written(ids, logits)
