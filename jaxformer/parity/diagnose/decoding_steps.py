"""Why a step of decoding differs: torch decodes again with faults that caches have, or prompts."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from jaxformer.parity.diagnose.constants import say
from jaxformer.parity.diagnose.decoding_replay import Fault, Seen, stepped
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import error
from jaxformer.parity.run.session import Budget, Session

TOLERANCE = 1e-12
"""relL2 of a row's logits."""
MOST_EMPTY = 64
"""Slots of a cache behind the last token."""
MOST_NAMED = 2


def of_steps(seen: Seen) -> Any:
    """Tokens of steps."""
    return (seen.key >= seen.prompt) & (seen.key <= seen.row)


def before(seen: Seen) -> Any:
    """Tokens of steps before the last."""
    return (seen.key >= seen.prompt) & (seen.key < seen.row)


def itself(seen: Seen) -> Any:
    """The last token."""
    return seen.key == seen.row


def of_first_row(x: torch.Tensor) -> torch.Tensor:
    """The first row's, in the place of every row's."""
    return x[:1].expand_as(x)


def is_of_position(fault: Fault) -> bool:
    """Whether it is about positions alone."""
    return fault.position is not None and not fault.empty and not fault.hides


FAULTS = (
    Fault("the position of a step is one too far", position=lambda at, _: at + 1),
    Fault("the position of a step is one too near", position=lambda at, _: at - 1),
    Fault("the position of each step is 0", position=lambda at, _: 0),
    Fault("the positions of steps begin again at 0 behind the prompt", position=lambda at, prompt: at - prompt),
    Fault("the position stays at the first step's", position=lambda at, prompt: prompt),
    Fault(
        "position and slot are one too far: an empty slot behind the prompt is seen",
        position=lambda at, _: at + 1,
        empty=lambda _: 1,
    ),
    Fault(
        "position and slot are one too near: the prompt's last token is written over",
        position=lambda at, _: at - 1,
        hides=lambda seen: seen.key == seen.prompt - 1,
    ),
    Fault(
        "position and slot do not advance: each step writes over the one before",
        position=lambda at, prompt: prompt,
        hides=before,
    ),
    Fault("the slot does not advance: each step writes over the one before", hides=before),
    Fault("the slot is one too near: the prompt's last token is written over", hides=lambda seen: seen.key == seen.prompt - 1),
    Fault("the slot is one too far: an empty slot is seen, and not the last token", hides=itself, empty=lambda _: 1),
    Fault("a step does not see itself", hides=itself),
    Fault("a step sees the prompt alone", hides=of_steps),
    Fault("a step sees itself alone", hides=lambda seen: seen.key < seen.row),
    Fault("a step does not see the prompt", hides=lambda seen: seen.key < seen.prompt),
    Fault("a step does not see the first token", hides=lambda seen: seen.key == 0),
    Fault("the values of steps are not written", without_values=of_steps),
    Fault("the keys of steps are not written", without_keys=of_steps),
    Fault("keys and values of steps are not written", without_keys=of_steps, without_values=of_steps),
    Fault("the values of steps before are not kept", without_values=before),
    Fault("the keys of steps before are not kept", without_keys=before),
    Fault("keys and values of steps before are not kept", without_keys=before, without_values=before),
    Fault("every layer has the keys of the first layer's cache", from_first=(0,)),
    Fault("every layer has the values of the first layer's cache", from_first=(1,)),
    Fault("every layer has the keys and values of the first layer's cache", from_first=(0, 1)),
    Fault("every row reads the first row's cache", cache=lambda held, new: (of_first_row(held), of_first_row(new))),
    Fault("every row reads the first row's cache, and its own token", cache=lambda held, new: (of_first_row(held), new)),
    Fault("every row is given the first row's ids", ids=lambda fed, step: fed[step][:1].repeat(len(fed[step]))),
    Fault("rows are given the ids of the row before", ids=lambda fed, step: np.roll(fed[step], 1)),
    Fault("rows are given the ids of the row behind", ids=lambda fed, step: np.roll(fed[step], -1)),
    Fault("a step is given the ids of the step before", ids=lambda fed, step: fed[max(step - 1, 0)]),
    Fault("a step sees one empty slot", empty=lambda _: 1),
    Fault("steps have no score bias", bias=torch.zeros_like),
    Fault("the score bias of each step is that of the first token", bias=lambda bias: bias[..., :1, :].expand_as(bias)),
)
OF_PROMPT = (Fault("the prompt is read without the mask: its tokens see those behind them", unmasked=True),)
"""Those that are tried where the prompt differs."""


RARE = (
    *(Fault(f"{each.says}, in rotations alone", angles=each.position) for each in FAULTS if is_of_position(each)),
    Fault("the keys of steps are not rotated", still=(1,)),
    Fault("the queries of steps are not rotated", still=(0,)),
    Fault("steps write values into the cache of keys", written=(1, 1)),
    Fault("steps write keys into the cache of values", written=(0, 0)),
    Fault("steps write keys and values into the caches of each other", written=(1, 0)),
)
"""Those that are tried where none of the others fits."""


def more(prompt: int, steps: int) -> Iterator[Fault]:
    """Empty slots up to the end of a cache, of some length."""
    for n in range(1, MOST_EMPTY):
        capacity = prompt + steps + n
        yield Fault(f"a step sees all empty slots of a cache of {capacity}", empty=partial(left_of, capacity))


def left_of(capacity: int, tokens: int) -> int:
    """Slots that are empty."""
    return max(capacity - tokens, 0)


def explain_steps(
    model: Any,
    generate: Callable[[Any], Any],
    theirs: Sequence[np.ndarray],
    ours: Sequence[np.ndarray],
    fed: Sequence[np.ndarray],
) -> str:
    """'jax as if the position of a step is one too far (residual 3e-16)', where that gives all of jax's logits; or ''."""
    if len(theirs) != len(ours):
        return ""
    in_prompt = not same(theirs[0], ours[0])
    if not in_prompt and (says := one_factor(theirs[1:], ours[1:])):
        return says
    found = list[str]()
    copied = copy.deepcopy(model).eval().double()
    prompt = theirs[0].shape[1] if theirs[0].ndim == 3 else 0
    with torch_float64(), Budget(Session()) as budget:
        rare = () if in_prompt else (*RARE, *more(prompt, len(theirs) - 1))
        for fault in (*(OF_PROMPT if in_prompt else FAULTS), *rare):
            if budget.is_spent or (found and fault in rare):
                break
            if (residual := residual_of(generate(copied), fault, ours, fed, budget)) <= TOLERANCE:
                found.append(f"{fault.says} (residual {residual:.0e})")
    return f"jax as if {', or '.join(found[:MOST_NAMED])}" if found else ""


def same(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """Whether logits of a step are the same."""
    return apart(theirs, ours) <= TOLERANCE


def apart(theirs: np.ndarray, ours: np.ndarray) -> float:
    """The largest difference of logits at one place; of the last places where one side gives no others."""
    both = [x[:, -1] if theirs.ndim != ours.ndim and x.ndim == 3 else x for x in (theirs, ours)]
    if both[0].shape != both[1].shape:
        return np.inf
    return max(error(both[1][at], both[0][at]).relative for at in np.ndindex(both[0].shape[:-1]))


def one_factor(theirs: Sequence[np.ndarray], ours: Sequence[np.ndarray]) -> str:
    """Where the logits of all steps are torch's times one number."""
    those = [[x[:, -1] if x.ndim == 3 else x for x in side] for side in (theirs, ours)]
    if [x.shape for x in those[0]] != [x.shape for x in those[1]]:
        return ""
    t, j = (np.stack(side) for side in those)
    factor = float((t * j).sum() / (t * t).sum())
    residual = error(j, factor * t).relative
    return f"jax gives {say(factor)} times torch's logits in steps (residual {residual:.0e})" if residual <= TOLERANCE else ""


def residual_of(steps: Any, fault: Fault, ours: Sequence[np.ndarray], fed: Sequence[np.ndarray], budget: Budget) -> float:
    """The largest of any row's logits; infinite after the first that is not jax's, and where torch cannot go on."""
    worst, number = 0.0, 0
    try:
        for (logits, operations), wanted in zip(stepped(steps, fault, fed), ours, strict=False):
            budget.spend(operations)
            number += 1
            worst = max(worst, apart(logits, wanted))
            if worst > TOLERANCE:
                return np.inf
    except Exception:  # a model refuses in its own ways
        return np.inf
    return worst if number == len(ours) else np.inf
