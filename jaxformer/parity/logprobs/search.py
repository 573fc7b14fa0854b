"""Search for causes: transformations of one side's logits that give the other side's, at every place."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxformer.errors import InputError
from jaxformer.parity.logprobs.chosen import BASES, explain_chosen, log_base
from jaxformer.parity.logprobs.distributions import IMPOSSIBLE, UNITS, kept, log_mass, log_softmax, tolerances
from jaxformer.parity.logprobs.evidence import Evidence, cause, in_words
from jaxformer.parity.logprobs.pointwise import of_either_side, pointwise
from jaxformer.parity.logprobs.readings import Reading, other_ids, shifted, unpadded
from jaxformer.parity.logprobs.report import LogprobCause, SideName
from jaxformer.parity.logprobs.sides import Side
from jaxformer.parity.logprobs.truncation import truncations

MOST = 2**20
"""Number of logits of each side that are searched: of longer texts, places at equal distances."""
LEAST = 16
"""Number of places that are searched, however many ids there are."""
Causes = tuple[LogprobCause, ...]


@dataclass(frozen=True)
class Question:
    """Two sides that differ, and where."""

    trainer: Side
    sampler: Side
    ids: np.ndarray
    judged: np.ndarray
    """True at the places `B L` that are compared."""
    differs: np.ndarray
    valid: np.ndarray | None
    prompt: int
    precision: str


def explain(question: Question) -> tuple[list[Causes], list[str]]:
    """Return the causes that give one side from the other, all that fit equally, and notes on the search."""
    notes: list[str] = []
    vocab = max((side.logits.shape[-1] for side in (question.trainer, question.sampler) if side.logits is not None), default=0)
    if not vocab:
        return [], ["causes are searched in logits, and both sides give log-probabilities alone"]
    if (n := int(question.judged.sum())) > _most(vocab):
        notes.append(f"causes were searched at {_most(vocab):,} of {n:,} places")
    for swapped in (False, True):
        base, target = (question.sampler, question.trainer) if swapped else (question.trainer, question.sampler)
        if base.logits is not None and (found := _shortest(question, base, target, notes)):
            return [tuple(in_words(each, swapped=swapped) for each in one) for one in found], notes
    return [], notes


def _shortest(question: Question, base: Side, target: Side, notes: list[str]) -> list[Causes]:
    assert base.logits is not None
    found = [each for each in _of_reading(question, base.logits, question.judged, target) if each]
    if not found:
        for reading in _readings(question, base, notes):
            chosen = question.judged & reading.covered
            if not (chosen & question.differs).any():
                continue
            for each in _of_reading(question, reading.logits, chosen, target, plainest=True):
                found.append((reading.cause, *each))
    shortest = min(map(len, found), default=0)
    return [*{tuple(one.says for one in each): each for each in found if len(each) == shortest}.values()]


def _readings(question: Question, base: Side, notes: list[str]) -> Iterator[Reading]:
    """Yield other readings; a function that fails on other ids ends those that need it."""
    yield from shifted(base, question.differs)
    if base.call is None:
        return
    try:
        yield from unpadded(base, question.ids, question.valid, question.differs)
        yield from other_ids(base, question.ids, question.differs, question.prompt)
    except InputError as error:
        notes.append(f"other ids and positions were not tried: {error}")


def _of_reading(
    question: Question, logits: np.ndarray, chosen: np.ndarray, target: Side, *, plainest: bool = False
) -> list[Causes]:
    """Return the shortest causes for one reading's logits at the chosen places; the `plainest` transformations, or all."""
    rows, places = _sample(chosen, question.differs, logits.shape[-1])
    if not len(rows):
        return []
    base = logits[rows, places].astype(np.float64)
    if target.logits is None:
        assert target.chosen is not None
        known = explain_chosen(base, (rows, places), question.ids, target.chosen, question.precision, plainest=plainest)
        return [each for one in known for each in of_either_side(one, question.precision)]
    wanted = target.logits[rows, places].astype(np.float64)
    found = []
    after, wanted = _natural(wanted)
    columns, base, wanted = _columns(base, wanted)
    of_base, of_target = kept(base), kept(wanted)
    if (of_target & ~of_base).any():
        return []
    evidence = Evidence(base, wanted, of_target, question.precision, question.ids, rows, places, question.prompt)
    for fit in pointwise(evidence, plainest=plainest):
        for one in truncations(fit, evidence, of_base):
            found += [(*columns, *each, *after) for each in of_either_side(one, question.precision)]
    shortest = min(map(len, found), default=0)
    return [each for each in found if len(each) == shortest]


def _natural(wanted: np.ndarray) -> tuple[Causes, np.ndarray]:
    """Return the target's values as natural logarithms, with the cause if they are of another base."""
    for base, factor in BASES.items():
        if (np.abs(log_mass(wanted * factor)) <= tolerances(UNITS["float32"], wanted)).all():
            return (log_base(base),), wanted * factor
    return (), wanted


def _columns(base: np.ndarray, target: np.ndarray) -> tuple[Causes, np.ndarray, np.ndarray]:
    """Return the columns that both sides have, with the cause if one side gives others a probability."""
    sizes = {"trainer": base.shape[1], "sampler": target.shape[1]}
    least = min(sizes.values())
    wide: SideName = "trainer" if sizes["trainer"] > least else "sampler"
    values = base if wide == "trainer" else target
    share = np.exp(log_softmax(values))[:, least:].sum(-1).max(initial=0.0)
    if share <= np.exp(IMPOSSIBLE):
        return (), base[:, :least], target[:, :least]
    padding = f"{sizes[wide] - least} ids from {least} on, which the other side lacks"
    said = f"the {{{wide}}} gives probability, at most {share:.2g}, to {padding}"
    return (cause("vocabulary", said, wide, size=sizes[wide], of=least),), base[:, :least], target[:, :least]


def _sample(chosen: np.ndarray, differs: np.ndarray, vocab: int) -> np.ndarray:
    """Rows and places that are searched: all, or as many that differ as that do not, at equal distances."""
    most = _most(vocab)
    if chosen.sum() <= most:
        return np.argwhere(chosen).T
    differing, same = np.argwhere(chosen & differs), np.argwhere(chosen & ~differs)
    n_same = min(len(same), most // 2)
    parts = (differing, min(len(differing), most - n_same)), (same, n_same)
    return np.concatenate([each[np.linspace(0, len(each) - 1, n).astype(int)] for each, n in parts if n]).T


def _most(vocab: int) -> int:
    return max(LEAST, MOST // vocab)
