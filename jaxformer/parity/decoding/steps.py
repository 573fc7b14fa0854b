"""Decoding step by step, each side with its own cache: both are fed torch's tokens, and the logits of each step are
compared."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from jaxformer.errors import InputError
from jaxformer.parity.numerics.metrics import error, host
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.text import count

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
