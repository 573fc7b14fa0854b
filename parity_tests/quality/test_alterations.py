"""Causes in a decoder, found in torch's own code, which runs again with one thing altered: whatever the port looks like."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose import search
from jaxformer.parity.diagnose.mutation import Free
from jaxformer.parity.diagnose.solve import solved
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check, dump
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

B, T, V, D, N, K, H = 3, 13, 19, 20, 4, 2, 6
CHECKS = ("weights", "forward", "local")


class Dense(nnx.Module):
    """torch's weights under names of its own."""

    def __init__(self, theirs):
        self.m = nnx.Param(jnp.asarray(theirs.weight.detach().numpy().T))
        self.c = None if theirs.bias is None else nnx.Param(jnp.asarray(theirs.bias.detach().numpy()))

    def __call__(self, x):
        return x @ self.m[...] + (0 if self.c is None else self.c[...])


class Rows(nnx.Module):
    def __init__(self, theirs):
        self.r = nnx.Param(jnp.asarray(theirs.weight.detach().numpy()))

    def __call__(self, ids):
        return self.r[...][ids]


class Size(nnx.Module):
    def __init__(self, theirs, bug):
        self.s, self.bug = nnx.Param(jnp.asarray(theirs.weight.detach().numpy())), bug

    def __call__(self, x):
        around = x - x.mean(-1, keepdims=True) if self.bug.get("around") else x
        square, behind = (around**2).mean(-1, keepdims=True), self.bug.get("after")
        size = jnp.sqrt(square) + behind if behind else jnp.sqrt(square + self.bug.get("eps", 1e-6))
        return x / size * (1 + self.s[...])


def rotated(
    x, *, base=1e4, first=0, sense=1, neighbours=False, mixed=False, around=False, part=1, slower=1.0, by=jnp, exchanged=False
):
    """`B T N H`. Tables by numpy are rounded to float32; `mixed` ones are of halves, where neighbours are turned."""
    n = x.shape[-1] // part
    angles = (by.arange(x.shape[1]) + first)[:, None] / slower * base ** (-by.arange(0, n, 2) / n)
    cos, sin = by.cos(angles)[:, None], sense * by.sin(angles)[:, None]
    cos, sin = (sin, cos) if exchanged else (cos, sin)
    if by is np:
        cos, sin = np.float32(cos), np.float32(sin)
    if around:
        cos, sin = jnp.roll(cos, 1, 0), jnp.roll(sin, 1, 0)
    if mixed:
        turned = jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        return x * jnp.concatenate([cos, cos], -1) + turned * jnp.concatenate([sin, sin], -1)
    a, b = (x[..., :n:2], x[..., 1:n:2]) if neighbours else jnp.split(x[..., :n], 2, -1)
    turned = a * cos - b * sin, b * cos + a * sin
    both = jnp.stack(turned, -1).reshape(*x.shape[:-1], n) if neighbours else jnp.concatenate(turned, -1)
    return jnp.concatenate([both, x[..., n:]], -1)


class Heads(nnx.Module):
    def __init__(self, theirs, bug):
        self.a, self.b, self.v = Dense(theirs.q_proj), Dense(theirs.k_proj), Dense(theirs.v_proj)
        self.o, self.bug = Dense(theirs.o_proj), bug

    def __call__(self, x):
        bug, length = self.bug, x.shape[1]
        q, k, v = (f(x).reshape(*x.shape[:2], -1, H) for f in (self.a, self.b, self.v))
        if bug.get("swapped"):
            k, v = v, k
        q = rotated(q, **bug.get("queries", {}), **bug.get("rotary", {}))
        k = rotated(k, **bug.get("keys", {}), **bug.get("rotary", {}))
        v = rotated(v) if bug.get("values") else v
        k, v = (
            jnp.tile(z, (1, 1, N // K, 1)) if i in bug.get("tiled", ()) else jnp.repeat(z, N // K, 2)
            for i, z in ((0, k), (1, v))
        )
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) * bug.get("scale", H**-0.5)
        if cap := bug.get("cap", 5.0):
            scores = cap * jnp.tanh(scores / cap)
        far = jnp.arange(length)[:, None] - jnp.arange(length)
        weights = jax.nn.softmax(jnp.where((far >= -bug.get("ahead", 0)) & (far < bug.get("window", 5)), scores, -jnp.inf), -1)
        weights = weights.astype(bug.get("type", x.dtype)).astype(x.dtype)
        gathered = jnp.einsum("bnts,bsnh->btnh", weights, v)[:, :, :: bug.get("heads", 1)]
        return self.o(gathered.reshape(*x.shape[:2], -1))


class Gated(nnx.Module):
    def __init__(self, theirs, bug):
        self.g, self.u, self.d, self.bug = Dense(theirs.gate_proj), Dense(theirs.up_proj), Dense(theirs.down_proj), bug

    def __call__(self, x):
        gate, up = self.g(x), self.u(x)
        gate, up = (up, self.g(x)) if self.bug.get("gates") else (gate, up)
        if self.bug.get("sum"):
            return self.d(jax.nn.gelu(gate, approximate=True) + up)
        inner = self.bug.get("act", lambda x: jax.nn.gelu(x, approximate=True))(gate) * up * self.bug.get("times", 1.0)
        return self.d(self.bug.get("capped inside", lambda x: x)(inner))


class Decoder(nnx.Module):
    """Gemma 2, in another style: the norms' gains are 1 + w."""

    def __init__(self, theirs, bug):
        self.rows, self.head, self.bug = Rows(theirs.model.embed_tokens), Dense(theirs.lm_head), bug
        (layer,) = theirs.model.layers
        self.heads, self.gated = Heads(layer.self_attn, bug), Gated(layer.mlp, bug)
        self.norms = nnx.List(
            Size(each, bug)
            for each in (
                layer.input_layernorm,
                layer.post_attention_layernorm,
                layer.pre_feedforward_layernorm,
                layer.post_feedforward_layernorm,
                theirs.model.norm,
            )
        )

    def __call__(self, ids):
        x = self.rows(ids) * self.bug.get("rows", D**0.5)
        norms, x0 = self.norms, x
        x = x + norms[1](self.heads(norms[0](norms[0](x0) if self.bug.get("twice") else x0)))
        x = x + norms[3](self.gated(norms[2](x)))
        logits = self.head(norms[4](x))
        return 7.0 * jnp.tanh(logits / 7.0) if self.bug.get("capped", True) else logits


SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 1,
    "num_attention_heads": N,
    "num_key_value_heads": K,
}
SIZES |= {"head_dim": H, "intermediate_size": 16, "sliding_window": 5, "layer_types": ["sliding_attention"], "use_cache": False}
SIZES |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 7.0, "query_pre_attn_scalar": H, "pad_token_id": 0}
SIZES |= {"tie_word_embeddings": False, "attn_implementation": "eager", "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture(scope="module")
def decoder():
    return excite(transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZES)).eval(), seed=3)


IDS = np.random.default_rng(0).integers(3, V, (B, T)).astype(np.int32)
BUGS = {
    "base": ({"rotary": {"base": 77777.0}}, "heads", "torch rotary base 10000; jax rotary base 77777"),
    "rounded base": (
        {"rotary": {"base": 1234.0, "by": np}},
        "heads",
        "torch rotary base 10000; jax rotary base 1234 (residual ",
    ),
    "sense": ({"rotary": {"sense": -1}}, "heads", "torch rotates forwards; jax rotates backwards"),
    "pairs": (
        {"rotary": {"neighbours": True}},
        "heads",
        "torch has rotary pairs half and half; jax has them interleaved",
    ),
    "late queries": ({"queries": {"first": 1}}, "heads", "torch rotates q_proj by its positions; jax one position later"),
    "scale": ({"scale": D**-0.5}, "heads", "torch scaling 0.40824829; jax scaling 0.223606798 = 1/sqrt(20)"),
    "cap": ({"cap": 6.25}, "heads", "torch attn_logit_softcapping 5; jax attn_logit_softcapping 6.25"),
    "no cap": ({"cap": None}, "heads", "torch attn_logit_softcapping 5; jax attn_logit_softcapping left out"),
    "wide": ({"window": 6}, "heads", "jax has a window of 6 keys for 5"),
    "moved": ({"window": 4, "ahead": 1}, "heads", "jax has the window one key further ahead"),
    "leak": ({"ahead": 1}, "heads", "jax lets every query see one key more ahead"),
    "mixed pairs": (
        {"rotary": {"mixed": True}},
        "heads",
        "jax has them interleaved in `rotate_half`, but half and half in cos and sin",
    ),
    "keys around": ({"keys": {"around": True}}, "heads", "jax rotates these by positions - 1, rolled around"),
    "keys by sines": ({"keys": {"exchanged": True}}, "heads", "jax exchanges cosines and sines for these"),
    "keys not rotated": ({"keys": {"slower": 1e30}}, "heads", "torch rotates k_proj; jax does not"),
    "values too": ({"values": True}, "heads", "torch does not rotate v_proj, whose heads are values; jax rotates it"),
    "one tiled": (
        {"tiled": (1,)},
        "heads",
        "torch repeats each head of values 2 times, 0 0 1 1; jax tiles them, 0 1 0 1",
    ),
    "heads": ({"heads": -1}, "heads", "jax has torch's entries along axis 2, in 4 blocks of 6, from the last to the first"),
    "sum": ({"sum": True}, "gated", "jax adds the two"),
    "tiled": (
        {"tiled": (0, 1)},
        "heads",
        "torch repeats each head of keys and values 2 times, 0 0 1 1; jax tiles them, 0 1 0 1",
    ),
    "swapped": (
        {"swapped": True},
        "heads",
        "torch uses k_proj and v_proj as named; jax exchanges the two",
    ),
    "rounded": ({"type": jnp.bfloat16}, "heads", "jax rounds the weights to bfloat16"),
    "gates": (
        {"gates": True},
        "gated",
        "torch uses gate_proj and up_proj as named; jax exchanges the two",
    ),
    "after": ({"after": 0.01}, "norms.0", "torch adds epsilon 1e-06 under the root; jax adds 0.01 after the root"),
    "around": ({"around": True}, "norms.0", "jax subtracts the mean from its first operand"),
    "twice": (
        {"twice": True},
        "the model",
        "torch gives this array as it is; jax applies model.layers.0.input_layernorm to it too",
    ),
    "act": ({"act": jax.nn.silu}, "gated", "torch act_fn GELUTanh; jax act_fn silu"),
    "times": ({"times": 1.7}, "gated", "jax gives torch's array times 1.7"),
    "capped": (
        {"capped inside": lambda x: 3.5 * jnp.tanh(x / 3.5)},
        "gated",
        "jax caps torch's array at 3.5: 3.5 tanh(x / 3.5)",
    ),
}


def ported(decoder, bug):
    return Decoder(decoder, bug), {"call_torch": lambda model, ids: model(input_ids=ids.long()).logits, "tier": "A"}


@pytest.mark.parametrize("name", usually(BUGS, "leak", "gates"))  # a mask, children
def test_causes_in_a_decoder(decoder, name):
    bug, module, cause = BUGS[name]
    ours, how = ported(decoder, bug)
    report = compare(decoder, ours, (IDS,), checks=CHECKS, **how)
    assert report.diverging[0].name == module, str(report)
    assert all(cause in each.cause for each in report.diverging), str(report)


def test_rounding_may_stay_beside_a_large_difference_alone():
    one = np.ones(9)
    assert search.limit_of(one, 1.01 * one) == search.FLOAT32
    assert search.limit_of(one, 1.001 * one) == EXPLAINED


def test_a_port_that_is_right_has_no_cause(decoder):
    ours, how = ported(decoder, {})
    assert compare(decoder, ours, (IDS,), checks=CHECKS, **how).status == "equal"


def test_what_nothing_explains_is_described(decoder):
    ours, how = ported(decoder, {"act": lambda x: jnp.sin(x) + x**3})
    report = compare(decoder, ours, (IDS,), checks=CHECKS, **how)
    (module,) = report.diverging
    assert module.cause == ""
    assert "changes of torch's code" in report.verdict


def test_without_torch_there_are_formulas_alone(decoder, tmp_path):
    ours, how = ported(decoder, BUGS["tiled"][0])
    dump(decoder, (IDS,), tmp_path / "dump", checks=CHECKS, **how)
    report = check(tmp_path / "dump", ours, checks=CHECKS, tier="A")
    assert report.status == "different"
    assert "changes of torch's code" not in report.verdict


def test_a_bug_in_all_layers_is_searched_for_once(decoder, monkeypatch):
    """What explained one module is tried first in the next."""
    ours, how = ported(decoder, BUGS["scale"][0])
    seen = []
    diagnosis = search.Search.diagnosis

    def twice(self):
        first = diagnosis(self)
        tried = self.budget.tried
        seen.append((first.first, diagnosis(self).first, self.budget.tried - tried))
        return first

    monkeypatch.setattr(search.Search, "diagnosis", twice)
    compare(decoder, ours, (IDS,), checks=CHECKS, **how)
    ((first, second, tried),) = seen
    assert first.mutation == second.mutation
    assert tried == 0


def test_a_number_that_acts_in_steps_is_a_whole_one():
    """As a window does, whose next number is as good as one a little above the last."""
    free = Free(2.0, sure=True)
    found = solved(lambda x: 1.0 * (np.arange(9) < x), free, 1.0 * (np.arange(9) < 2), 1.0 * (np.arange(9) < 5), EXPLAINED)
    assert found == (5.0, 0.0)


def test_a_number_is_solved_for_to_the_end():
    """Several steps before the last one, the difference is within float32's rounding."""

    def turns(base):
        angles = np.arange(13.0)[:, None] * base ** -(np.arange(0, 6, 2) / 6)
        return np.concatenate([np.cos(angles), np.sin(angles)])

    with np.errstate(all="ignore"):
        assert solved(turns, Free(1e4, sure=True), turns(1e4), turns(1e8), 3e-7) == (1e8, 0.0)


def test_a_number_near_0_is_0():
    """Even where 0 itself gives none, as of a mask that is infinite."""
    one, other = np.random.default_rng(0).standard_normal((2, 9))
    free = Free(1.0)
    found = solved(lambda x: one + x * other if x else None, free, one + other, one, EXPLAINED)
    assert found is not None
    assert found[0] == 0.0
