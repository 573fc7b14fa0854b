"""Trainer or sampler as it is given: a function of ids, logits, the output of transformers' `generate`, decoding step by step,
or log-probabilities of the ids alone."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxformer.errors import InputError, first_line, type_of
from jaxformer.parity.decoding import run_steps
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.report.text import count

POSITIONS = ("positions", "position_ids")
"""Names of the argument by which models take positions."""
Call = Callable[..., np.ndarray]
"""Function (ids `B L`, positions=None) -> logits `B L V`."""


@dataclass(frozen=True)
class Side:
    """Values of one side: logits, or else log-probabilities of the ids that follow."""

    name: str
    given: str
    """Description of what was given."""
    logits: np.ndarray | None
    """Logits `B L V`, -inf at places without any."""
    chosen: np.ndarray | None
    """Log-probabilities `B L-1` of ids[:, 1:], NaN where none are given."""
    covered: np.ndarray
    """True at the places `B L` that were given."""
    wide: bool
    """True if the values were given in float64."""
    call: Call | None = None
    """Function that gives the logits of other ids."""
    takes_positions: bool = False


def read_side(name: str, side: Any, ids: np.ndarray, prompt: int) -> Side:
    """Read a side's values for the ids `B L`; InputError for anything that does not fit them."""
    if hasattr(side, "sequences"):
        return _generated(name, side, ids)
    if inspect.isgenerator(side):
        return _stepwise(name, side, ids, prompt)
    if not callable(side):
        return _of_array(name, getattr(side, "logits", side), ids, "")
    call, position_name = _function(name, side)
    value = call(ids)
    if inspect.isgenerator(value):
        value.close()
        return _stepwise(name, call(ids[:, :prompt]), ids, prompt)
    found = _of_array(name, value, ids, "a function, ")
    if found.logits is None:
        return found
    vocab = found.logits.shape[-1]

    def logits(other: np.ndarray, positions: np.ndarray | None = None) -> np.ndarray:
        more = {} if positions is None else {position_name: positions}
        again = host(call(other, **more)).astype(np.float64)
        if again.shape != (*other.shape, vocab):
            raise InputError(f"{name} gave {list(again.shape)} at another call; give logits `B L V` at every call")
        return again

    return replace(found, call=logits, takes_positions=bool(position_name))


def _function(name: str, side: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """Return a function of numpy ids that returns what the side gives, and the name of its argument for positions, or ''."""
    is_torch = hasattr(side, "state_dict") and hasattr(side, "forward") and hasattr(side, "parameters")
    try:
        known = inspect.signature(side.forward if is_torch else side).parameters  # pyright: ignore[reportFunctionMemberAccess]
    except (TypeError, ValueError):
        known = {}
    positions = next((each for each in POSITIONS if each in known), "")

    def call(ids: np.ndarray, **more: np.ndarray) -> Any:
        try:
            value = _call_torch(side, ids, more) if is_torch else side(ids, **more)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{name}(ids) raised {type(error).__name__}: {first_line(error)}") from error
        value = getattr(value, "logits", value)
        return value[0] if isinstance(value, tuple) and value else value

    return call, positions


def _call_torch(module: Any, ids: np.ndarray, more: dict[str, np.ndarray]) -> Any:
    import torch

    device = next((each.device for each in module.parameters()), "cpu")
    with torch.no_grad():
        tensors = {key: torch.as_tensor(value).long().to(device) for key, value in more.items()}
        return module(torch.as_tensor(ids).long().to(device), **tensors)


def _stepwise(name: str, steps: Any, ids: np.ndarray, prompt: int) -> Side:
    """Run a generator of logits on the ids: those of the prompt, then of each step."""
    try:
        found = run_steps(name, steps, lambda each: each, [ids[:, t] for t in range(prompt, ids.shape[1])])
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the steps of {name} raised {type(error).__name__}: {first_line(error)}") from error
    first = found[0] if found else None
    if first is None or (first.ndim == 3 and first.shape[1] != prompt):
        gave = "nothing" if first is None else f"logits {list(first.shape)} first"
        raise InputError(f"{name} yielded {gave}; yield the logits of the prompt's {prompt} ids (prompt={prompt}) first")
    start = prompt - 1 if first.ndim == 2 else 0
    rows = [
        first[:, None] if first.ndim == 2 else first,
        *(each[:, -1:] if each.ndim == 3 else each[:, None] for each in found[1:]),
    ]
    said = f"{count(len(found) - 1, 'step')} after {count(prompt, 'id')}, "
    return _placed(name, np.concatenate(rows, 1), ids, start, said, ends_early=True)


def _generated(name: str, output: Any, ids: np.ndarray) -> Side:
    """Read transformers' output of `generate`: scores, from which ids were drawn, or else logits."""
    which = next((each for each in ("scores", "logits") if getattr(output, each, None) is not None), None)
    if which is None:
        raise InputError(
            f"{name} has sequences without scores; call generate(..., return_dict_in_generate=True, output_scores=True)"
        )
    sequences, steps = host(output.sequences), [host(each) for each in getattr(output, which)]
    if sequences.shape != ids.shape or (sequences != ids).any():
        raise InputError(
            f"the sequences that {name} generated {list(sequences.shape)} are not the ids; give ids=output.sequences"
        )
    if not steps or steps[0].ndim != 2 or len(steps[0]) != len(ids):
        shape = list(steps[0].shape) if steps else "none"
        raise InputError(f"{name}'s {which} are {shape} for {count(len(ids), 'row')}; beams are not compared: generate without")
    start = ids.shape[1] - len(steps) - 1
    return _placed(name, np.stack(steps, 1), ids, start, f"{which} of {count(len(steps), 'generated id')}, ")


def _of_array(name: str, value: Any, ids: np.ndarray, before: str) -> Side:
    try:
        array = host(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty(0, object)
    if array.ndim not in (2, 3) or array.dtype.kind not in "fV" or (array.dtype.kind == "V" and array.dtype.name != "bfloat16"):
        got = f"{array.dtype}{list(array.shape)}" if array.dtype != object else type_of(value)
        raise InputError(
            f"{name} is {got}; give a function of ids, logits `B L V`, the output of generate, or log-probabilities "
            "`B L-1` of ids[:, 1:]"
        )
    if array.ndim == 3:
        return _placed(name, array, ids, 0, before)
    (rows, length), given = ids.shape, array.shape[-1]
    if len(array) != rows or not 0 < given < length:
        raise InputError(
            f"{name} is {array.dtype}{list(array.shape)} for ids {list(ids.shape)}; give [{rows}, {length - 1}], value t for "
            "ids[:, t + 1], or the values of the last ids"
        )
    chosen, covered = np.full((rows, length - 1), np.nan), np.zeros(ids.shape, bool)
    start = length - 1 - given
    chosen[:, start:], covered[:, start:-1] = array.astype(np.float64), True
    said = f"{before}log-probabilities of the last {given} ids, {array.dtype}{list(array.shape)}"
    return Side(name, said, None, chosen, covered, array.dtype == np.float64)


def _placed(name: str, values: np.ndarray, ids: np.ndarray, start: int, before: str, *, ends_early: bool = False) -> Side:
    """Put logits `B n V` at the places from `start` on; where steps end early, the places after them have -inf."""
    (rows, length), end = ids.shape, start + values.shape[1]
    if len(values) != rows or start < 0 or end > length or (not ends_early and start == 0 and end != length):
        raise InputError(
            f"{name} gave logits {list(values.shape)} for ids {list(ids.shape)}; give `B L V`: one distribution an id"
        )
    covered = np.zeros(ids.shape, bool)
    covered[:, start : length if ends_early else end] = True
    given = f"{before}logits {values.dtype}{list(values.shape)}"
    if end - start < length:
        whole = np.full((rows, length, values.shape[-1]), -np.inf, values.dtype if values.dtype.kind == "f" else np.float32)
        whole[:, start:end] = values
        values = whole
    return Side(name, given, values, None, covered, values.dtype == np.float64)
