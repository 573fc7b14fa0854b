"""A foreign port that decodes with a cache of its own, beside a torch model without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.convert.rules import Family, Rule
from jaxformer.errors import InputError
from jaxformer.parity.compare import compare
from jaxformer.parity.decoding import compare_generation, compare_steps, run_steps
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import D, N, V, usually
from parity_tests.zoo.others import SmallGPT

PROMPT, STEPS, CONTEXT = np.random.default_rng(0).integers(0, V, (2, 3), np.int32), 4, 11
THEIRS = excite(SmallGPT(layers=1, context=CONTEXT), seed=0).eval()
TREE = {name: tensor.detach().numpy() for name, tensor in THEIRS.named_parameters()}


def norm(params, name, x):
    scaled = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * params[f"{name}.weight"] + params[f"{name}.bias"]


def linear(params, name, x):
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def decode(params, ids, cache, *, late=0, slot=0, leak=0, **bug):
    """Logits, and the cache: keys, values, how many there are. Of a step, the position may come late, the slot in the cache may
    be another, and empty slots may be seen."""
    keys, values, start = cache
    stepping, width = start > 0, ids.shape[1]
    start = start + bug.get("early", 0) * (start == PROMPT.shape[1])
    start = jnp.minimum(start, PROMPT.shape[1]) if bug.get("stays") else start
    ids = jnp.roll(ids, 1, 0) if bug.get("mixed") and width == 1 else ids
    positions = start + jnp.arange(width)
    x = params["transformer.wte.weight"][ids] + params["transformer.wpe.weight"][positions - late * stepping]
    block = "transformer.h.0"
    packed = linear(params, f"{block}.attn.c_attn", norm(params, f"{block}.ln_1", x))
    q, k, v = (each.reshape(len(ids), width, N, D // N) for each in jnp.split(packed, 3, -1))
    k, v = ((x * (bug.get(name, 1) if width == 1 else 1)) for x, name in ((k, "keys"), (v, "values")))
    at = [start + (slot + bug.get(f"{name}_slot", 0)) * stepping for name in ("keys", "values")]
    both = zip((keys, values), (k, v), at, strict=True)
    keys, values = (jax.lax.dynamic_update_slice(held, new, (0, place, 0, 0)) for held, new, place in both)
    visible = jnp.arange(CONTEXT) <= positions[:, None] + leak * stepping
    scores = jnp.where(visible, jnp.einsum("bthd,bshd->bhts", q, keys) / jnp.sqrt(D // N), -jnp.inf)
    gathered = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), values).reshape(x.shape)
    x = x + linear(params, f"{block}.attn.c_proj", gathered)
    up = jax.nn.gelu(linear(params, f"{block}.mlp.c_fc", norm(params, f"{block}.ln_2", x)), approximate=False)
    x = norm(params, "transformer.ln_f", x + linear(params, f"{block}.mlp.c_proj", up))
    x = x * 1.25 if bug.get("cooled") and width == 1 else x
    return x @ params["transformer.wte.weight"].T, (keys, values, start + width)


def empty():
    held = jnp.zeros((len(PROMPT), CONTEXT, N, D // N), jnp.float32)
    return held, held, 0


def torch_steps(model):
    """Without a cache: what each step has to give."""
    ids = torch.from_numpy(PROMPT).long()
    following = yield model(ids)
    for _ in range(STEPS):
        ids = torch.cat([ids, following[:, None]], 1)
        following = yield model(ids)[:, -1]


def jax_steps(steps=STEPS, **bug):
    def decoding(params):
        logits, cache = decode(params, PROMPT, empty(), **bug)
        ids = yield logits
        for _ in range(steps):
            logits, cache = decode(params, ids[:, None], cache, **bug)
            ids = yield logits[:, 0]

    return decoding


def stage_of(decoding):
    def call(params, ids):
        return decode(params, ids, empty())[0]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        report = compare(
            THEIRS, TREE, (PROMPT,), call_jax=call, checks=("forward",), tier="A", generate=(torch_steps, decoding)
        )
    assert [stage.status for stage in report.stages[:-1]] == ["equal"] * (len(report.stages) - 1), str(report)
    return report.stages[-1]


def test_a_right_cache():
    stage = stage_of(jax_steps())
    assert stage.status == "equal", stage.says
    assert stage.says.startswith("2 rows, the prompt and 4 steps: all tokens the same, logits within relL2 ")


CAUSES = {
    ("late", 1): "jax as if the position of a step is one too near",
    ("slot", 1): "jax as if the slot is one too far: an empty slot is seen, and not the last token",
    ("slot", -1): "jax as if the slot is one too near: the prompt's last token is written over, and an empty slot is seen",
    ("values_slot", 1): "jax as if the values of steps are written one slot late",
    ("values_slot", -1): "jax as if the values of steps are written one slot early",
    ("keys_slot", 1): "jax as if the keys of steps are written one slot late",
    ("keys_slot", -1): "jax as if the keys of steps are written one slot early",
    ("leak", 1): "jax as if a step sees one empty slot",
    ("early", 1): "jax as if position and slot are one too far: an empty slot after the prompt is seen",
    ("stays", 1): "jax as if position and slot do not advance: each step writes over the one before",
    ("values", 0): "jax as if the values of steps are not written",
    ("keys", 0): "jax as if the keys of steps are not written",
    ("mixed", 1): "jax as if rows are given the ids of the row before",
    ("cooled", 1): "jax gives 1.25 times torch's logits in steps",
    ("values", 0.5): "look at the cache, the position and the mask of a step",
}


@pytest.mark.parametrize(
    "bug", usually(CAUSES, ("late", 1), ("stays", 1), ("keys", 0), ("values_slot", -1), ("mixed", 1), ("values", 0.5)), ids=str
)
def test_a_step_that_differs_is_named_though_the_prompt_is_the_same(bug):
    """torch has no cache here: what a cache does wrong is done to its whole sequence. No cache keeps half of a value."""
    stage = stage_of(jax_steps(**dict([bug])))
    assert stage.status == "different", stage.says
    assert stage.says.startswith("step ")
    assert CAUSES[bug] in stage.says


class Biased(torch.nn.Module):
    """Two layers of attention with a bias of distances, by softmax or fused; all of it in one function of arrays, which
    decodes with a cache too."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.embed, self.packed = kind, torch.nn.Embedding(V, D), torch.nn.Linear(D, 3 * D)
        self.distances = torch.nn.Embedding(CONTEXT, N)

    def forward(self, ids):
        x, width = self.embed(ids), ids.shape[1]
        place = torch.arange(width)
        bias = self.distances((place[:, None] - place).clamp(min=0)).permute(2, 0, 1)
        hidden = place[:, None] < place
        for _ in range(2):
            q, k, v = (each.unflatten(-1, (N, -1)).transpose(1, 2) for each in self.packed(x).chunk(3, -1))
            if self.kind == "fused":
                read = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias.masked_fill(hidden, -torch.inf)[None])
            else:
                scores = q @ k.mT / (D // N) ** 0.5 + bias
                hides = torch.zeros(width, width).masked_fill(hidden, -1e9)
                scores = scores + hides if self.kind == "added" else scores.masked_fill(hidden, -torch.inf)
                read = scores.softmax(-1) @ v
            x = x + read.transpose(1, 2).flatten(-2)
        return x @ self.embed.weight.T


def decode_biased(params, ids, cache, *, bias=1, seen=0):
    """Logits and the caches of both layers: steps may have another bias, and a prompt more keys."""
    start = cache[0][0].shape[2] if cache else 0
    x, place = params["embed.weight"][ids], start + jnp.arange(ids.shape[1])
    keys, held = jnp.arange(start + ids.shape[1]), []
    distances = params["distances.weight"][jnp.maximum(place[:, None] - keys, 0)].transpose(2, 0, 1) * (bias if cache else 1)
    visible = keys <= place[:, None] + (0 if cache else seen)
    for layer in range(2):
        packed = jnp.split(linear(params, "packed", x), 3, -1)
        q, k, v = (each.reshape(*ids.shape, N, D // N).transpose(0, 2, 1, 3) for each in packed)
        if cache:
            k, v = (jnp.concatenate([old, new], 2) for old, new in zip(cache[layer], (k, v), strict=True))
        held.append((k, v))
        scores = jnp.where(visible, q @ k.mT / jnp.sqrt(D // N) + distances, -jnp.inf)
        x = x + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return x @ params["embed.weight"].T, held


NAMES = Family("same names", {}, (Rule("weight", "weight"), Rule("bias", "bias")))
OF_BIASES = {
    "": ({}, "all tokens the same"),
    "bias": ({"bias": 0}, "jax as if steps have no score bias (residual"),
    "mask": ({"seen": CONTEXT}, "jax as if the prompt is read without the mask: its tokens see those after them (residual"),
}


@pytest.mark.parametrize("case", OF_BIASES)
@pytest.mark.parametrize("kind", usually(["added", "filled", "fused"], "fused"))
def test_a_score_bias_that_steps_lose_and_a_prompt_without_its_mask(kind, case):
    bug, says = OF_BIASES[case]
    model = excite(Biased(kind), seed=0).eval()
    params = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in model.named_parameters()}

    def decoding(params):
        logits, cache = decode_biased(params, PROMPT, None, **bug)
        ids = yield logits
        for _ in range(STEPS):
            logits, cache = decode_biased(params, ids[:, None], cache, **bug)
            ids = yield logits[:, 0]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        stage = compare_generation(model, params, torch_steps, decoding, NAMES)
    assert says in stage.says, stage.says


class Waves(torch.nn.Module):
    """Its rates are a table in float32."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(V, D)
        self.register_buffer("rates", 10000.0 ** (-torch.arange(D) / D))

    def forward(self, ids):
        return (self.embed(ids) * (torch.arange(ids.shape[1])[:, None] * self.rates).cos()) @ self.embed.weight.T


@pytest.mark.parametrize("base", [10000.0, 9999.0])
def test_a_table_that_a_step_computes_outside_of_every_jit_is_torchs(base):
    theirs = excite(Waves(), seed=0).eval()

    def call(params, ids, start=0):
        rates = base ** (-jnp.arange(D) / D)
        table = params["embed.weight"]
        return (table[ids] * jnp.cos((start + jnp.arange(ids.shape[1]))[:, None] * rates)) @ table.T

    def decoding(params):
        ids = yield call(params, PROMPT)
        for step in range(STEPS):
            ids = yield call(params, ids[:, None], PROMPT.shape[1] + step)[:, 0]

    params = {"embed.weight": theirs.embed.weight.detach().numpy()}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        how = {"call_jax": call, "checks": ("forward",), "tier": "A", "generate": (torch_steps, decoding)}
        report = compare(theirs, params, (PROMPT,), **how)
    assert (report.stages[-1].status == "equal") == (base == 10000.0), str(report)


def test_other_numbers_of_steps():
    assert stage_of(jax_steps(steps=STEPS - 1)).says == "torch took 4 steps, jax 3"
    assert stage_of(jax_steps(steps=STEPS + 2)).says == "torch took 4 steps, jax more"


def test_one_side_by_steps():
    assert stage_of(lambda params: PROMPT).says.startswith("torch_generate yields logits step by step, jax_generate does not")


LOGITS = np.array([[[1.0, 2.0, 4.0], [1.0, 4.0, 2.0]]])


def test_the_first_token_that_differs():
    other = np.array([[5.0, 2.0, 4.0]])
    stage = compare_steps([LOGITS, LOGITS[:, 0]], [LOGITS, other])
    assert stage.says.endswith("; the first token that differs is row 0's after step 1: torch 2, jax 0")


def test_the_position_in_the_prompt_and_float32s_size():
    near = LOGITS.copy()
    near[0, 0] *= 1 + 1e-8
    says = compare_steps([LOGITS], [near]).says
    assert says.startswith("the prompt, row 0, position 0: the logits differ by relL2 1.0e-08, tolerance 1e-12 (float32's size")
    assert says.endswith("; all tokens are the same")


def test_the_last_logits_of_the_prompt_alone():
    assert compare_steps([LOGITS], [LOGITS[:, -1]]).status == "equal"
    assert compare_steps([LOGITS], [LOGITS[:, -1, :2]]).says == "the prompt: torch gave logits [1, 3], jax [1, 2]"


def test_what_is_no_logits():
    with pytest.raises(InputError, match=r"jax_generate yielded int64\[2, 3\]; yield the logits `B V` of each step"):
        run_steps("jax", iter_of(np.zeros((2, 3), int)), jnp.asarray)


def iter_of(value):
    yield value
