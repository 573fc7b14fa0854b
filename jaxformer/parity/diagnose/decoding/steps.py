"""Find the cause of a decoding step that differs: replay torch's decoding with faults of caches and prompts."""

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from jaxformer.parity.diagnose.decoding.faults import FAULTS, OF_PROMPT, RARE, Fault, more
from jaxformer.parity.diagnose.decoding.replay import Decoding
from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import error, host
from jaxformer.parity.runs.session import Budget, Session

TOLERANCE = 1e-12
"""Tolerance (relL2) of the logits of one row."""
MOST_NAMED = 2


def explain_steps(
    model: Any,
    generate: Callable[[Any], Any],
    torch_logits: Sequence[np.ndarray],
    jax_logits: Sequence[np.ndarray],
    fed: Sequence[np.ndarray],
) -> str:
    """Return 'jax as if the position of a step is one too far (residual 3e-16)', or '' if no fault gives all of jax's logits.

    `generate` takes a model and yields the logits of the prompt and of each step, `torch_logits` and `jax_logits` are those
    of both sides, and `fed` the ids that each step is given.
    """
    if len(torch_logits) != len(jax_logits):
        return ""
    in_prompt = apart(torch_logits[0], jax_logits[0]) > TOLERANCE
    if not in_prompt and (says := one_factor(torch_logits[1:], jax_logits[1:])):
        return says
    found = list[str]()
    copied = copy.deepcopy(model).eval().double()
    prompt = torch_logits[0].shape[1] if torch_logits[0].ndim == 3 else 0
    with torch_float64(), Budget(Session()) as budget:
        rare = () if in_prompt else (*RARE, *more(prompt, len(torch_logits) - 1))
        for fault in (*(OF_PROMPT if in_prompt else FAULTS), *rare):
            if budget.is_spent or (found and fault in rare):
                break
            if (residual := residual_of(generate(copied), fault, jax_logits, fed, budget)) <= TOLERANCE:
                found.append(f"{fault.says} (residual {residual:.0e})")
    return f"jax as if {', or '.join(found[:MOST_NAMED])}" if found else ""


def apart(torch_logits: np.ndarray, jax_logits: np.ndarray) -> float:
    """Return the largest relL2 of the logits of one position; of the last positions alone where one side gives no others."""
    both = [x[:, -1] if torch_logits.ndim != jax_logits.ndim and x.ndim == 3 else x for x in (torch_logits, jax_logits)]
    if both[0].shape != both[1].shape:
        return np.inf
    return max(error(both[1][at], both[0][at]).relative for at in np.ndindex(both[0].shape[:-1]))


def one_factor(torch_logits: Sequence[np.ndarray], jax_logits: Sequence[np.ndarray]) -> str:
    """Return words if the logits of all steps are torch's times one factor, else ''."""
    those = [[x[:, -1] if x.ndim == 3 else x for x in side] for side in (torch_logits, jax_logits)]
    if [x.shape for x in those[0]] != [x.shape for x in those[1]]:
        return ""
    t, j = (np.stack(side) for side in those)
    factor = float((t * j).sum() / (t * t).sum())
    residual = error(j, factor * t).relative
    return f"jax gives {say(factor)} times torch's logits in steps (residual {residual:.0e})" if residual <= TOLERANCE else ""


def stepped(steps: Generator[Any, Any, Any], fault: Fault, fed: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the logits of each step, and the number of operations that it took."""
    mode, given = Decoding(fault), None
    with torch.no_grad():
        for step in range(len(fed) + 1):
            mode.begin(step)
            with mode:
                try:
                    logits = next(steps) if step == 0 else steps.send(given)
                except StopIteration:
                    return
            yield host(logits), mode.count
            mode.count = 0
            if step < len(fed):
                given = torch.from_numpy(fault.ids(fed, step) if fault.ids else fed[step])
    steps.close()


def residual_of(steps: Any, fault: Fault, jax_logits: Sequence[np.ndarray], fed: Sequence[np.ndarray], budget: Budget) -> float:
    """Return the largest residual of the logits; infinite from the first step that is not equal to jax's, and where torch fails
    with the fault."""
    worst, number = 0.0, 0
    try:
        for (logits, operations), wanted in zip(stepped(steps, fault, fed), jax_logits, strict=False):
            budget.spend(operations)
            number += 1
            worst = max(worst, apart(logits, wanted))
            if worst > TOLERANCE:
                return np.inf
    except Exception:  # any error of the model's code
        return np.inf
    return worst if number == len(jax_logits) else np.inf
