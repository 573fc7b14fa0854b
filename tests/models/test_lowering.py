"""Programs lowered on this machine for others: what makes a CPU fast is in the CPU's program alone. Shapes only, no weights."""

from dataclasses import replace
from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct

import jaxformer as jf
from jaxformer.config.models import GPTConfig
from jaxformer.config.presets import PRESETS
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.data.tasks import Pairs
from jaxformer.nn import fused_attention
from jaxformer.training.losses import cross_entropy
from jaxformer.training.optimizers import CHUNK, make_optimizer
from jaxformer.training.pairs import pair_loss
from jaxformer.training.step import PRECISIONS, make_train_steps, train_state, train_step
from parity_tests.support.helpers import usually
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("untyped")

OPTIMIZER = make_optimizer(OptimizerConfig(name="adamw", learning_rate=1e-3, clip_norm=1.0), ScheduleConfig())
SHALLOW = {name: replace(config, n_layers=min(config.n_layers, 2)) for name, config in PRESETS.items()}
"""Two layers show what twelve do."""
PLATFORMS = ("cpu", "cuda", "tpu")
BATCH, LENGTH, WRITTEN = 2, 4, 2


def key():
    """Of a generator that is one operation on every platform; the default one is a loop on some, and loops are counted."""
    return jax.random.key(0, impl="unsafe_rbg")


def lowered(traced):
    """Platform -> the program for it."""
    return {platform: traced.lower(lowering_platforms=(platform,)).as_text() for platform in PLATFORMS}


def loops_of(programs):
    """Platform -> number of loops."""
    return {platform: text.count("stablehlo.while") for platform, text in programs.items()}


def next_token_loss(model, batch, key):
    return cross_entropy(model(batch, key=key)[:, :-1], batch[:, 1:])


ALWAYS = "gpt2_small", "transformer.base"
OFTEN = usually(PRESETS, *ALWAYS)
"""The others differ from them in sizes and rates, or in a switch."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OFTEN)
def test_a_train_step_has_the_tricks_of_its_platform(name):
    config = SHALLOW[name]
    ids = ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    is_gpt = isinstance(config, GPTConfig)
    loss, batch = (next_token_loss, ids) if is_gpt else (partial(pair_loss, pad=0, smoothing=0.1), Pairs(ids, ids))

    @jax.jit
    def step(model, batch, key):
        return train_step(train_state(model, OPTIMIZER), batch, key, loss=loss, optimizer=OPTIMIZER)

    programs = lowered(step.trace(jf.abstract(config), batch, key()))
    barriers = {platform: text.count("optimization_barrier") for platform, text in programs.items()}
    assert barriers["cpu"] > barriers["cuda"] == barriers["tpu"], "the gradient of a weight is transposed by hand on CPU alone"
    copies = {platform for platform, text in programs.items() if 'inlineable = "false"' in text}
    assert copies == {"cpu"}, "what is transposed is copied by itself"
    large = sum(leaf.size > CHUNK for leaf in jax.tree.leaves(jf.abstract(config)))
    loops = loops_of(programs)
    if name in ALWAYS:
        assert loops == {"cpu": large, "cuda": 0, "tpu": 0}, "layers are unrolled; a CPU sums norms in chunks"
    assert loops["cpu"] - large >= loops["cuda"] == loops["tpu"]
    assert loops["cpu"] - large == loops["cuda"] or config.n_experts, "a CPU goes through blocks of rows of an expert"


class CaughtError(Exception):
    """The compiled function was called with these arguments."""


def decoded(monkeypatch, module, compiled, call):
    """The programs of a compiled function of that module, with the arguments that `call` gives it."""
    module = import_module(f"jaxformer.decoding.{module}")
    original = getattr(module, compiled)

    def catch(*args):
        raise CaughtError(args)

    monkeypatch.setattr(module, compiled, catch)
    monkeypatch.setattr(module, "check_values", lambda model: None)
    with pytest.raises(CaughtError) as caught:
        call()
    return lowered(original.trace(*caught.value.args[0]))


@pytest.mark.first(1)
@pytest.mark.parametrize("way", ["tokens", "beam"])
@pytest.mark.parametrize("name", OFTEN)
def test_decoding_is_lowered_for_every_platform(name, way, monkeypatch):
    config = SHALLOW[name]
    model, ids = jf.abstract(config), np.ones((BATCH, LENGTH), np.int32)
    sampled = {"key": key(), "sampling": jf.SamplingConfig(top_k=2)}  # greedy is the same program with temperature 0
    if isinstance(config, GPTConfig):
        module, names = "generate", ("_generate", "_generate_beam")
        calls = partial(jf.generate, model, ids, WRITTEN, **sampled), partial(jf.generate_beam, model, ids, WRITTEN, eos=0)
    else:
        module, names = "translation", ("_translate", "_translate_beam")
        given = {"start": 1, "eos": 0}
        calls = (
            partial(jf.translate, model, ids, WRITTEN, **given, **sampled),
            partial(jf.translate_beam, model, ids, WRITTEN, **given),
        )
    programs = decoded(monkeypatch, module, names[way == "beam"], calls[way == "beam"])
    loops = loops_of(programs)
    assert loops["cpu"] >= loops["cuda"] == loops["tpu"] > 1, "tokens, and the layers that fill the cache"
    assert loops["cpu"] == loops["cuda"] or config.n_experts, "a CPU goes through blocks of rows of an expert"


def test_a_run_on_an_accelerator_stays_on_it_in_float32_and_reuses_its_state():
    config = SHALLOW["gpt2_small"]
    steps = make_train_steps(next_token_loss, OPTIMIZER, lambda data, key: data)
    state = jax.eval_shape(lambda model: train_state(model, OPTIMIZER), jf.abstract(config))
    ids = ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    traced = steps.run.args[0].trace(state, ids, key(), jnp.int32(5))
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "f64" not in text
        assert "callback" not in text
        assert "stablehlo.while" in text, "all steps are one program"
        donated = text.count("jax.buffer_donor") + text.count("tf.aliasing_output")
        assert donated == len(jax.tree.leaves(state)), "the state's memory is used for the next one"


KERNEL = "__cudnn$fmhaSoftmax"


@pytest.fixture
def card(monkeypatch):
    """As on a machine with an Nvidia card that has cuDNN's attention."""
    kernels = import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(kernels, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(kernels, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(fused_attention, "generation", lambda: 9.0)


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("precision", "switches", "kernels"),
    [
        ("bf16", {}, 2),
        ("float32", {}, 0),
        ("bf16", {"window": 3}, 0),
        ("bf16", {"attention_dropout": 0.1}, 0),
        ("bf16", {"head_dim": 12}, 0),
        ("bf16", {"attention_softcap": 9.0}, 0),
    ],
)
def test_attention_of_a_step_in_bfloat16_is_a_kernel_of_cudnn(precision, switches, kernels):
    config = tiny_config(**{"attention_dropout": 0.0, "d_model": 32, "n_heads": 2, "n_layers": 1, "context": 8} | switches)
    gradient = jax.jit(jax.grad(lambda model, ids: PRECISIONS[precision](next_token_loss)(model, ids, key())[0]))
    traced = gradient.trace(jf.abstract(config), ShapeDtypeStruct((BATCH, 8), jnp.int32))
    cpu, cuda = (traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda"))
    assert cuda.count(KERNEL) == kernels, "one forward, one backward"
    assert KERNEL not in cpu
