"""A port is compared module by module: the diverging one is named, with the cause, and nothing else is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

import torch_ref.models
from jaxformer.convert.families.gpt2 import GPT2
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.errors import JaxformerError
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.io import on_disk
from jaxformer.models import abstract, build
from jaxformer.nn import attention, blocks, embeddings, feedforward, norms
from jaxformer.parity.attribute import values_and_gradients
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.report.report import Report
from jaxformer.pytree import map_named
from parity_tests.support.helpers import V, gpt_config, seq2seq_config, usually

GPT_CONFIG = gpt_config(n_layers=2, layers="rolled")
SEQ2SEQ_CONFIG = seq2seq_config(n_layers=1, norm_position="post", positions="sinusoid", embedding_scale=True)
FORWARD = ("weights", "forward", "local")


@pytest.fixture(scope="module")
def sides():
    """Excited twins and adversarial inputs of both kinds."""
    found = {}
    for name, config in (("gpt", GPT_CONFIG), ("encoder-decoder", SEQ2SEQ_CONFIG)):
        model = excite(abstract(config), seed=1)
        twin = load_torch(torch_ref.models.build(config), model).eval()
        found[name] = twin, model, adversarial_inputs(config, 5, config.context, seed=2)
    return found


def report_of(
    sides: Any, name: str = "gpt", model: Any = None, checks: tuple[str, ...] = FORWARD, tier: Any = "A", **options: Any
) -> Report:
    twin, own, inputs = sides[name]
    calls = {"call_torch": call_torch, "call_jax": call_jax}
    return compare(twin, model or own, inputs, rules=TWIN, checks=checks, tier=tier, **calls, **options)


@pytest.mark.parametrize("name", usually(["gpt", "encoder-decoder"], "gpt"))
def test_twins_are_equal_module_by_module(sides, name):
    report = report_of(sides, name, checks=CHECK_NAMES, tier="C")
    assert report.status == "equal", str(report)
    assert report.exit_code == 0
    assert report.diverging == []
    assert {stage.name: stage.status for stage in report.stages} == dict.fromkeys(
        (*CHECK_NAMES, "float32", "bfloat16"), "equal"
    )
    assert any(name.endswith("key.bias") for name in report.not_covered)
    paths = {module.jax for module in report.modules}
    assert "" in paths
    layers = [path for path in paths if path.endswith("blocks.1.attention.query")]
    assert layers == [{"gpt": "stack", "encoder-decoder": "decoder"}[name] + ".blocks.1.attention.query"]
    assert Report.from_json(report.to_json()) == report


@pytest.mark.slow
def test_arrays_that_wait_on_disk_give_the_same_report(sides, monkeypatch):
    """As those of a large model do. The control: what is read back is another array."""
    monkeypatch.setattr(on_disk, "LARGE", 0)
    checks = ("weights", "forward", "local", "gradients")
    assert report_of(sides, checks=checks).status == "equal"
    read = on_disk.Place.read
    monkeypatch.setattr(on_disk.Place, "read", lambda place, file: read(place, file) * 1.001)
    assert report_of(sides, checks=checks).status == "different"


def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        if isinstance(owner, dict):
            monkeypatch.setitem(owner, name, make(owner[name]))
        else:
            monkeypatch.setattr(owner, name, make(vars(owner)[name]))

    return patch


BLOCKS = ("stack.blocks.0", "stack.blocks.1")
PLANTED = {
    "gelu by tanh": (
        patched(feedforward.ACTIVATIONS, "gelu", lambda f: lambda x: jax.nn.gelu(x, approximate=True)),
        [f"{block}.feed_forward" for block in BLOCKS],
        "torch activation gelu; jax activation gelu by tanh",
    ),
    "scores of another scale": (
        patched(attention, "attention_weights", lambda f: lambda q, *rest, **how: f(q / q.shape[2] ** 0.5, *rest, **how)),
        [f"{block}.attention" for block in BLOCKS],
        "torch scales by 1/sqrt(head width); jax scales by 1/sqrt(d_model)",
    ),
    "heads split alone the other way": (
        patched(attention, "split_heads", lambda f: lambda x, n: x.reshape(*x.shape[:-1], -1, n).swapaxes(-1, -2)),
        [f"{block}.attention" for block in BLOCKS],
        "torch splits as (heads, width); jax splits as (width, heads), and merges (heads, width)",
    ),
    "no mask": (
        patched(attention, "attention_weights", lambda f: lambda q, k, *rest, **how: f(q, k)),
        [f"{block}.attention" for block in BLOCKS],
        "torch applies the mask as given and a causal one; jax applies no mask",
    ),
    "half of what a sub-layer adds": (
        patched(
            blocks.Block,
            "_after",
            lambda f: lambda self, norm, output_norm, x, y, key: f(self, norm, output_norm, x, y / 2, key),
        ),
        list(BLOCKS),
        "jax adds 0.5 times",
    ),
    "epsilon": (
        patched(norms.FUNCTIONS, "layer", lambda f: lambda x, epsilon: f(x, epsilon / 10)),
        [f"{block}.{norm}" for block in BLOCKS for norm in ("attention_norm", "feed_forward_norm")] + ["norm"],
        "torch epsilon 1e-05; jax epsilon 1e-06",
    ),
    "positions one later": (
        patched(
            embeddings.InputEmbedding,
            "__call__",
            lambda f: (
                lambda self, ids, positions, **rest: f(self, ids, jnp.minimum(positions + 1, self.rows - 1)[:, :], **rest)
            ),
        ),
        ["embed"],
        "jax looks up ids 1 higher than torch's, 10 at most: an offset of 1 is too many",
    ),
}


@pytest.mark.parametrize("bug", usually(PLANTED, "epsilon", "no mask", "heads split alone the other way"))
def test_the_diverging_module_and_the_cause(sides, monkeypatch, bug):
    plant, diverging, cause = PLANTED[bug]
    plant(monkeypatch)
    report = report_of(sides)
    assert report.exit_code == 1
    assert [module.jax for module in report.diverging] == diverging
    causes = [module.cause for module in report.diverging]
    assert all(cause in found if cause else not found for found in causes), causes
    assert report.verdict.startswith(f"DIFFERENT: {diverging[0]}")
    assert sum(module.propagated.relative > report.tolerance for module in report.modules) > len(diverging)


@pytest.mark.slow
def test_a_bug_in_one_head_shows_in_that_head(sides, monkeypatch):
    def third_head(f):
        return lambda q, *rest, **how: f(q.at[:, :, 2].multiply(1.5), *rest, **how)

    patched(attention, "attention_weights", third_head)(monkeypatch)
    heads = {module.jax: module.heads for module in report_of(sides, search_seconds=0).diverging}
    assert list(heads) == [f"{block}.attention" for block in BLOCKS]
    for found in heads.values():
        assert [error > 1e-13 for error in found] == [False, False, True, False]


def test_two_bugs_name_two_modules_and_nothing_else(sides, monkeypatch):
    change = {"stack.blocks.feed_forward_norm.bias": 0, "stack.blocks.attention.out.bias": 1}

    def call(model, *inputs):
        """Reads one bias of each of two layers as zero."""
        broken = map_named(lambda name, leaf: leaf.at[change[name]].set(0) if name in change else leaf, model)
        return call_jax(broken, *inputs)

    twin, model, inputs = sides["gpt"]
    report = compare(twin, model, inputs, rules=TWIN, call_torch=call_torch, call_jax=call, checks=FORWARD, tier="A")
    assert [module.jax for module in report.diverging] == ["stack.blocks.0.feed_forward_norm", "stack.blocks.1.attention.out"]
    assert [module.cause.split(" (")[0] for module in report.diverging] == [
        "torch adds the bias; jax does not add the bias"
    ] * 2


@pytest.mark.slow
def test_a_bug_of_the_backward_pass_alone(sides, monkeypatch):
    plant = patched(feedforward.ACTIVATIONS, "gelu", lambda f: lambda x: f(x) + jax.lax.stop_gradient(x / 2) - x / 2)
    plant(monkeypatch)
    report = report_of(sides, checks=CHECK_NAMES)
    assert [stage.name for stage in report.stages if stage.status == "different"] == ["gradients", "activation gradients"]
    assert [module.jax for module in report.diverging] == [f"{block}.feed_forward" for block in BLOCKS]
    assert all(module.what.startswith("gradient") and module.local.relative <= report.tolerance for module in report.diverging)


def test_other_weights_are_reported_and_the_rest_is_judged_on_torchs(sides):
    other = map_named(lambda name, leaf: leaf * 2 if name == "embed.token.table" else leaf, sides["gpt"][1])
    report = report_of(sides, model=other)
    assert [stage.status for stage in report.stages] == ["different", "equal", "equal"]
    assert "1 of 37 tensors differ, first embed.token.weight" in report.stages[0].says


@pytest.mark.slow
def test_a_tensor_on_one_side_only(sides):
    model = build(gpt_config(n_layers=2, head_bias=True), rngs=jax.random.key(0))
    report = report_of(sides, model=model)
    assert report.exit_code == 1
    assert "; jax has head.bias, torch has not: it is 0, so it changes nothing" in report.stages[0].says


def test_a_model_that_fails_inside(sides):
    def call(model, *inputs):
        raise RuntimeError("no such kernel\nand more")

    twin, model, inputs = sides["gpt"]
    report = compare(twin, model, inputs, rules=TWIN, call_torch=call_torch, call_jax=call, checks=FORWARD, tier="A")
    assert report.exit_code == 2
    assert report.verdict.startswith("COULD NOT COMPARE: forward: jax in float64: RuntimeError: no such kernel (at ")


@pytest.mark.slow
def test_a_bug_and_then_a_failure_is_not_compared(sides, monkeypatch):
    plant, diverging, _ = PLANTED["gelu by tanh"]
    plant(monkeypatch)
    monkeypatch.setattr(
        values_and_gradients, "wrong_gradients", lambda *given: (_ for _ in ()).throw(RuntimeError("no gradient"))
    )
    report = report_of(sides, checks=CHECK_NAMES)
    assert [module.jax for module in report.diverging] == diverging
    assert report.exit_code == 2
    assert report.verdict.startswith("COULD NOT COMPARE: gradients: RuntimeError: no gradient (at parity_tests/")


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ((), "checks is empty; give a tuple of some of weights, forward, local, gradients, activation gradients, sensitivity"),
        (("foward",), "checks = 'foward' is not known; did you mean 'forward'?"),
    ],
)
def test_checks_that_are_none(sides, checks, said):
    with pytest.raises(JaxformerError) as refused:
        report_of(sides, checks=checks)
    assert str(refused.value) == said


class Net(nnx.Module):
    """A user's own: a list of layers of flax's, and a function between them."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 6, rngs=rngs)])
        self.norm = nnx.LayerNorm(6, epsilon=1e-6, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.layers[1](jnp.tanh(self.layers[0](x))))


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)])
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(self.layers[1](torch.tanh(self.layers[0](x))))


def test_a_model_of_flax_own_modules():
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        report = compare(TorchNet(), Net(nnx.Rngs(0)), (x,), rules=TWIN, checks=FORWARD)
    assert report.stages[0].status == "different", str(report)  # nothing was copied
    assert report.verdict.startswith("DIFFERENT: weights: 4 of 6 tensors differ, first layers.0.bias (relL2 ")
    assert "; beside that, with torch's weights, norm: torch epsilon 1e-05; jax epsilon 1e-06 (residual " in report.verdict
    assert len(report.diverging) == 1
    assert {module.jax for module in report.modules} == {"(call)", "", "layers.0", "layers.1", "norm"}


@pytest.fixture(scope="module")
def gpt2():
    """transformers' GPT-2 and ours with the same excited weights."""
    sizes = {"n_positions": 11, "n_embd": 24, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 1}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, **sizes)).eval()
    config = gpt_config(n_layers=2, d_ff=96, projections="fused", activation="gelu_tanh", tied=True, layers="rolled")
    ours = excite(abstract(config), seed=1)
    weights = {name: torch.from_numpy(array) for name, array in to_torch(ours, GPT2).items()}
    assert theirs.load_state_dict(weights, strict=False).unexpected_keys == []
    return theirs, config, ours


def compare_gpt2(theirs, ours, checks):
    ids, _ = probe(V, 5, 11, seed=3)
    return compare(theirs, ours, (ids,), rules=GPT2, call_torch=lambda model, ids: model(ids.long()).logits, checks=checks)


@pytest.mark.slow
def test_gpt2_is_transformers_gpt2(gpt2):
    theirs, _, ours = gpt2
    report = compare_gpt2(theirs, ours, CHECK_NAMES)
    assert report.status == "equal", str(report)
    assert len(report.modules) == 24
    assert ("head", "lm_head") in {(module.jax, module.torch) for module in report.modules}


@pytest.mark.slow
def test_two_wrong_settings_of_gpt2_are_named(gpt2):
    from dataclasses import replace

    theirs, config, _ = gpt2
    wrong = excite(abstract(replace(config, activation="gelu", norm_epsilon=1e-6)), seed=1)
    report = compare_gpt2(theirs, wrong, FORWARD)
    assert {module.cause.split(" (")[0] for module in report.diverging} == {
        "torch epsilon 1e-05; jax epsilon 1e-06",
        "torch activation gelu by tanh; jax activation gelu",
    }
    assert len(report.diverging) == 7
