"""A hypothesis tried on both sides of a difference: by which choices of its formula they differ."""

from dataclasses import replace

import numpy as np

from jaxformer.parity.explain.evidence import Difference, Evidence
from jaxformer.parity.explain.search import ALL, FAR, NEAR, Choices, Chosen, Hypothesis, apart, search_both


def explain_by(hypothesis: Hypothesis, difference: Difference) -> str:
    """'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)', or '' where the formula does not give both sides."""
    whole = difference.made
    real = {name: array for name, array in whole.before.items() if array.ndim and array.size and not np.iscomplexobj(array)}
    whole = replace(whole, before=real)
    if not difference.torch.ndim or not (choices := hypothesis.choices(whole)):
        return ""
    row = fullest(difference.torch)
    of_row = hypothesis.choices(only(row, whole, len(difference.torch)))
    same = [{what: [*options] for what, options in each.items()} for each in (of_row, choices)]
    grounds = [(of_row, row)] * (same[0] == same[1]) + [(choices, ALL)]
    torch_hint, jax_hint = (offered(hint, choices) for hint in difference.hints.get(hypothesis, ({}, {})))
    arrays = difference.torch, difference.jax
    found = search_both(hypothesis.formula, grounds, arrays, (FAR, NEAR), (torch_hint, jax_hint))
    if found and (says := apart(choices, *found)):
        difference.hints[hypothesis] = found[0][0], found[1][0]
        return says
    return ""


def offered(hint: Chosen, choices: Choices) -> Chosen:
    """A hint, if it can be chosen here too; else nothing."""
    fits = hint.keys() == choices.keys() and all(name in choices[what] for what, name in hint.items())
    return hint if fits else {}


def fullest(array: np.ndarray) -> slice:
    """The row of a batch that holds most."""
    size = np.square(np.where(np.isfinite(array), array, 0)).reshape(len(array), -1).sum(1)
    return slice(best := int(size.argmax()), best + 1)


def only(row: slice, evidence: Evidence, rows: int) -> Evidence:
    """What was at hand for one row; arrays without rows stay."""

    def cut(array: np.ndarray) -> np.ndarray:
        return array[row] if array.shape[:1] == (rows,) else array

    before, ids = ({name: cut(array) for name, array in each.items()} for each in (evidence.before, evidence.ids))
    masks, scores = (tuple(map(cut, arrays)) for arrays in (evidence.masks, evidence.scores))
    return replace(evidence, before=before, ids=ids, masks=masks, scores=scores)
