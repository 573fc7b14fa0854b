"""A model in a folder: what `save` writes, `load` gives back; a trained run's folder is opened too."""

import json
import re
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.checkpoints.opened import load
from jaxformer.checkpoints.written import save
from jaxformer.config.configuration import FixedTable
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.convert.safetensors import save_weights
from jaxformer.errors import CheckpointError, InputError
from jaxformer.models import abstract
from jaxformer.nn.linear import Linear
from jaxformer.parity.probe import excite
from jaxformer.pytree import map_named, named_leaves
from jaxformer.runs.folder import RunFolder
from tests.room import room_for

SIZES = {"d_model": 4, "n_layers": 1, "n_heads": 2, "d_ff": 3, "vocab_size": 5, "context": 3}
CONFIGS = {
    "gpt": GPTConfig(**SIZES, positions=FixedTable(np.linspace(0, 1, 12).reshape(3, 4))),
    "encoder": EncoderConfig(**SIZES, token_types=2, pooler=True),
    "encoder-decoder": EncoderDecoderConfig(**SIZES, source_vocab_size=7),
}


def filled(config, dtype=jnp.float32):
    """A model with numbers of its own everywhere; nothing is compiled."""
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(draw.standard_normal(leaf.shape), dtype), abstract(config))


def refused(call, kind=InputError):
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(back, model):
    assert type(back) is type(model)
    assert back.config == model.config
    ours, wanted = named_leaves(back), named_leaves(model)
    assert list(ours) == list(wanted)
    assert all(ours[name].dtype == wanted[name].dtype for name in wanted)
    assert all(np.asarray(ours[name]).tobytes() == np.asarray(wanted[name]).tobytes() for name in wanted)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_comes_back(name, tmp_path):
    model = filled(CONFIGS[name])
    save(model, tmp_path / "new" / "mine")
    assert_same(load(str(tmp_path / "new" / "mine")), model)
    names = sorted(path.name for path in (tmp_path / "new" / "mine").iterdir())
    assert names == ["config.json", "manifest.json", "weights.safetensors"]


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors"])
def test_a_changed_file_is_refused_and_without_its_manifest_it_is_not(name, tmp_path):
    save(filled(CONFIGS["gpt"]), tmp_path / "mine")
    path = tmp_path / "mine" / name
    data = path.read_bytes()
    changed = data.replace(b'"head_bias": false', b'"head_bias":  false') if name.endswith("json") else flipped(data)
    assert changed != data
    path.write_bytes(changed)
    weights = tmp_path / "mine/weights.safetensors"
    for opened in (lambda: load(tmp_path / "mine"), lambda: load(weights, family="twin")):
        said = refused(opened, CheckpointError)
        assert re.search(rf"{name} was changed since it was written \(.+\); put it back, or save the model again$", said)
    (tmp_path / "mine/manifest.json").unlink()
    load(tmp_path / "mine")


def flipped(data: bytes) -> bytes:
    """The lowest bit of the last number."""
    return data[:-4] + bytes([data[-4] ^ 1]) + data[-3:]


def test_of_another_type(tmp_path):
    model = filled(CONFIGS["gpt"], jnp.bfloat16)
    save(model, tmp_path / "mine")
    assert_same(load(tmp_path / "mine"), model)
    with jax.enable_x64(True):
        model = filled(CONFIGS["gpt"], jnp.float64)
        save(model, tmp_path / "wide")
        assert_same(load(tmp_path / "wide"), model)
    said = refused(lambda: load(tmp_path / "wide"), CheckpointError)
    assert said.endswith("wide holds float64; load it under jax.enable_x64(True)")


def test_of_two_types(tmp_path):
    model = map_named(lambda name, leaf: leaf.astype(jnp.bfloat16 if "norm" in name else leaf.dtype), filled(CONFIGS["gpt"]))
    said = refused(lambda: save(model, tmp_path / "mine"))
    assert said == "the model holds bfloat16 and float32; cast it to one type before it is saved"


def test_what_is_not_saved(tmp_path, untyped):
    said = refused(lambda: save(Linear(2, 3, True), tmp_path / "mine"))
    assert said == "a Linear cannot be saved; give a model of class GPT, Encoder, EncoderDecoder, VisionEncoder, DualEncoder"
    assert not [*tmp_path.iterdir()]


def with_leaf(change):
    """The model of the gpt's configuration, one leaf of 4 numbers changed."""
    return map_named(lambda name, leaf: change(np.asarray(leaf)) if name == "norm.bias" else leaf, filled(CONFIGS["gpt"]))


def deleted(leaf):
    array = jnp.asarray(leaf)
    array.delete()
    return array


def traced(model):
    """The model as a function sees it that jax traces."""
    seen = []
    jax.eval_shape(lambda model: seen.append(model), model)
    return seen[0]


ARRAY = "give a jax or numpy array of shape [4]"
CAST = "cast the model to one of float32, bfloat16, float16, float64"
NOT_READ: dict[str, tuple[Any, str]] = {
    "nan": (lambda leaf: leaf * np.nan, "holds NaN or infinity, and load would refuse the model; save one that is finite"),
    "infinity of jax": (lambda leaf: jnp.asarray(leaf) / 0, "holds NaN or infinity, and load would refuse the model; save one"),
    "a stack": (
        lambda leaf: leaf[None],
        "has shape [1, 4], and the model's configuration asks for [4]; save one model of the stack: jax.tree.map(lambda leaf: "
        "leaf[0], model)",
    ),
    "another shape": (
        lambda leaf: np.concatenate([leaf, leaf]),
        "has shape [8], and the model's configuration asks for [4]; give a model of that shape",
    ),
    "whole numbers": (lambda leaf: leaf.astype(np.int8), f"is of type int8; {CAST}"),
    "truths": (lambda leaf: leaf > 0, f"is of type bool; {CAST}"),
    "complex numbers": (lambda leaf: leaf.astype(np.complex64), f"is of type complex64; {CAST}"),
    "eight bits": (lambda leaf: leaf.astype(jnp.float8_e4m3fn), f"is of type float8_e4m3fn; {CAST}"),
    "a key": (lambda leaf: jax.random.key(0), f"is of type key<fry>; {CAST}"),
    "wide": (
        lambda leaf: leaf.astype(np.float64),
        "is of type float64, which load refuses here; cast the model to float32, or save under jax.enable_x64(True)",
    ),
    "nothing": (lambda leaf: None, f"is None; {ARRAY}"),
    "a number": (lambda leaf: 0.0, f"is a float; {ARRAY}"),
    "a text": (lambda leaf: "x", f"is a str; {ARRAY}"),
    "a layout": (lambda leaf: jax.sharding.PartitionSpec(), f"is a P; {ARRAY}"),
    "a tensor of torch": (lambda leaf: torch.tensor(leaf), f"is a Tensor; {ARRAY}"),
    "a mask": (lambda leaf: np.ma.array(leaf, mask=True), f"is a MaskedArray; {ARRAY}"),
    "a shape alone": (lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), f"is a ShapeDtypeStruct; {ARRAY}"),
    "deleted": (deleted, "was deleted, or donated to a jitted function; save what the function returned, or save before it is"),
}


@pytest.mark.parametrize("like", ["jax", "hf"])
@pytest.mark.parametrize("case", NOT_READ)
def test_what_load_would_refuse_is_not_saved(case, like, tmp_path):
    change, said = NOT_READ[case]
    assert refused(lambda: save(with_leaf(change), tmp_path / "mine", like)).startswith(f"norm.bias {said}")
    assert not [*tmp_path.iterdir()]


def test_a_traced_model_is_not_saved(tmp_path):
    said = refused(lambda: save(traced(filled(CONFIGS["gpt"])), tmp_path / "mine"))
    assert said.endswith(" is traced and has no numbers yet; save the model outside of jax.jit, jax.grad and jax.vmap")


def test_a_model_that_lost_or_got_a_leaf_is_not_saved(tmp_path):
    def moved(leaf):
        return {"more": leaf}

    said = refused(lambda: save(with_leaf(moved), tmp_path / "mine"))
    assert said == "norm.bias.value.more is an ndarray, and a GPT of this configuration has none; take it out"
    said = refused(lambda: save(with_leaf(lambda leaf: ()), tmp_path / "mine"))
    assert said == "norm.bias is missing, and a GPT of this configuration has one; give a model that has all its weights"


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("like", ["jax", "hf"])
def test_arrays_of_numpy_are_saved_in_any_order_of_bytes(order, like, tmp_path):
    model = filled(GPTConfig(**SIZES))
    save(jax.tree.map(lambda leaf: np.asarray(leaf).astype(f"{order}f4"), model), tmp_path / "numpys", like)
    save(model, tmp_path / "jaxs", like)
    assert_same(load(tmp_path / "numpys"), load(tmp_path / "jaxs"))


def test_a_folder_that_is_there_stays(tmp_path):
    model = filled(CONFIGS["gpt"])
    save(model, tmp_path / "mine")
    assert "mine exists already; remove it, or give another name" in refused(
        lambda: save(filled(CONFIGS["encoder"]), tmp_path / "mine")
    )
    assert_same(load(tmp_path / "mine"), model)


def test_no_room(tmp_path):
    model = filled(GPTConfig(**(SIZES | {"d_ff": 400})))
    with room_for(2000):
        said = refused(lambda: save(model, tmp_path / "mine"), CheckpointError)
    assert said.endswith("mine cannot be written: File too large; give another name")
    assert not [*tmp_path.iterdir()]


def test_a_folder_without_a_model(tmp_path):
    assert refused(lambda: load(tmp_path)).endswith("is not a run folder: it has no config.json")
    model = filled(CONFIGS["gpt"])
    save(model, tmp_path / "mine")
    (tmp_path / "mine/manifest.json").unlink()
    config = tmp_path / "mine/config.json"
    written = json.loads(config.read_text())
    for change in ({"class": "GTP"}, {"config": {"vocab_size": 3}}, {"config": None}, {"dtype": "float33"}):
        config.write_text(json.dumps(written | change))
        assert "config.json does not describe a saved model" in refused(lambda: load(tmp_path / "mine"), CheckpointError)
    config.write_text(json.dumps(written))
    (tmp_path / "mine/weights.safetensors").unlink()
    assert "weights.safetensors cannot be read" in refused(lambda: load(tmp_path / "mine"), CheckpointError)


def test_the_folder_of_a_run(tmp_path):
    model = excite(abstract(GPTConfig(**SIZES)), seed=0)
    run = RunFolder.create(tmp_path / "run", {"recipe": {"model": asdict(model.config)}, "characters": "abcde"})
    save_weights(run.weights, model)
    assert_same(load(run.path), model)
