"""Layouts in words: how others pack, permute and pad their tensors, each written out beside in numpy; there and back, bitwise,
for weights, gradients and Adam's moments, layer by layer."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.family import Family, Rule, module_rules, packed_rules, projection_rules
from jaxformer.convert.host import same_bits
from jaxformer.convert.patterns import read_pattern
from jaxformer.convert.rules import Part, gradients_to_torch, places, to_jax, to_torch
from jaxformer.errors import ConversionError
from jaxformer.models import abstract
from jaxformer.parity.attribute.weights import describe_difference
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import D, F, H, K, N, T, V, gpt_config, noise

size = st.integers(1, 5)


def same(one, other) -> bool:
    return all(same_bits(*map(np.asarray, pair)) for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def numbered(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def by_group(rows: np.ndarray, k: int, g: int, h: int) -> list[np.ndarray]:
    """As transformers' Falcon and InternLM2 cut them, and with g = 1 GPT-NeoX and BLOOM: queries, keys and values."""
    grouped = rows.reshape(k, g + 2, h, *rows.shape[1:])
    parts = grouped[:, :-2], grouped[:, -2], grouped[:, -1]
    return [part.reshape(-1, *rows.shape[1:]) for part in parts]


@settings(deadline=None, max_examples=40)
@given(k=size, g=size, h=size, d=size)
def test_by_group(k, g, h, d):
    rows, sizes = numbered(k * (g + 2) * h, d), {"K": k, "G": g}
    pattern = read_pattern("(K (G + 1 + 1) H) d -> d (K G H + K H + K H)")
    wanted = by_group(rows, k, g, h)
    assert np.array_equal(pattern.to_jax(rows, sizes), np.concatenate(wanted).T)
    apart = [pattern.to_jax(rows, sizes, number=number) for number in range(3)]
    assert all(np.array_equal(found, part.T) for found, part in zip(apart, wanted, strict=True))
    assert np.array_equal(pattern.to_torch(apart, sizes), rows)
    assert np.array_equal(pattern.to_torch([np.concatenate(wanted).T], sizes), rows)


@settings(deadline=None, max_examples=30)
@given(n=size, h=size, rest=st.integers(0, 4), d=size)
def test_rotary_halves_and_pairs(n, h, rest, d):
    """As transformers' conversion of Meta's Llama permutes a weight; with a rest of each head that does not rotate."""
    rows = numbered(n * (2 * h + rest), d)
    heads = rows.reshape(n, 2 * h + rest, d)
    turned = heads[:, : 2 * h].reshape(n, h, 2, d).transpose(0, 2, 1, 3).reshape(n, 2 * h, d)
    wanted = np.concatenate([turned, heads[:, 2 * h :]], 1).reshape(rows.shape)
    pattern = read_pattern("(N (h 2 + rest)) d -> d (N (2 h + rest))")
    sizes = {"N": n, "h": h}
    assert np.array_equal(pattern.to_jax(rows, sizes), wanted.T)
    assert np.array_equal(pattern.to_torch([wanted.T], sizes), rows)


PATTERNS = [
    "f d 1 -> d f",
    "a b c -> (c a) b",
    "(a b c) -> (c b a)",
    "(a b) c -> a 1 (b c)",
    "(a b + c (d + 1)) f -> f (b a + c d + c)",
    "((a + b) c) d -> d (c a + b c)",
]


@settings(deadline=None, max_examples=10)
@given(data=st.data())
@pytest.mark.parametrize("layout", PATTERNS)
def test_every_number_moves_once_and_comes_back(layout, data):
    pattern = read_pattern(layout)
    sizes = {name: data.draw(size, name) for name in "abcdf"}
    shape = [eval_axis(axis, sizes) for axis in pattern.torch]
    array = numbered(*shape)
    laid = pattern.to_jax(array, sizes)
    assert np.array_equal(np.sort(laid, axis=None), array.ravel())
    assert np.array_equal(pattern.to_torch([laid], sizes), array)


def eval_axis(axis, sizes) -> int:
    """The size of an axis, counted otherwise than the code does."""
    if isinstance(axis, str):
        return {"1": 1, **sizes}[axis]
    return sum(np.prod([eval_axis(each, sizes) for each in summand], dtype=int) for summand in axis)


def test_blocks_pair_by_their_order():
    found = read_pattern("(a + b) -> (a + b)").to_jax(numbered(5), {"a": 2})
    assert np.array_equal(found, numbered(5))
    with pytest.raises(ConversionError, match="is none"):
        read_pattern("(a + b) -> (b + a)")


PACKED = replace(TWIN, name="packed", rules=(*packed_rules("attention", "attention.query_key_value"), *TWIN.rules))
BY_BLOCK = replace(
    TWIN, name="blocks", rules=(*packed_rules("attention", "attention.query_key_value", "(K G H + K H + K H)"), *TWIN.rules)
)


def packed_state(model, by_groups: bool) -> dict[str, np.ndarray]:
    """The twin's tensors, those of queries, keys and values in one, as others hold them."""
    state, packed = to_torch(model, TWIN), {}
    for name, array in state.items():
        layer, _, rest = name.partition(".attention.")
        kind = rest.partition(".")[0]
        if kind not in ("query", "key", "value", "qkv"):
            packed[name] = array
            continue
        leaf = rest.rpartition(".")[2]
        apart = [f"{layer}.attention.{it}.{leaf}" for it in ("query", "key", "value")]
        three = np.split(array, [N * H, (N + K) * H]) if kind == "qkv" else [state[it] for it in apart]
        if by_groups:
            heads = [part.reshape(K, -1, H, *part.shape[1:]) for part in three]
            whole = np.concatenate(heads, 1).reshape(-1, *array.shape[1:])
        else:
            whole = np.concatenate(three)
        packed[f"{layer}.attention.query_key_value.{leaf}"] = whole
    return packed


@pytest.fixture(scope="module", params=["separate", "fused"])
def model(request):
    return excite(abstract(gpt_config(projections=request.param, n_kv_heads=K)), seed=0)


@pytest.mark.parametrize("family", [PACKED, BY_BLOCK], ids=["by group", "by block"])
def test_packed_attention_of_a_stack(model, family):
    state = packed_state(model, family is PACKED)
    found = to_torch(model, family)
    assert found.keys() == state.keys()
    assert all(same_bits(found[name], array) for name, array in state.items())
    assert same(to_jax(state, jax.eval_shape(lambda: model), family), model)


@pytest.mark.slow
@pytest.mark.optimizers
def test_gradients_and_moments_travel_like_weights(model):
    gradient = jax.tree.map(lambda leaf: 3 * leaf, model)
    found = gradients_to_torch(gradient, PACKED, packed_state(model, True))
    assert all(same_bits(found[name], array) for name, array in packed_state(gradient, True).items())
    adam = optax.scale_by_adam()
    _, state = adam.update(gradient, adam.init(model), model)
    for moment in (state.mu, state.nu):
        there = to_torch(moment, PACKED)
        assert all(same_bits(there[name], array) for name, array in packed_state(moment, True).items())
        assert same(to_jax(there, moment, PACKED), moment)


def test_sizes_of_a_tree_without_a_configuration():
    tree = {"attention": {"qkv": {"kernel": noise(D, (N + 2 * K) * H)}}}
    family = Family("own", {}, packed_rules("attention", "qkv"))
    with pytest.raises(ConversionError) as error:
        to_torch(tree, family)
    assert str(error.value).endswith("no shape says K and G and H; add sizes={'K': ..., 'G': ..., 'H': ...} to the family")
    for sizes in ({"K": K, "G": N // K}, {"K": K, "H": H}, {"G": N // K, "H": H}):
        given_sizes = replace(family, sizes=sizes)
        state = to_torch(tree, given_sizes)
        assert np.array_equal(np.concatenate(by_group(state["qkv.weight"], K, N // K, H)).T, tree["attention"]["qkv"]["kernel"])
        assert same(to_jax(state, tree, given_sizes), tree)


def test_a_gate_beside_what_it_gates():
    """Phi-3's gate_up_proj, in a stack."""
    rules = [Rule(f"{own}.kernel", "gate_up_proj.weight", "transposed", Part(i, 2)) for i, own in enumerate(("gate", "up"))]
    tree = {"blocks": {"gate": {"kernel": noise(2, D, F)}, "up": {"kernel": noise(2, D, F, seed=1)}}}
    for family_rules in (rules, [replace(rule, layout="(f + f) d -> d (f + f)") for rule in rules]):
        family = Family("own", {"blocks.": "h.{layer}."}, tuple(family_rules))
        state = to_torch(tree, family)
        parts = tree["blocks"]["gate"]["kernel"][1].T, tree["blocks"]["up"]["kernel"][1].T
        assert np.array_equal(state["h.1.gate_up_proj.weight"], np.concatenate(parts))
        assert same(to_jax(state, tree, family), tree)


def test_rows_that_the_jax_table_has_not():
    """OPT's two positions too many, and a vocabulary that is padded: kept where the torch model is given, else zeros."""
    rules = Rule("position.table", "wpe.weight", "(_2 + t) d -> t d"), Rule("token.table", "wte.weight", "(v + _) d -> v d")
    family, tree = Family("own", {}, rules), {"position": {"table": noise(T, D)}, "token": {"table": noise(V, D, seed=1)}}
    whole = {"wpe.weight": noise(T + 2, D, seed=2), "wte.weight": noise(V + 7, D, seed=3)}
    read = to_jax(whole, tree, family)
    assert np.array_equal(read["position"]["table"], whole["wpe.weight"][2:])
    assert np.array_equal(read["token"]["table"], whole["wte.weight"][:V])
    kept = to_torch(read, family, like=whole)
    assert all(same_bits(kept[name], array) for name, array in whole.items())
    alone = to_torch(tree, family)
    assert {name: array.shape for name, array in alone.items()} == {"wpe.weight": (T + 2, D), "wte.weight": (V, D)}
    assert not alone["wpe.weight"][:2].any()
    assert np.array_equal(alone["wpe.weight"][2:], tree["position"]["table"])
    assert same(to_jax(alone, tree, family), tree)


def refused(call) -> str:
    with pytest.raises(ConversionError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_does_not_fit():
    family = replace(PACKED, sizes={"G": 7})
    model = abstract(gpt_config(n_kv_heads=K, n_layers=1))
    state = packed_state(excite(model, seed=0), True)
    said = refused(lambda: to_jax(state, model, family))
    assert f"shape [{(N + 2 * K) * H}] is not (K (G + 1 + 1) H) with K = {K}, G = 7, H = {H}" in said
    assert refused(
        lambda: to_jax({"w": noise(3, 4)}, {"w": noise(4)}, Family("own", {}, (Rule("w", "w", "(a b) -> a b"),)))
    ) == ("w is float32[3, 4]; w, float32[4], cannot be made of it: shape [3, 4] is not (a b)")
    short = {"w": noise(3, 4)}
    assert "shape [3, 4] is not (v + _) d" in refused(
        lambda: to_jax(short, {"w": noise(5, 4)}, Family("own", {}, (Rule("w", "w", "(v + _) d -> v d"),)))
    )


NO_LAYOUTS = "(a -> a", "a) -> a", "(a + ) -> a", "() -> 1", "a -> (a + a)", "a -> (_ + a)", "a* -> a"


@pytest.mark.parametrize("layout", [*NO_LAYOUTS, "(a + b) (c + d) -> (a + b) (c + d)"])
def test_what_is_no_layout(layout):
    assert refused(lambda: Rule("w", "w", layout)).startswith(f"layout = {layout!r} is none; give 'same', 'transposed', or")


def test_a_part_of_another_number_of_summands():
    said = refused(lambda: Rule("w", "w", "(a + b) -> (a + b)", Part(0, 3)))
    assert (
        said == "the rule of w has a layout of 2 summands and part = Part(number=0, of=3, axis=0, shares=()); give a Part of 2"
    )


def test_parts_of_one_tensor_have_one_layout():
    rules = Rule("x", "w", "(a + b) -> (a + b)", Part(0, 2)), Rule("y", "w", "(b + a) -> (b + a)", Part(1, 2))
    family = Family("own", {}, rules)
    assert refused(lambda: to_torch({"x": noise(2), "y": noise(3)}, family)) == (
        "two tensors want the torch name w; family own does not fit"
    )


def test_joined_by_the_models_own_heads():
    """Llama's projections apart, ours in one: fewer keys and values than queries."""
    family = replace(TWIN, rules=(*projection_rules("attention", "attn", ("q", "k", "v"), "out"), *TWIN.rules))
    model = excite(abstract(gpt_config(projections="fused", n_kv_heads=K)), seed=0)
    state = to_torch(model, family)
    assert state["stack.blocks.0.attn.k.weight"].shape == (K * H, D)
    assert same(to_jax(state, model, family), model)


def test_module_rules_take_a_pattern_too():
    (rule, *_) = module_rules("up", "up", "f d 1 -> d f")
    assert rule.to_jax(noise(F, D, 1)).shape == (D, F)


@pytest.mark.parametrize("family", [PACKED, BY_BLOCK], ids=["by group", "in blocks"])
def test_what_differs_in_a_packed_tensor_is_named(family):
    name, model = "stack.blocks.0.attention.query_key_value.weight", excite(abstract(gpt_config(n_kv_heads=1)), seed=0)
    state, key = to_torch(model, family), model.stack.blocks.attention.key.kernel
    key[...] = 2 * key[...]
    said = describe_difference(name, places(model, family)[name], to_torch(model, family)[name], state, family, model)
    assert said.startswith(f"{name}, in JAX stack.blocks.attention.key.kernel (relL2 1.0e+00")
