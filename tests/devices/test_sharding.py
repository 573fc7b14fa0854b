"""Runs on a mesh of eight simulated devices, and what is refused without any."""

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import optax
import pytest

import jaxformer
from jaxformer.cli.main import dispatch
from jaxformer.config.mesh import MeshConfig, check_batch, check_model
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.config.presets import PRESETS
from jaxformer.errors import ConfigError
from jaxformer.evaluation.sharded.causes import STALE, explain, other_order
from jaxformer.evaluation.sharded.compare import Case, different_alone, worst
from jaxformer.evaluation.sharded.predict import flops_of
from jaxformer.evaluation.sharded.recorded_step import Recorded, decided_by_rounding, traces, untraced, wide_state
from jaxformer.models import abstract
from jaxformer.parallel.placement import AXES_OF, letters_of, spec_of
from jaxformer.pytree import named_leaves
from tests.eight_devices import TOYS, TRIED
from tests.tiny import tiny_config


def seen(part: str) -> dict:
    """What eight_devices.py saw."""
    root = os.path.dirname(os.path.dirname(jaxformer.__file__))
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.eight_devices", part]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Involuntary full rematerialization" not in done.stderr  # by XLA, which says so where it copies all to every device
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def eight() -> dict:
    return seen("first")


@pytest.fixture(scope="module")
def more() -> dict:
    """In a process of its own, and as long again."""
    return seen("more")


def test_training_on_a_mesh_is_training_on_one_device(eight):
    loss, model = eight["training"]["product"]
    assert loss <= 1e-12
    assert model <= 1e-11
    assert eight["training"]["largest"] == 0.5


@pytest.mark.slow
def test_an_encoder_decoder_step_is_equal_in_every_activation_gradient_and_update(more):
    for name in ("pairs", "experts", "latents"):
        assert more[name].endswith("EQUAL: activations, loss, gradients, updates (tier A)"), more[name]


@pytest.mark.slow
def test_a_step_of_the_users_own(more):
    right, wrong, forgets, bound, stale, lacks, *refused = more["own steps"]
    assert right == "EQUAL: loss, updates (tier A)", right
    assert wrong.startswith("DIFFERENT: updates: first model.embed"), wrong
    assert wrong.endswith(
        "; on one device it differs too: no axis is at fault, but the step itself, as in how it accumulates parts of a batch"
    )
    assert forgets.startswith("DIFFERENT: updates: first model.embed"), forgets
    assert bound.endswith(
        "; no other mesh could be tried, nor one device: make the step's shard_map inside of it, to be told which axis"
    )
    assert stale.endswith("axis data: copies differ: a device has an older or another value"), stale
    assert lacks.endswith("count: the mesh does not give it"), lacks
    wanted = "give step(state, batch, key) -> (TrainState, mean loss), the loss as a jax array"
    assert refused == [
        f"InputError: step gives (NoneType, ArrayImpl); {wanted}",
        f"InputError: step gives (TrainState, ArrayImpl, int); {wanted}",
        f"InputError: step gives a TrainState; {wanted}",
        f"InputError: step gives (TrainState, dict); {wanted}",
        "InputError: step gives step as an ndarray; give a jax array, as the mesh holds it",
        "InputError: loss gives a float; give loss(model, batch, key) -> (sum, count), two numbers",
    ]


NOT_FINITE = "the loss is not finite on one device: NaN, infinite, or divided by a count of 0; give another loss or batch"
NO_TRACE = "almost nothing of the gradients reaches the state on one device, so a wrong one would not be seen; give"
EQUAL = "EQUAL: loss, gradients, updates (tier A)"
SAID = {
    "a warm-up": "EQUAL: loss, updates (tier A)",
    "a warm-up, and twice the gradient": "DIFFERENT: updates: first model.up.kernel: max/rms ",
    "a rate of 0": "COULD NOT COMPARE: updates: the step on one device changes no weight and no moment; give an optimizer",
    "decay alone": f"COULD NOT COMPARE: updates: {NO_TRACE}",
    "a rate of almost 0": f"COULD NOT COMPARE: updates: {NO_TRACE}",
    "signs": EQUAL,
    "NaN": f"COULD NOT COMPARE: loss: {NOT_FINITE}",
    "a count of 0": f"COULD NOT COMPARE: loss: {NOT_FINITE}",
    "MultiSteps": EQUAL,
    "moments of other axes": EQUAL,
    "another name": "ConfigError: no rule says how model.fc.kernel is cut; add the end of its name",
    "another name and its rule": EQUAL,
    "a rule of another letter": "ConfigError: rules: 'fc.kernel' has 'D tensor'; give the letters of its axes, of V NH KH",
    "half": "InputError: loss computes in bfloat16 or float16, whose rounding differs from mesh to mesh; give it in",
    "noise": "InputError: the optimizer's 0.rng_key is a random key, whose draws hide a difference; compare without it",
    "no optimizer": "InputError: optimizer = 'adam' is a str; give one of optax's",
    "no model": "InputError: model is a NoneType, which holds no arrays; give a model, or its configuration",
    "a name": "InputError: model is a str; give a model whose leaves are arrays, or its configuration",
    "a key": "InputError: model.key is of type uint32, and no gradient trains it; give a model of floats alone",
    "no batch": "InputError: a dict has no batch of its own; give batch",
    "lists": "InputError: batch.0.0 is an int; give arrays of numbers, whose first axis is that of rows",
    "strings": "InputError: the batch is an array of <U1 with 1 axes; give arrays of numbers",
    "no key": "InputError: key = 3 is an int; give jax.random.key(0)",
    "no gradient": "COULD NOT COMPARE: gradients: all of them are 0 on one device; give a loss that depends on the parameters",
}


@pytest.mark.parametrize("name", TOYS)
def test_what_is_said_of_a_step(eight, name):
    assert eight["toys"][name].startswith(SAID[name])


def test_the_worst_update_is_the_one_that_is_printed():
    theirs = {"model.a": np.ones(2), "model.b": np.ones(2)}
    assert worst("updates", {**theirs, "model.b": np.array([1.0, 1.0 + 2**-50])}, theirs).startswith("at most max/rms 8.9e-16")


def test_what_rounding_alone_decides_is_not_compared():
    sign, model = optax.sign_sgd(0.1), {"up": {"bias": np.ones(4), "kernel": np.ones((4, 4))}}
    gradients = {"up.bias": np.full(4, 1e-17), "up.kernel": np.ones((4, 4))}
    updates = {f"model.{name}": np.full_like(leaf, 0.9) for name, leaf in gradients.items()}
    assert decided_by_rounding(wide_state(model, sign), sign, Recorded({}, {}, gradients, updates)) == ["model.up.bias"]


@pytest.mark.parametrize(("gradient", "named"), [(1.0, ["up.bias"]), (1e-17, [])])
def test_parameters_are_named_that_an_optimizer_keeps_from_their_gradients(gradient, named):
    frozen = optax.masked(optax.set_to_zero(), {"up": {"bias": True, "kernel": False}})
    optimizer, model = optax.chain(frozen, optax.sgd(0.1)), {"up": {"bias": np.ones(4), "kernel": np.ones((4, 4))}}
    updates = {"model.up.bias": np.ones(4), "model.up.kernel": np.full((4, 4), 0.9)}
    reference = Recorded({}, {}, {"up.bias": np.full(4, gradient), "up.kernel": np.ones((4, 4))}, updates)
    assert (seen := traces(wide_state(model, optimizer), optimizer, reference)) == ["model.up.kernel"]
    assert untraced(seen, reference) == named


def test_all_axes_that_explain_an_array_are_named():
    theirs = np.array([[1.0, 2.0], [3.0, 4.0]])
    placed = SimpleNamespace(sizes={"data": 2, "fsdp": 4, "tensor": 2}, whole=2 * theirs, differing=list)
    assert explain(placed, theirs) == (["data", "tensor"], "summed over it once too often")


@pytest.mark.parametrize(("apart", "said"), [((0, 1.5e-12), STALE), ((-1, 1), "the mean over it is left out: ")])
def test_copies_of_which_one_is_right_are_no_mean_left_out(apart, said):
    theirs = np.linspace(1.0, 2.0, 4)
    copies = [((slice(None),), [theirs * (1 + each) for each in apart])]
    placed = SimpleNamespace(sizes={"data": 2}, differing=lambda: ["data"], along=lambda axis: copies)
    axes, cause = explain(placed, theirs)
    assert (axes, cause.startswith(said)) == (["data"], True)


def test_an_own_step_that_fails_on_one_device_tells_nothing():
    sgd, model = optax.sgd(0.1), {"up": {"kernel": np.ones((4, 4))}}
    case = Case(wide_state(model, sgd), np.ones((4, 4)), None, lambda *_: 1 / 0, sgd, step=lambda *_: 1 / 0)
    assert not different_alone(case, "data", 1, Recorded({}, {}, {}, {}), nullcontext)
    with pytest.raises(ZeroDivisionError):
        different_alone(replace(case, step=None), "data", 1, Recorded({}, {}, {}, {}), nullcontext)


def test_blocks_that_stand_where_they_should_are_in_no_other_order():
    theirs = np.array([[1.0, 2.0], [3.0, 4.0]])
    placed = SimpleNamespace(sizes={"data": 2}, whole=theirs)
    assert not other_order(placed, theirs, "data")
    placed.whole = theirs[::-1]
    assert other_order(placed, theirs, "data")


def test_what_a_mesh_needs_is_asked_of_the_devices_that_share_a_memory(eight):
    one, simulated, accelerator = eight["sizes"]
    assert one / 8 < accelerator < one / 6
    assert simulated == 8 * accelerator


@pytest.mark.parametrize("command", ["generate no", "translate no x", "parity sharded no", "info no"])
def test_collectives_are_in_order_before_jax_has_its_devices(command, monkeypatch, refusal):
    monkeypatch.setenv("XLA_FLAGS", "")
    refusal(dispatch, [*command.split(), "--mesh", "data=2"])
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def test_init_checkpoints_and_generation(eight):
    stays = eight["stays"]
    assert eight["looked up"]
    assert stays["same init"]
    assert stays["same ids"]
    assert stays["largest"] == 1 / 8
    elsewhere = "step 1 was written on mesh fsdp=8 and goes on on {}: close, not bit-identical"
    assert stays["resumed"] == [
        [True],
        [True, elsewhere.format("data=2,tensor=2")],
        [True, elsewhere.format("data=1")],
        [True, "step 1 was written on mesh data=1 and goes on on fsdp=8: close, not bit-identical"],
    ]


@pytest.mark.parametrize("name", TRIED)
def test_a_mistake_of_shards_is_named_with_its_axis(eight, name):
    killed, verdict = eight["mutants"][name]
    assert killed, verdict


@pytest.mark.slow
def test_every_mistake_of_shards_is_named_with_its_axis():
    command = [sys.executable, "-m", "jaxformer", "parity", "sharded", "--mutants"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("15/15 mutants of shards killed, each with its axis\n")


def test_what_does_not_fit_is_refused_in_one_line(eight):
    assert eight["refused"] == [
        "mesh = data=16 needs 16 devices, and there are 8 (cpu); set JAX_NUM_CPU_DEVICES=16 to simulate them, "
        "or give another mesh",
        "mesh = tensor=8: tensor = 8 does not divide n_heads = 4; give a divisor of 4",
        "mesh = 'tensor' is not a mesh; give axes and sizes, as data=4,tensor=2",
        "mesh = 4 is an int; give axes and sizes, as data=4,tensor=2",
        "step = 3 cannot be called; give step(state, batch, key) -> (TrainState, mean loss)",
        "the batch has 6 rows, which data x fsdp = 4 x 1 of the mesh does not divide; give a multiple of 4",
    ]


@pytest.mark.slow
def test_seeds_are_divided_over_devices(more):
    assert more["seeds"] == [True, True, True]


def test_seeds_that_a_mesh_does_not_divide_are_refused(refusal):
    refused = refusal(dispatch, ["train", "qa", "--seeds", "6", "--mesh", "data=4"])
    assert refused == "seeds = 6 is not divided by data=4 of the mesh; give 8"
    refused = refusal(dispatch, ["train", "qa", "--seeds", "4", "--mesh", "data=2,tensor=2"])
    assert refused == "mesh = data=2,tensor=2 cuts models, and these are too small; give data alone, as data=4"


def test_a_mesh_of_a_thousand_devices_is_refused_before_they_are_simulated(refusal):
    said = refusal(dispatch, ["parity", "sharded", "gpt.tiny", "--mesh", "data=1000000"])
    assert said == "mesh = data=1000000 has 1000000 devices; give one of at most 64, to run the step on"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data=4,data=2", "twice"),
        ("dat=4", "did you mean 'data'"),
        ("data=0", "out of range"),
        ("data=-1", "is not a mesh"),
        ("", "is not a mesh"),
        ("data=4,", "is not a mesh"),
    ],
)
def test_a_mesh_is_read_or_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        MeshConfig.read(text)


def test_info_of_a_mesh_by_shapes_alone(capsys, refusal, monkeypatch):
    assert dispatch(["info", "gpt.tiny", "--mesh", "fsdp=8,tensor=4"]) is None
    said = {line[:14].strip(): line[14:] for line in capsys.readouterr().out.splitlines()}
    assert list(said) == ["mesh", "parameters", "a device", "largest leaf"]
    assert said["mesh"] == "fsdp=8,tensor=4: 32 devices"
    assert refusal(dispatch, ["info", "gpt.tiny", "--mesh", "tensor=3"]).startswith("mesh = tensor=3: tensor = 3 does not")
    assert refusal(dispatch, ["info", "gpt.tiny", "--batch", "8"]).startswith("--batch is of a training on a mesh")
    assert refusal(dispatch, ["info", "gpt.tiny"]) == "gpt.tiny is a preset; give --mesh too, as data=1 for one device"
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: 1 / 0)
    said = refusal(dispatch, ["info", "gpt.no", "--mesh", "data=1"])
    assert "; give a folder, or with --mesh a preset: qa, gpt.tiny" in said
    assert refusal(dispatch, ["info", "gpt.tiny", "--mesh", "data=1", "--batch", "0"]).startswith("batch = 0 is out of range")
    refused = refusal(dispatch, ["info", "gpt.tiny", "--mesh", "data=1000000", "--batch", "1000000"])
    assert refused.startswith("mesh = data=1000000 has 1000000 devices, and with --batch a step is compiled for at most 4,096")
    refused = refusal(dispatch, ["info", "gpt.tiny", "--mesh", "data=2", "--batch", "8", "--parts", "3"])
    assert refused == "--parts 3 does not divide --batch 8; give a divisor of 8"
    refused = refusal(dispatch, ["info", "gpt.tiny", "--mesh", "data=4", "--batch", "8", "--parts", "8"])
    assert (
        refused
        == "--batch 8 in --parts 8 is 1 a part, which data x fsdp = 4 x 1 of the mesh does not divide; give other --parts"
    )


@pytest.mark.parametrize("flag", ["--device-flops", "--link"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_speeds_of_devices_are_positive(flag, value, refusal):
    said = refusal(dispatch, ["info", "qa", "--mesh", "data=1", "--batch", "4", f"{flag}={value}"])
    assert re.match(rf"{flag} = {value} is (out of range|not a finite number); give (a number|one) in \(0, inf\)", said)


def test_info_of_a_step(capsys):
    command = ["info", "qa", "--mesh", "data=1", "--batch", "4", "--parts", "2", "--device-flops", "1e6", "--link", "1e6"]
    assert dispatch(command) is None
    said = {line[:14].strip(): line[14:] for line in capsys.readouterr().out.splitlines()}
    flops = flops_of(PRESETS["qa"], 4, PRESETS["qa"].context)
    assert said["a step"] == f"{flops:.3g} operations in matrix products, {flops:.3g} a device"
    assert "a device as XLA's CPU compiler lays it out" in said["peak"]
    assert re.fullmatch(r"-?[\d.]+ kB by 2 parts: [\d.]+ [kM]B on the way without", said["saved"])
    assert said["collectives"].startswith("none; ")
    assert said["on paper"].startswith(f"{flops / 1e3:.3g} ms at 1e+06 operations/s, 0 ms at")


def test_a_mesh_is_written_as_it_is_read():
    mesh = MeshConfig.read(" tensor=2 ,data=4")
    assert str(mesh) == "data=4,tensor=2"
    assert (mesh.devices, mesh.rows) == (8, 4)
    assert MeshConfig.read(str(MeshConfig())) == MeshConfig()


def test_batches_and_models_that_a_mesh_does_not_divide():
    with pytest.raises(ConfigError, match=r"batch = 10 is not divided by data x fsdp = 2 x 2 of the mesh; give 12 or 8"):
        check_batch(10, MeshConfig(data=2, fsdp=2))
    with pytest.raises(ConfigError, match=r"mesh = fsdp=3: fsdp = 3 does not divide d_model = 8; give a divisor of 8"):
        check_model(tiny_config(), MeshConfig(fsdp=3))
    with pytest.raises(ConfigError, match=r"mesh = sequence=3: sequence = 3 does not divide context = 8; give a divisor of 8"):
        check_model(tiny_config(context=8), MeshConfig(sequence=3))
    check_batch(10, None)
    check_model(tiny_config(), MeshConfig(data=3, tensor=2, fsdp=8))


SIZES: dict[str, Any] = {"vocab_size": 8, "context": 8, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8}
EVERY_PART = EncoderDecoderConfig(
    **SIZES,
    gated=True,
    qk_norm=True,
    sinks=True,
    norm_position="sandwich",
    relative_bias="t5",
    head_bias=True,
)
ENCODER = EncoderConfig(
    **SIZES,
    projections="fused",
    embedding_norm=True,
    token_types=2,
    pooler=True,
    embedding_width=4,
    head="masked_lm",
)
LABELLED = EncoderConfig(**SIZES, head="token_classification", labels=("a", "b"), relative_bias="disentangled")
EXPERTS = GPTConfig(
    **SIZES, tied=True, embedding_width=4, gated=True, n_experts=4, router_bias=True, shared_d_ff=6, shared_gate=True
)
LATENTS = GPTConfig(**SIZES, tied=True, embedding_width=4, kv_latent=5, query_latent=3, rotary="half", rotary_dim=2, head_dim=4)
LAYERS = GPTConfig(**SIZES, layer_embedding=5, output_scale=True)
LEAVES = [*PRESETS.values(), EVERY_PART, ENCODER, LABELLED, EXPERTS, LATENTS, LAYERS]


@pytest.mark.parametrize("config", LEAVES, ids=lambda config: type(config).__name__)
def test_every_leaf_of_every_model_has_a_rule_of_its_rank(config):
    for name, leaf in named_leaves(abstract(config)).items():
        assert len(letters_of(name)) == leaf.ndim, name


def test_no_rule_is_without_a_leaf():
    names = [name for config in LEAVES for name in named_leaves(abstract(config))]
    assert [end for end in AXES_OF if not any(f".{name}".endswith(f".{end}") for name in names)] == []


def test_how_leaves_are_cut():
    sizes = {"data": 2, "fsdp": 2, "tensor": 2, "expert": 3}
    cut = {
        "stack.blocks.feed_forward.experts.down.kernel": ((3, 6, 8, 4), (None, "expert", "tensor", "fsdp")),
        "embed.token.table": ((8, 6), (("tensor", "fsdp"), None)),
        "model.embed.token.table": ((6, 6), ("tensor", "fsdp")),
        "embed.position.table": ((7, 6), (None, "fsdp")),
        "stack.blocks.attention.query.kernel": ((3, 6, 8), (None, "fsdp", "tensor")),
        "moments.1.mu.stack.blocks.feed_forward.down.kernel": ((3, 8, 6), (None, "tensor", "fsdp")),
        "stack.blocks.attention.key.bias": ((3, 8), (None, "tensor")),
        "stack.blocks.attention.key.kernel": ((3, 6, 5), (None, "fsdp", None)),
        "norm.scale": ((6,), (None,)),
        "step": ((), ()),
    }
    for name, (shape, wanted) in cut.items():
        assert tuple(spec_of(name, shape, sizes)) == wanted, name
    with pytest.raises(ConfigError, match=r"no rule says how mine\.gamma is cut"):
        spec_of("mine.gamma", (4,), sizes)
    with pytest.raises(ConfigError, match=r"up\.kernel: F = 7 is not divided by tensor = 2"):
        spec_of("up.kernel", (6, 7), sizes)
    assert spec_of("mine.gamma", (4, 4), sizes, {"gamma": "D F"}) == spec_of("up.kernel", (4, 4), sizes)
