"""Models that cast to float32 on their way are compared in float64 throughout: stock attention, RMS norms, rotary positions."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.float64 import jax_float64, torch_float64
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.trace.perturb import Unperturbed

pytestmark = [pytest.mark.foreign, pytest.mark.slow]

WIDTH, HEADS, KEY_HEADS, VOCAB, HIDDEN, LAYERS = 24, 4, 2, 37, 40, 2
HEAD = WIDTH // HEADS
EPSILON = 1e-6


class RMSNorm(nnx.Module):
    """In float32 whatever it is given, as Llama's."""

    def __init__(self, dtype=jnp.float32):
        self.scale, self.dtype = nnx.Param(jnp.ones(WIDTH)), dtype

    def __call__(self, x):
        wide = x.astype(self.dtype)
        wide *= jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPSILON)
        return self.scale * wide.astype(x.dtype)


def turns():
    """Rotations per position; transformers holds them, in float32."""
    return 1.0 / 10000.0 ** (jnp.arange(0, HEAD, 2) / HEAD)


def rotate(x):
    angles = jnp.arange(x.shape[1]).astype(jnp.float32)[:, None] * turns()
    cos, sin = (jnp.tile(f(angles), 2)[:, None] for f in (jnp.cos, jnp.sin))
    halves = jnp.split(x, 2, -1)
    return (x * cos + jnp.concatenate([-halves[1], halves[0]], -1) * sin).astype(x.dtype)


class Attention(nnx.Module):
    def __init__(self, rngs):
        def linear(features):
            return nnx.Linear(WIDTH, features, use_bias=False, rngs=rngs)

        self.q_proj, self.k_proj, self.v_proj = map(linear, (WIDTH, KEY_HEADS * HEAD, KEY_HEADS * HEAD))
        self.o_proj = linear(WIDTH)

    def __call__(self, x):
        q, k, v = (f(x).reshape(*x.shape[:2], -1, HEAD) for f in (self.q_proj, self.k_proj, self.v_proj))
        gathered = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.o_proj(gathered.reshape(x.shape))


class FeedForward(nnx.Module):
    def __init__(self, rngs):
        def linear(features, out):
            return nnx.Linear(features, out, use_bias=False, rngs=rngs)

        self.gate_proj, self.up_proj, self.down_proj = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def __call__(self, x):
        return self.down_proj(nnx.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nnx.Module):
    def __init__(self, rngs, dtype):
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(dtype), RMSNorm()
        self.self_attn, self.mlp = Attention(rngs), FeedForward(rngs)

    def __call__(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nnx.Module):
    def __init__(self, rngs, dtype):
        self.embed_tokens = nnx.Embed(VOCAB, WIDTH, dtype=jnp.float32, rngs=rngs)
        self.layers = nnx.List([Layer(rngs, dtype) for _ in range(LAYERS)])
        self.norm = RMSNorm()

    def __call__(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nnx.Module):
    """With the names that transformers gives."""

    def __init__(self, dtype=jnp.float32):
        rngs = nnx.Rngs(0)
        self.model, self.lm_head = Body(rngs, dtype), nnx.Linear(WIDTH, VOCAB, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        return self.lm_head(self.model(ids))


LLAMA = Family("llama", {}, (Rule("kernel", "weight", "transposed"), Rule("scale", "weight"), Rule("embedding", "weight")))


@pytest.fixture(scope="module")
def llama():
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS}
    config = transformers.LlamaConfig(vocab_size=VOCAB, num_hidden_layers=LAYERS, rms_norm_eps=EPSILON, **sizes)
    return excite(transformers.LlamaForCausalLM(config).eval(), seed=0)


def compared(theirs, dtype=jnp.float32):
    ids, _ = probe(vocab=VOCAB, length=20)
    ours = jax.eval_shape(lambda: Llama(dtype))
    return compare(theirs, ours, (ids,), rules=LLAMA, call_torch=lambda model, ids: model(ids.long()).logits)


def test_llama(llama):
    report = compared(llama)
    assert report.status == "equal", str(report)
    assert [stage.name for stage in report.stages] == [*CHECK_NAMES, "float32"]
    assert "inv_freq, which JAX computes, differs by" in report.stages[1].says
    assert torch.get_default_dtype() == torch.float32


def test_a_cast_to_bfloat16_is_the_ports_own(llama):
    report = compared(llama, jnp.bfloat16)
    assert [module.jax for module in report.diverging] == [f"model.layers.{i}.input_layernorm" for i in range(LAYERS)]


@pytest.mark.slow
def test_rotations_twice_as_fast_are_the_cause(llama, monkeypatch):
    """Keys and values are fewer than queries here, which no formula of attention may stumble over."""
    other = 2 * np.asarray(turns())
    monkeypatch.setattr(f"{__name__}.turns", lambda: other)
    report = compared(llama)
    assert [module.jax for module in report.diverging] == [f"model.layers.{i}.self_attn" for i in range(LAYERS)]
    assert all("jax multiplies positions by 2 (residual" in module.cause for module in report.diverging), str(report)


@pytest.fixture(scope="module")
def stock():
    """torch's attention, and flax's with its weights."""
    theirs = excite(torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), seed=1)
    ours = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=nnx.Rngs(0))
    weights = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    kernels, biases = (np.split(weights[f"in_proj_{kind}"], 3) for kind in ("weight", "bias"))
    for own, kernel, bias in zip((ours.query, ours.key, ours.value), kernels, biases, strict=True):
        own.kernel[...], own.bias[...] = kernel.T.reshape(WIDTH, HEADS, HEAD), bias.reshape(HEADS, HEAD)
    ours.out.kernel[...] = weights["out_proj.weight"].T.reshape(HEADS, HEAD, WIDTH)
    ours.out.bias[...] = weights["out_proj.bias"]
    return theirs, ours


@pytest.mark.parametrize("rotated", [0, 1])
def test_flaxs_attention(stock, rotated):
    """Its softmax is always in float32. Where it masks otherwise, that is still seen."""
    x = np.random.default_rng(2).standard_normal((3, 7, WIDTH)).astype(np.float32)
    mask = np.tri(7, dtype=bool)
    report = compare(
        *stock,
        (x,),
        call_torch=lambda model, x: model(x, x, x, attn_mask=torch.from_numpy(~mask))[0],
        call_jax=lambda model, x: model(x, mask=np.roll(mask, rotated, 1)),
        tier="A",
    )
    assert report.status == ("different" if rotated else "equal"), str(report)


def cast_on_the_way(x):
    """Angles of positions, in float32 all along."""
    return jnp.sin(jnp.arange(x.size, dtype=jnp.float32) / 7) + x.astype(jnp.float32) * np.float32(0.5)


def test_jax_computes_what_is_told_float32_in_float64():
    x = np.random.default_rng(3).standard_normal(9)
    with jax_float64():
        found = cast_on_the_way(jnp.asarray(x))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.sin(np.arange(9) / 7) + x / 2, rtol=1e-15)
    assert cast_on_the_way(jnp.asarray(x)).dtype == np.float32


def test_jax_still_draws_in_float32():
    """Linen initialises while it looks at shapes."""
    with jax_float64():
        assert jax.random.truncated_normal(jax.random.key(0), -1.0, 1.0, (5,), jnp.float32).shape == (5,)


def test_torch_computes_what_is_told_float32_in_float64():
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)

    def cast(x):
        return torch.sin(torch.arange(9, dtype=torch.float32) / 7) + torch.tensor(2).sqrt() * x.float()

    with torch_float64():
        found = cast(x)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, np.sin(np.arange(9) / 7) + np.sqrt(2) * x.numpy(), rtol=1e-15)
    assert cast(x).dtype == torch.float32


class Casting(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.float().to(x.dtype))


@pytest.mark.parametrize(("kind", "widening"), [(torch.nn.Linear, nullcontext), (Casting, torch_float64)])
def test_what_casts_nowhere_needs_no_widening(kind, widening):
    x = np.random.default_rng(4).standard_normal((3, 5))
    assert Unperturbed(kind(5, 7), (x,), lambda model, x: model(x / 3)).torch.widening is widening
