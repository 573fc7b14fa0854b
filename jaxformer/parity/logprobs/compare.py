"""Compare the log-probabilities that a trainer and a sampler give to the same ids: `compare_logprobs`."""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.errors import InputError
from jaxformer.parity.logprobs.distributions import UNITS, log_softmax, tolerances
from jaxformer.parity.logprobs.endings import ending, filled, not_numbers
from jaxformer.parity.logprobs.evidence import HALVES, cause, halved, in_words
from jaxformer.parity.logprobs.measure import measure
from jaxformer.parity.logprobs.report import LogprobCause, LogprobReport
from jaxformer.parity.logprobs.search import Question, explain
from jaxformer.parity.logprobs.sides import Side, read_side
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.report.text import count
from jaxformer.validation.fields import check_size

MOST_NOTED = 256
"""Number of places whose logits are looked at for a note."""
UNKNOWN = "KL, and the probabilities of ids that do not follow: one number a place is given by {}"
UNNORMALISED = "a truncation without normalising what is left: it changes no number of an id that is kept"


def compare_logprobs(trainer: Any, sampler: Any, ids: Any, *, valid: Any = None, prompt: int = 1) -> LogprobReport:
    """Compare the distributions of a trainer and a sampler at every place of `B L` ids, and name the cause of a difference.

    Each side is a function of the ids (a torch module or another callable; numpy ids go in) or its values: logits `B L V`, the
    output of transformers' `generate` with scores or logits, or log-probabilities `B L-1` of ids[:, 1:] alone (or of the last
    ids). A function that is a generator decodes step by step: it gets the first `prompt` ids, yields their logits `B prompt V`
    or those of the last one `B V`, and then `B V` for each of the other ids, which it is sent. `valid` (`B L`, True = no
    padding) leaves padding out. `prompt` is also where output penalties and end ids begin.

    Causes are found by search: transformations of one side that give the other at every place. Functions are also run on other
    ids and positions. A difference raises nothing: `report.exit_code` is 0 for equal, 1 for different, 2 for not compared.
    InputError for values that do not fit the ids.
    """
    ids = host(ids)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or ids.shape[1] < 2 or not ids.size or ids.min() < 0:
        raise InputError(f"ids are {ids.dtype}{list(ids.shape)}; give integers `B L` from 0 on, with at least two in a row")
    check_size("prompt", prompt, 1, ids.shape[1] - 1)
    if valid is not None:
        valid = host(valid).astype(bool)
        if valid.shape != ids.shape:
            raise InputError(f"valid has shape {list(valid.shape)}, ids {list(ids.shape)}; give True or False for each id")
    sides = read_side("trainer", trainer, ids, prompt), read_side("sampler", sampler, ids, prompt)
    for side in sides:
        if side.logits is not None and ids.max() >= side.logits.shape[-1]:
            vocab = f"the {side.logits.shape[-1]} logits of {side.name}"
            raise InputError(f"id {ids.max()} is beyond {vocab}; give a logit for each id")
    return _judged(sides, ids, valid, prompt)


def _judged(sides: tuple[Side, Side], ids: np.ndarray, valid: np.ndarray | None, prompt: int) -> LogprobReport:
    both = sides[0].covered & sides[1].covered & (True if valid is None else valid)
    nothing, nan = [filled(side) & both for side in sides], [not_numbers(side) & both for side in sides]
    judged = both & (nothing[0] == nothing[1]) & ~(nan[0] | nan[1])
    precision = "float64" if all(side.wide for side in sides) else "float32"
    measured = measure(*sides, ids, judged, precision)
    report = LogprobReport(
        status="different" if measured.differs.any() else "equal",
        why="",
        given={side.name: side.given for side in sides},
        n_places=int(judged.sum()),
        precision=precision,
        cannot_tell=_open_questions(sides),
        **measured.figures(),
    )
    in_both = f"both sides give NaN at {_where(nan[0] & nan[1], ids)}" if (nan[0] & nan[1]).any() else ""
    if not judged.any():
        return replace(report, status="failed", why=in_both or "there is no place that both sides give")
    ends, notes = _endings(sides, nothing, nan, ids, prompt)
    if not report.n_different and not notes:
        rest = f"the other {count(report.n_places, 'place')} are the same; padding is left out by valid"
        return replace(report, status="failed", why=f"{in_both}; {rest}") if in_both else report
    notes += [in_both] if in_both else []
    if not report.n_different:
        return replace(report, status="different", causes=ends, notes=notes)
    if said := _not_repeatable(sides, ids):
        return replace(report, status="failed", why=said, notes=notes)
    question = Question(*sides, ids, judged, measured.differs, valid, prompt, precision)
    found, more = explain(question)
    if not found:
        return replace(report, notes=[*notes, *(f"besides: {each.says}" for each in ends), *more, *_observed(question)])
    causes, *others = [[*each, *ends] for each in found]
    return replace(report, causes=causes, alternatives=others, notes=[*notes, *more])


def _open_questions(sides: tuple[Side, Side]) -> list[str]:
    """Questions that one number a place leaves open."""
    alone = [side.name for side in sides if side.logits is None]
    return [UNKNOWN.format(" and ".join(alone)), UNNORMALISED] if alone else []


def _endings(
    sides: tuple[Side, Side], nothing: list[np.ndarray], nan: list[np.ndarray], ids: np.ndarray, prompt: int
) -> tuple[list[LogprobCause], list[str]]:
    """Return the end ids and NaN, and notes, of places at which one side alone gives nothing, or NaN."""
    ends, notes = [], []
    for n, side in enumerate(sides):
        ended, bad = nothing[n] & ~nothing[1 - n], nan[n] & ~nan[1 - n]
        if end := ending(side, ended, ids, prompt):
            ends.append(end)
            bad = bad & ~ended
        for what, places in (("nothing", ended & ~bad), ("NaN", bad)):
            if places.any():
                notes.append(f"{side.name} gives {what} at {_where(places, ids)}")
        if bad.any():
            says = f"the {{sampler}} gives NaN at {_where(bad, ids)}"
            ends.append(in_words(cause("NaN", says, places=int(bad.sum())), swapped=side.name == "trainer"))
    return ends, notes


def _where(places: np.ndarray, ids: np.ndarray) -> str:
    row, place = np.argwhere(places)[0]
    return f"{count(int(places.sum()), 'place')}, first at row {row}, place {place}, after id {ids[row, place]}"


def _not_repeatable(sides: tuple[Side, Side], ids: np.ndarray) -> str:
    """Return the reason if a side gives other logits when it is called again, as with dropout; else ''."""
    for side in sides:
        if side.call is not None and side.logits is not None:
            one, other = (log_softmax(each) for each in (side.logits, side.call(ids)))
            with np.errstate(invalid="ignore"):
                gap = float(np.nan_to_num(np.abs(one - other)).max())
            if gap > float(tolerances(UNITS["float32"], side.logits).max()):
                return f"{side.name} gives other log-probabilities when it is called again, by up to {gap:.1e}: is dropout on?"
    return ""


def _observed(question: Question) -> list[str]:
    """Return what is seen of a difference without a cause: its rows, and its first place."""
    notes, differs = [], question.differs
    rows = np.flatnonzero(differs.any(1))
    if len(rows) < len(differs):
        notes.append(f"only rows {', '.join(map(str, rows[:8]))}{' and more' if len(rows) > 8 else ''} differ")
        if question.valid is not None and np.array_equal(~question.valid.all(1), differs.any(1)):
            notes.append("these are the rows with padding")
    first = int(np.argmax(differs.any(0)))
    if question.judged[rows, :first].any():
        notes.append(f"all places before {first} are the same: look at the cache and the positions from there on")
    return notes + _on_a_grid(question)


def _on_a_grid(question: Question) -> list[str]:
    """Note logits of one side that have 16 bits, where they are not the other side's rounded."""
    notes = []
    for side, other in ((question.trainer, question.sampler), (question.sampler, question.trainer)):
        if side.logits is not None and other.logits is not None:
            at = tuple(np.argwhere(question.differs)[:MOST_NOTED].T)
            mine, others = (np.nan_to_num(each[at].astype(np.float64)) for each in (side.logits, other.logits))
            for name in HALVES:
                if (halved(mine, name) == mine).all() and (halved(others, name) != others).any():
                    notes.append(f"all logits of {side.name} are {name} numbers, and not those of {other.name} rounded")
                    break
    return notes
