"""A cause is looked for in one row of a batch, and holds for all of them."""

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.errors import ParityError
from jaxformer.parity.compare import compare
from jaxformer.parity.explain import search as causes
from jaxformer.parity.explain.attention import explain_attention
from jaxformer.parity.explain.formulas import Evidence
from jaxformer.parity.explain.search import cause_of, explain, explain_gradient, explain_sum
from jaxformer.parity.judge import module_table as modules
from jaxformer.parity.probe.parameters import excite
from parity_tests.helpers import noise

B, T, D = 3, 5, 8


def normed(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def at_hand(**before):
    return Evidence(before, (), {"scale": np.ones(D)}, {})


def test_what_holds_for_one_row_alone_is_no_cause():
    x = noise(B, T, D, seed=1).astype(np.float64)
    ours, theirs = normed(x, 1e-6), normed(x, 1e-5)
    assert explain(at_hand(input=x), ours, theirs, {}).startswith("torch epsilon 1e-05; jax epsilon 1e-06 (residual ")
    others = np.square(theirs).sum((1, 2)) < np.square(theirs).sum((1, 2)).max()
    theirs[others] *= 0.9
    assert explain(at_hand(input=x), ours, theirs, {}) == ""


def test_one_array_for_all_rows():
    """It is a term of a sum; attention is looked for with an array for each row alone."""
    x, places = noise(B, T, D, seed=1).astype(np.float64), noise(1, T, D, seed=2).astype(np.float64)
    said = explain(at_hand(input=x, places=places), x + 2 * places, x + places, {})
    assert said.startswith("torch adds 1 times places; jax adds 2 times places (residual ")
    q, k, v = noise(1, T, D, seed=1), noise(B, T, D, seed=2), noise(B, T, D, seed=3)
    assert explain(at_hand(q=q, k=k, v=v), noise(B, T, D, seed=4), noise(B, T, D, seed=5), {}) == ""


def spoiled(value):
    array = noise(B, T, D).astype(np.float64)
    array[1, 2] = value
    return array


HOSTILE = {
    "plain": spoiled(1.0),
    "NaN": spoiled(np.nan),
    "-inf": spoiled(-np.inf),
    "lowest": spoiled(np.finfo(np.float64).min),
    "nothing finite": np.full((B, T, D), np.nan),
    "zeros": np.zeros((B, T, D)),
    "no rows": np.zeros((0, T, D)),
    "no columns": np.zeros((B, T, 0)),
    "a number": np.array(2.0),
    "a vector": noise(D),
    "four axes": noise(B, 2, T, T),
    "integers": np.arange(B * T * D).reshape(B, T, D),
    "booleans": spoiled(1.0) > 0,
    "complex": spoiled(1.0) * (1 + 1j),
    "packed": noise(B, T, 3 * D),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_array_breaks_an_explanation(kind, monkeypatch):
    monkeypatch.setattr(causes, "FAR", 1)  # few combinations call every formula
    others = {"beside": {"table": noise(7, D), "kernel": noise(D, D), "bias": noise(D)}}
    own = {"scale": np.ones(D), "bias": np.zeros(D), "kernel": noise(D, D)}
    for ours, theirs in ((HOSTILE["plain"], HOSTILE[kind]), (HOSTILE[kind], HOSTILE["plain"]), (HOSTILE[kind], HOSTILE[kind])):
        masks = np.ones((B, 1, 1, T), bool), np.ones((2, 2), bool)
        at_hand = Evidence({"input": HOSTILE[kind], "input 1": HOSTILE["plain"], "input 2": theirs}, masks, own, others)
        with np.errstate(all="ignore"):
            said = [explain(at_hand, ours, theirs, {}), explain_sum(at_hand, ours, theirs), explain_gradient(ours, theirs)]
            said += [explain_attention(ours, theirs, what, theirs, forced=True) for what in ("scores", "weights")]
        assert set(map(type, said)) == {str}


@pytest.mark.parametrize(("shape", "hint"), [((4, D), True), ((4, T, D), False)])
def test_a_table_alone_has_a_padding_index(shape, hint):
    """A row of a batch that gets no gradient may be all padding."""
    ours = noise(*shape)
    theirs = np.concatenate([ours[:1], np.zeros_like(ours[:1]), ours[2:]])
    said = explain_gradient(ours, theirs)
    assert said.startswith("torch's gradient is 0 in row 1 of 4, where jax's is not")
    assert said.endswith("as torch's padding_idx has it") == hint


class TorchShift(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(D, D)

    def forward(self, x):
        return self.inner(x) + 1


class Shift(nnx.Module):
    def __init__(self):
        self.inner = nnx.Linear(D, D, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.inner(x) + 2


@pytest.mark.parametrize("error", [ParityError, np.linalg.LinAlgError, MemoryError])
def test_a_search_that_fails_ends_no_comparison(error, monkeypatch):
    def fails(*_):
        raise error("in the middle of it")

    monkeypatch.setattr(modules, "why", fails)
    monkeypatch.setattr(modules, "explain_gradient", fails)
    theirs, ours = excite(TorchShift(), seed=1), Shift()
    ours.inner.kernel[...], ours.inner.bias[...] = (p.detach().numpy().T for p in theirs.parameters())
    with jax.numpy_rank_promotion("allow"):
        report = compare(theirs, ours, (noise(B, T, D),), checks=("weights", "forward", "local"), tier="A")
    assert report.verdict.startswith("DIFFERENT: the model: output: relL2"), str(report)


def test_a_bug_of_an_explanation_is_not_hidden():
    with pytest.raises(AttributeError):
        cause_of(lambda: np.no_such_function())
