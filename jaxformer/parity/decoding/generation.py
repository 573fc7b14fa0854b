"""Tokens that both sides generate from the same weights with the user's own functions: all at once, or step by step."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.errors import InputError
from jaxformer.parity.decoding.steps import compare_steps, likeliest, run_steps
from jaxformer.parity.numerics.float32_tables import NO_TABLES, Tables
from jaxformer.parity.numerics.float64 import jax_float64, torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.text import count
from jaxformer.parity.runs.load_weights import joined, load_jax, ready


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

    from jaxformer.parity.diagnose.decoding_steps import explain_steps

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
