"""A model in a folder: what `save` writes, `load` gives back; a trained run's folder is opened too."""

import json
import re
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config.fixed_table import FixedTable
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.convert.safetensors_io import save_weights
from jaxformer.errors import CheckpointError, ConversionError, InputError
from jaxformer.folders.opened import load
from jaxformer.folders.written import save
from jaxformer.models import abstract, build
from jaxformer.nn.linear import Linear
from jaxformer.pytree import map_named, named_leaves
from jaxformer.training.runs import RunFolder
from tests.room import room_for
from tests.tiny import quick_key

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
    assert said == "a Linear cannot be saved; give a model of class GPT, Encoder, EncoderDecoder"
    said = refused(lambda: save(abstract(CONFIGS["gpt"]), tmp_path / "mine"), ConversionError)
    assert said.endswith("of the JAX model are shapes alone; give a model with weights")
    assert not [*tmp_path.iterdir()]


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
    model = build(GPTConfig(**SIZES), rngs=quick_key(0))
    run = RunFolder.create(tmp_path / "run", {"recipe": {"model": asdict(model.config)}, "characters": "abcde"})
    save_weights(run.weights, model)
    assert_same(load(run.path), model)
