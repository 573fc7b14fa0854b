"""A JAX model as the reference: Linen beside NNX, a model before and after a change, and one recorded for elsewhere."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import jsonschema
import numpy as np
import pytest
from flax import linen, nnx

import jaxformer as jf
from jaxformer.errors import InputError
from jaxformer.parity.report.schema import schema
from parity_tests.support.helpers import usually
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("untyped")

WIDTH, VOCAB = 8, 11
QUICK = {"checks": ("weights", "forward", "local"), "tier": "A"}


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x, mask):
        h = linen.LayerNorm(epsilon=1e-6, name="before")(x)
        x = x + linen.MultiHeadDotProductAttention(2, name="attention")(h, h, mask=mask)
        h = linen.LayerNorm(epsilon=1e-6, name="between")(x)
        return x + linen.Dense(WIDTH, name="down")(linen.gelu(linen.Dense(3 * WIDTH, name="up")(h)))


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, ids):
        x = linen.Embed(VOCAB, WIDTH, name="embed")(ids) * np.sqrt(WIDTH)
        x = LinenBlock(name="block")(x, linen.make_causal_mask(ids))
        return linen.Dense(VOCAB, name="head")(x)


class NNXBlock(nnx.Module):
    def __init__(self, bug, rngs):
        self.bug = bug
        self.before = nnx.LayerNorm(WIDTH, epsilon=1e-5 if bug == "epsilon" else 1e-6, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.between = nnx.LayerNorm(WIDTH, epsilon=1e-6, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs), nnx.Linear(3 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.before(x), mask=None if self.bug == "mask" else mask)
        h = self.down(nnx.gelu(self.up(self.between(x)), approximate=self.bug != "gelu"))
        return h if self.bug == "residual" else x + h


class NNXModel(nnx.Module):
    def __init__(self, bug=""):
        rngs = nnx.Rngs(0)
        self.embed, self.block = nnx.Embed(VOCAB, WIDTH, rngs=rngs), NNXBlock(bug, rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)
        self.factor = 1.0 if bug == "scale" else np.sqrt(WIDTH)

    def __call__(self, ids):
        return self.head(self.block(self.embed(ids) * self.factor, nnx.make_causal_mask(ids)))


IDS = jf.probe(vocab=VOCAB, length=6)[0]
LINEN = LinenModel()


@pytest.fixture(scope="module")
def variables():
    return jf.excite(LINEN.init(jax.random.key(0), IDS), seed=1)


def apply(variables, ids):
    return LINEN.apply(variables, ids)


def in_nnx(variables, bug=""):
    model = NNXModel(bug)

    def fill(module, arrays):
        for name, value in arrays.items():
            held = getattr(module, name)
            fill(held, value) if isinstance(value, dict) else held.__setitem__(..., value)

    fill(model, variables["params"])
    return model


def test_linen_and_nnx_are_equal_with_gradients_and_in_float32(variables):
    report = jf.compare(variables, in_nnx(variables), (IDS,), call_torch=apply)
    assert report.exit_code == 0, report
    assert {"gradients", "activation gradients", "float32"} <= {stage.name for stage in report.stages}
    assert [module.torch for module in report.modules if module.torch.startswith("block.attention.")] == [
        f"block.attention.{name}" for name in ("query", "key", "value", "out")
    ]


BUGS = {
    "epsilon": ("block.before", "the reference epsilon 1e-06; the port epsilon 1e-05"),
    "residual": ("block", r"the reference adds input \+ attention; the port adds nothing of that"),
    "scale": ("the model", r"the reference multiplies embed by 2\.82842\d* = sqrt\(8\); the port does not"),
    "gelu": ("block", "the reference activation gelu by tanh; the port activation gelu"),
    "mask": ("block.attention", "input of block.attention.out"),
}


@pytest.mark.parametrize("bug", usually(BUGS, "scale", "mask"))
def test_a_bug_is_placed_and_the_sides_have_names_of_their_own(bug, variables):
    report = jf.compare(variables, in_nnx(variables, bug), (IDS,), call_torch=apply, **QUICK)
    place, says = BUGS[bug]
    assert re.match(f"DIFFERENT: {place}: {says}", report.verdict)
    assert report.exit_code == 1
    assert re.fullmatch(r".*test_two_jax.py:\d+", report.diverging[0].source)
    for text in (str(report), report.to_markdown().partition("## Environment")[0], report.verdict):
        assert not re.search(r"\btorch\b(?! *=)", text), text
    assert "| jax | " in report.to_markdown()
    jsonschema.validate(json.loads(report.to_json()), schema())
    page = report.to_html()
    assert "the reference" in page.lower()
    assert "given torch" not in page.lower()


@pytest.mark.slow
def test_layers_of_a_stack_are_found_one_by_one():
    config = tiny_config(n_layers=3)
    before = jf.excite(jf.abstract(config), seed=0)
    after = jax.tree.unflatten(jax.tree.structure(jf.abstract(replace(config, activation="relu"))), jax.tree.leaves(before))
    ids, _ = jf.probe(vocab=config.vocab_size, length=5)
    assert jf.compare(before, before, (ids,), **QUICK).exit_code == 0
    report = jf.compare(before, after, (ids,), **QUICK)
    assert [module.torch for module in report.diverging] == [f"stack.blocks.{i}.feed_forward" for i in range(3)]


@pytest.mark.slow
def test_a_recorded_jax_model_is_checked_elsewhere(variables, tmp_path):
    jf.dump(variables, (IDS,), tmp_path / "linen", call_torch=apply)
    assert jf.check(tmp_path / "linen", in_nnx(variables), **QUICK).exit_code == 0
    report = jf.check(tmp_path / "linen", in_nnx(variables, "epsilon"), **QUICK)
    assert "the reference epsilon 1e-06" in report.verdict


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tier": "C"}, "tier C judges bfloat16 by the rounding error of torch"),
        ({"mode": "train"}, "mode is compared with torch alone"),
        ({"generate": (print, print)}, "generate is compared with torch alone"),
    ],
)
def test_what_only_torch_can_do_is_refused(options, says, variables):
    with pytest.raises(InputError, match=says):
        jf.compare(variables, variables, (IDS,), call_torch=apply, call_jax=apply, **options)


def test_a_tree_of_parameters_needs_its_call(variables):
    with pytest.raises(InputError, match=r"the JAX model is a tree of parameters; give call_torch"):
        jf.compare(variables, variables, (IDS,), call_jax=apply)


def test_a_reference_that_fails_is_told_in_one_line(variables):
    report = jf.compare(
        variables, in_nnx(variables), (IDS,), call_torch=lambda variables, ids: apply(variables, ids)[:, :, 99:, 0]
    )
    assert report.exit_code == 2
    assert report.verdict.startswith("COULD NOT COMPARE: ")
    assert "the reference, in float32" in report.verdict


@pytest.mark.parametrize("keep", ["tensors", "statistics"])
def test_names_of_no_module_are_a_report_as_with_torch(keep):
    model = jf.excite(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), seed=0)
    holder = nnx.Sequential(model, nnx.Linear(4, 2, rngs=nnx.Rngs(1)))
    report = jf.compare(holder, holder, (np.ones((2, 3), np.float32),), names="nowhere.*", keep=keep)
    assert report.exit_code == 2
    assert "names = 'nowhere.*' with every = 1 select none of 2 modules; the nearest are " in report.verdict


def test_complex_numbers_have_no_gradients():
    held, x = {"w": np.eye(3, dtype=np.float32)}, np.arange(6, dtype=np.float32).reshape(2, 3)
    both = {"call_torch": lambda p, x: jax.numpy.fft.fft(x @ p["w"]), "call_jax": lambda p, x: jax.numpy.fft.fft(x @ p["w"])}
    assert "the output of call_torch is complex, and gradients" in jf.compare(held, held, (x,), **both).verdict
    assert jf.compare(held, held, (x,), **both, checks=QUICK["checks"]).exit_code == 0
    with pytest.raises(InputError, match="input 0 is an ndarray of complex64 with shape"):
        jf.compare(held, held, (x.astype(np.complex64),), **both)


@pytest.mark.slow
def test_whole_numbers_have_no_gradients(variables):
    def likeliest(variables, ids):
        return apply(variables, ids).argmax(-1)

    both = {"call_torch": likeliest, "call_jax": likeliest}
    report = jf.compare(variables, variables, (IDS,), **both)
    assert "no gradient comes from what call_torch gives: it holds no floats" in report.verdict
    assert jf.compare(variables, variables, (IDS,), **both, **QUICK).exit_code == 0


@pytest.mark.slow
def test_other_weights_of_the_same_names_are_told_apart_from_code(variables):
    other = in_nnx(jf.excite(variables, seed=2))
    report = jf.compare(variables, other, (IDS,), call_torch=apply, **QUICK)
    assert re.match("DIFFERENT: weights: 19 of 19 tensors differ, first .*; the reference's are used below", report.verdict)
    wrong = in_nnx(jf.excite(variables, seed=2), "epsilon")
    assert [module.jax for module in jf.compare(variables, wrong, (IDS,), call_torch=apply, **QUICK).diverging] == [
        "block.before"
    ]
    renamed = {"w": other.embed.embedding[...], "v": other.head.kernel[...]}
    report = jf.compare(variables, renamed, (IDS,), call_torch=apply, call_jax=lambda held, ids: held["w"][ids] @ held["v"])
    assert re.search(r"weights: 2 tensors of the port with values that the other side has not", report.verdict)


@pytest.mark.slow
def test_a_reference_that_is_not_steady_is_told(variables):
    rng = np.random.default_rng(0)
    noisy = {"call_torch": lambda variables, ids: apply(variables, ids) + rng.standard_normal(), "call_jax": apply}
    report = jf.compare(variables, variables, (IDS,), **noisy)
    assert report.exit_code == 2
    assert "the reference gives another output each time" in report.verdict


@pytest.mark.slow
def test_rows_that_no_id_reads_are_not_covered(variables):
    report = jf.compare(variables, variables, (np.array([[1, 2, 3]]),), call_torch=apply, call_jax=apply)
    assert report.exit_code == 0
    assert "embed.embedding: rows 0, 4-10 of 11" in report.not_covered


@pytest.mark.slow
def test_an_output_that_the_port_has_not_is_left_out(variables):
    both = {"call_torch": lambda v, ids: {"logits": apply(v, ids), "twice": 2 * apply(v, ids)}}
    report = jf.compare(variables, variables, (IDS,), **both, call_jax=lambda v, ids: {"logits": apply(v, ids)}, **QUICK)
    assert report.exit_code == 0
    assert any("output twice" in left for left in report.not_covered)


def test_what_an_error_says_keeps_its_words(variables):
    def old(variables, ids):
        raise ValueError("this jax is too old")

    report = jf.compare(variables, variables, (IDS,), call_torch=apply, call_jax=old, **QUICK)
    assert "the port in float64: ValueError: this jax is too old" in report.verdict


def test_a_linen_module_is_named_by_its_own_code(variables):
    """Not by the line that calls it."""
    report = jf.compare(in_nnx(variables), variables, (IDS,), call_jax=apply, **QUICK)
    lines = Path(__file__).read_text("utf-8").splitlines()
    (source,) = (module.source for module in report.modules if module.jax == "block")
    assert lines[int(source.rpartition(":")[2]) - 1 :][:2] == ["    @linen.compact", "    def __call__(self, x, mask):"]
