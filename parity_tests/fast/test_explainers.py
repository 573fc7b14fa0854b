"""Causes: what each explainer finds, that the first of the list is heard, and that none of them ends a comparison."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxformer
from jaxformer.errors import ParityError
from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose import explainers
from jaxformer.parity.diagnose.by_arrays.values import appearance
from jaxformer.parity.diagnose.diagnosis import Diagnosis, sentence
from jaxformer.parity.diagnose.evidence import Difference, Evidence
from jaxformer.parity.diagnose.explainers import EXPLAINERS, attempt, explain
from jaxformer.parity.diagnose.formulas import choices
from jaxformer.parity.diagnose.formulas.attention import attend, masks
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.session import Session
from parity_tests.support.helpers import noise

B, T, D = 3, 5, 8
CHECKS = ("weights", "forward", "local")


def normed(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def cause(ours, theirs, **before):
    return str(explain(Difference(ours, theirs, evidence=Evidence(before, parameters={"gain": np.ones(D)}))))


def test_what_holds_for_one_row_alone_is_no_cause():
    x = noise(B, T, D, seed=1).astype(np.float64)
    ours, theirs = normed(x, 1e-6), normed(x, 1e-5)
    assert cause(ours, theirs, input=x).startswith("torch epsilon 1e-05; jax epsilon 1e-06 (residual ")
    others = np.square(theirs).sum((1, 2)) < np.square(theirs).sum((1, 2)).max()
    theirs[others] *= 0.9
    assert cause(ours, theirs, input=x) == ""


def attended(q, k, v, scale):
    return attend(
        **{
            "(query, key, value)": (q, k, v),
            "heads": 2,
            "heads laid out": (False, False),
            "key heads": False,
            "scale": scale,
            "mask": masks(())["none"],
            "masked scores": (-np.inf, 0.0, 0.0),
            "softmax over": -1,
        }
    )


class TwoTables(torch.nn.Module):
    """Of words, and of places."""

    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(11, D), torch.nn.Embedding(13, D)

    def forward(self, ids):
        return self.words(ids) + self.places(torch.arange(ids.shape[1])[None])


@pytest.mark.parametrize("table", ["words", "places"])
def test_rows_of_another_table(table):
    """In a plain port with names of its own."""
    theirs = excite(TwoTables(), seed=0)
    weights = {name[0]: {"rows": each.weight.detach().numpy()} for name, each in theirs.named_children()}

    def call(weights, ids):
        words = jaxformer.tap("w", weights["p" if table == "words" else "w"]["rows"][ids])
        places = jaxformer.tap("p", weights["p"]["rows"][np.arange(ids.shape[1])[None]])
        return words + places

    ids = np.arange(B * T, dtype=np.int32).reshape(B, T) % 11
    report = compare(theirs, weights, (ids,), call_jax=call, call_torch=lambda model, ids: model(ids.long()), checks=CHECKS)
    causes = [module.cause for module in report.modules]
    wanted = ["torch looks up its own table; jax looks up the table of p (residual 0e+00)"] if table == "words" else []
    assert [cause for cause in causes if cause] == wanted, str(report)


@pytest.mark.parametrize("alone", ["q", "k", "v", "kv"])
def test_one_array_for_all_rows(alone):
    """As learned queries are, or one memory."""
    arrays = {name: noise(1 if name in alone else B, T, D, seed=i).astype(np.float64) for i, name in enumerate("qkv")}
    theirs, ours = (attended(*arrays.values(), scale) for scale in ("head width", "none"))
    assert theirs.shape == (B, T, D)
    assert cause(ours, theirs, **arrays).startswith("torch scales by 1/sqrt(head width); jax does not scale (residual ")


def test_as_many_factors_as_numbers_fit_whatever_there_is():
    """Three heads of one number each, joined by a square on one side."""
    heads = {name: noise(3, 1, seed=seed).astype(np.float64) for seed, name in enumerate("abc")}
    joined = heads["b"] + heads["c"] / 2
    assert "adds" not in cause(joined + heads["a"] ** 2, joined, **heads)
    assert "adds" not in cause(np.array(1.5), np.array(1.4), a=np.array(2.0))


def test_a_term_of_a_sum_for_all_rows():
    x, places = noise(B, T, D, seed=1).astype(np.float64), noise(1, T, D, seed=2).astype(np.float64)
    assert cause(x + 2 * places, x + places, x=x, places=places).startswith(
        "torch takes places as it is; jax multiplies it by 2 (residual "
    )
    assert cause(3 * x, x, x=x, places=places).startswith("torch takes x as it is; jax multiplies it by 3 (residual ")


def test_ids_that_are_shifted():
    ids = np.arange(B * T).reshape(B, T)
    assert cause(ids - 2, ids) == "jax looks up ids 2 lower than torch's: an offset of 2 is missing"
    assert cause(ids * 2, ids) == ""


@pytest.mark.parametrize(
    ("kind", "said"), [(float, "torch a; jax b"), (int, "as if torch a; jax b: other changes may give these integers too")]
)
def test_what_gives_the_same_integers_is_no_fact(kind, said, monkeypatch):
    monkeypatch.setattr("jaxformer.parity.diagnose.search.Search.diagnosis", lambda _: sentence("torch a; jax b"))
    array = np.arange(4, dtype=kind)
    assert str(explainers.explain_replay(Difference(array, array + 1, replays=lambda: iter([SimpleNamespace()])))) == said


@pytest.mark.parametrize(
    ("rows", "found", "said"),
    [
        (2, "torch a; jax b", "torch a; jax b"),
        (2, "", "jax has torch's entries along axis 0, the other way round"),
        (3, "torch a; jax b", "jax has torch's entries along axis 0, from the last to the first"),
    ],
)
def test_two_rows_of_a_batch_exchanged_are_a_symptom(rows, found, said, monkeypatch):
    monkeypatch.setattr(
        "jaxformer.parity.diagnose.search.Search.diagnosis", lambda _: sentence(found) if found else Diagnosis()
    )
    array = noise(rows, T, D).astype(np.float64)
    code = SimpleNamespace(begins=False)
    assert str(explain(Difference(array[::-1], array, replays=lambda: iter([code])))) == said


ROUNDED = {
    "each entry": (lambda x: x.astype(jnp.bfloat16).astype(x.dtype), True),
    "one position": (lambda x: np.where(np.arange(T)[:, None] == 2, x + 2**-9 * noise(*x.shape, seed=9), x), False),
    "noise": (lambda x: x + 2**-9 * noise(*x.shape, seed=9), False),
}


@pytest.mark.parametrize("how", ROUNDED)
def test_rounding_is_in_each_entry_as_large_as_the_entry_has_it(how):
    change, hint = ROUNDED[how]
    array = noise(B, T, D)
    assert appearance(change(array), array).endswith("the size of bfloat16's rounding") == hint


def spoiled(value):
    array = noise(B, T, D).astype(np.float64)
    array[1, 2] = value
    return array


ADVERSARIAL = {
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


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_no_array_breaks_an_explanation(kind, monkeypatch):
    monkeypatch.setattr(choices, "FAR", 1)  # few combinations call every formula
    others = {"beside": {"table": noise(7, D), "weight": noise(D, D), "bias": noise(D)}}
    own = {"gain": np.ones(D), "bias": np.zeros(D), "weight": noise(D, D)}
    for ours, theirs in (
        (ADVERSARIAL["plain"], ADVERSARIAL[kind]),
        (ADVERSARIAL[kind], ADVERSARIAL["plain"]),
        (ADVERSARIAL[kind], ADVERSARIAL[kind]),
    ):
        masks = np.ones((B, 1, 1, T), bool), np.ones((2, 2), bool)
        before = {"input": ADVERSARIAL[kind], "input 1": ADVERSARIAL["plain"], "input 2": theirs}
        ids = {"ids": np.arange(B * T).reshape(B, T)}
        evidence = Evidence(before, ids, masks, own, others, scores=[theirs], later={"later": ours})
        for what in ("value", "scores", "weights", "gradient"):
            assert isinstance(explain(Difference(ours, theirs, what, evidence, forced=True)), Diagnosis)


@pytest.mark.parametrize(("shape", "hint"), [((4, D), True), ((4, T, D), False)])
def test_a_table_alone_has_a_padding_index(shape, hint):
    """A row of a batch that gets no gradient may be all padding."""
    ours = noise(*shape)
    theirs = np.concatenate([ours[:1], np.zeros_like(ours[:1]), ours[2:]])
    said = str(explain(Difference(ours, theirs, "gradient")))
    assert said.startswith("torch's gradient is 0 in row 1 of 4, where jax's is not")
    assert said.endswith("as torch's padding_idx has it") == hint


def test_a_table_of_two_uses_has_a_padding_index():
    ours = noise(4, D)
    theirs = ours + np.eye(4)[:, 2:3] * noise(D, seed=1)
    said = "jax's gradient differs in row 2 of 4 alone: torch's padding_idx gives that row none from the lookup of a tied table"
    assert str(explain(Difference(ours, theirs, "gradient", padded=True))) == said
    assert not explain(Difference(ours, theirs, "gradient"))
    theirs[1] *= 1.1
    assert not explain(Difference(ours, theirs, "gradient", padded=True))


@pytest.mark.parametrize("kind", ["gradient", "gradients"])
def test_a_factor_of_one_entry_is_no_cause(kind):
    torch_gradient = np.array([0.3, -0.7])
    assert "by 2.5" in str(explain(Difference(2.5 * torch_gradient, torch_gradient, kind)))
    assert not explain(Difference(2.5 * torch_gradient[:1], torch_gradient[:1], kind))


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


def fails(error):
    def explanation(*_, **__):
        raise error("in the middle of it")

    return explanation


def report_of_shifts():
    theirs, ours = excite(TorchShift(), seed=1), Shift()
    ours.inner.kernel[...], ours.inner.bias[...] = (p.detach().numpy().T for p in theirs.parameters())
    with jax.numpy_rank_promotion("allow"):
        return compare(theirs, ours, (noise(B, T, D),), checks=("weights", "forward", "local"), tier="A")


@pytest.mark.parametrize("error", [ParityError, np.linalg.LinAlgError, MemoryError])
@pytest.mark.parametrize("what", ["all explainers", "the evidence"])
def test_a_search_that_fails_ends_no_comparison(what, error, monkeypatch):
    if what == "the evidence":
        monkeypatch.setattr(explainers, "difference_of", fails(error))
    else:
        monkeypatch.setattr(explainers, "EXPLAINERS", [each._replace(explain=fails(error)) for each in EXPLAINERS])
    with pytest.warns(RuntimeWarning, match="the search for .* failed"):
        report = report_of_shifts()
    assert report.verdict.startswith("DIFFERENT: the model: output: relL2"), str(report)


def test_the_first_explainer_that_finds_a_cause_is_heard(monkeypatch):
    broken, silent, *found = (
        EXPLAINERS[0]._replace(explain=each) for each in (fails(ValueError), lambda _: None, *map(says, "ab"))
    )
    monkeypatch.setattr(explainers, "EXPLAINERS", [broken, silent, *found])
    with pytest.warns(RuntimeWarning, match="the search for .* failed: ValueError"):
        assert cause(noise(B, D), noise(B, D, seed=1)) == "a"


def says(what):
    return lambda _: sentence(what)


def test_a_bug_of_an_explanation_is_warned_of_and_ends_no_comparison():
    with pytest.warns(RuntimeWarning, match=r"the search for stars failed: AttributeError: .*no_such_function"):
        assert attempt("stars", lambda: np.no_such_function(), session=(session := Session())) is None
    assert session.refused == {"stars": 1}
