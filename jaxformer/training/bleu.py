"""BLEU as sacrebleu counts it (Post 2018), with the `translate` extra.

Only the JAX side has runs: the twin has none.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple


class Score(NamedTuple):
    """BLEU of a corpus, and how it was measured."""

    bleu: float
    """From 0 to 100."""
    signature: str
    """sacrebleu's own, by which scores are comparable."""


def can_score() -> bool:
    """Whether there is a sacrebleu."""
    return find_spec("sacrebleu") is not None


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacrebleu's default: cased, raw text, one reference each."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(found.score, str(metric.get_signature()))
