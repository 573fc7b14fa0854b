"""A difference that is only in rows where every key is masked is told from others."""

import numpy as np
import pytest

from jaxformer.parity.diagnose.by_arrays.attention import explain_empty_rows
from jaxformer.parity.diagnose.evidence import Difference, Evidence

B, N, T, S, H = 4, 2, 3, 5, 6
OPEN = np.ones((B, 1, T, S), bool)
OPEN[1, :, 0] = OPEN[3] = False
ROWS = ~OPEN.any(-1)[:, 0]
X = np.random.default_rng(0).standard_normal((B, T, N * H))
ZEROS = np.where(ROWS[..., None], 0, X)
LOWEST = np.finfo(np.float64).min
SCORES = np.where(OPEN, np.random.default_rng(1).standard_normal((B, N, T, S)), LOWEST)
HEADS = {
    "B T D": lambda x: x,
    "B T N H": lambda x: x.reshape(B, T, N, H),
    "B N T H": lambda x: x.reshape(B, T, N, H).swapaxes(1, 2),
    "B*N T H": lambda x: x.reshape(B, T, N, H).swapaxes(1, 2).reshape(B * N, T, H),
}
SAYS = "torch attends to all keys alike, jax gives 0"


def said(ours, theirs, scores, masks):
    found = explain_empty_rows(Difference(ours, theirs, evidence=Evidence(masks=masks, scores=scores)))
    return found.words() if found else ""


MERGED = SCORES.reshape(B * N, T, S)


@pytest.mark.parametrize(
    ("heads", "scores"), [*((heads, SCORES) for heads in list(HEADS)[:3]), ("B T D", MERGED), ("B*N T H", MERGED)]
)
def test_however_heads_are_laid_out(heads, scores):
    assert said(HEADS[heads](ZEROS), HEADS[heads](X), [scores], []) == SAYS


@pytest.mark.parametrize("sense", [OPEN, ~OPEN, OPEN[:, 0]], ids=["open", "hidden", "without heads"])
def test_masks_say_it_where_no_scores_are_seen(sense):
    assert said(ZEROS, X, [], [sense]) == "torch gives other numbers, jax gives 0"


def test_the_other_way_round():
    nothing = np.where(ROWS[..., None], np.nan, X)
    assert said(nothing, ZEROS, [SCORES], []) == "torch gives 0, jax gives NaN"
    assert said(X, ZEROS, [SCORES], []) == "torch gives 0, jax gives other numbers"


OTHERS = {
    "a row with keys too": (np.where(np.arange(B)[:, None, None] == 0, 2 * ZEROS, ZEROS), [SCORES]),
    "no row without keys": (ZEROS, [np.zeros_like(SCORES)]),
    "no row with one": (ZEROS, [np.full_like(SCORES, LOWEST)]),
    "nothing is known": (ZEROS, []),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_differences_are_not_that(case):
    ours, scores = OTHERS[case]
    assert said(ours, X, scores, []) == ""


def test_a_mask_of_unknown_sense_says_nothing_of_rows_that_have_numbers_on_both_sides():
    assert said(np.where(ROWS[..., None], 2 * X, X), X, [], [~OPEN]) == ""
