"""Damaged folders of transformers': one error lists all that is wrong, and nothing is half-loaded, half-written or executed."""

import json
import pickle
import re
import shutil
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch

import jaxformer as jf
from jaxformer.convert.registry import MODEL_TYPES
from jaxformer.errors import CheckpointError, ConfigError, ConversionError, InputError, JaxformerError, type_of

CONFIG = jf.GPTConfig(
    vocab_size=7, context=5, d_model=4, n_layers=2, n_heads=2, d_ff=6, projections="fused", activation="gelu_tanh", tied=True
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FC = "transformer.h.0.mlp.c_fc.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    draw = np.random.default_rng(0)
    model = jax.tree.map(lambda leaf: jnp.asarray(draw.standard_normal(leaf.shape), leaf.dtype), jf.abstract(CONFIG))
    folder = tmp_path_factory.mktemp("hf") / "whole"
    jf.save(model, folder, like="hf")
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "it")
    return tmp_path / "it"


def said(folder: Path, kind: type[JaxformerError] = CheckpointError, **given) -> str:
    with pytest.raises(kind) as caught:
        jf.load(folder, **given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def describe(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change(folder: Path, **tensors) -> None:
    """Other tensors by their names, of which None takes one out."""
    state = safetensors.numpy.load_file(folder / WEIGHTS) | {name.replace("_dot_", "."): it for name, it in tensors.items()}
    safetensors.numpy.save_file({name: it for name, it in state.items() if it is not None}, folder / WEIGHTS)


def tensor(folder: Path, name: str) -> np.ndarray:
    return safetensors.numpy.load_file(folder / WEIGHTS)[name]


def test_the_whole_folder_loads(whole):
    assert jf.load(whole).config.d_model == 4


SWITCHES = {
    "scale_attn_by_inverse_layer_idx": (True, "the scores of layer i would lack the factor 1 / (i + 1)"),
    "reorder_and_upcast_attn": (True, "in half precision, scores would be rounded at other places"),
    "add_cross_attention": (True, "a second attention would be left out"),
    "pruned_heads": ({"0": [1]}, "heads that were taken out would be missing"),
    "quantization_config": ({"bits": 4}, "the weights are quantized, and would be read as they are"),
    "auto_map": ({"AutoModel": "x.Y"}, "the model has code of its own, which would not run"),
    "activation_function": ("mish", "is not known, and something else would be computed"),
    "sliding_window": (128, "is not a known key; take it out if it changes no output"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_that_we_have_not(name, folder):
    value, why = SWITCHES[name]
    describe(folder, **{name: value})
    message = said(folder)
    assert f"{name} = {value!r}" in message
    assert why in message


def test_all_switches_at_once(folder):
    describe(folder, **{name: value for name, (value, _) in SWITCHES.items()})
    with pytest.raises(CheckpointError) as caught:
        jf.load(folder)
    assert all(why in str(caught.value) for _, why in SWITCHES.values())


def test_a_description_of_no_model(folder):
    describe(folder, n_embd=5)
    assert "it describes no model: n_head = 2 does not divide n_embd = 5" in said(folder)
    describe(folder, n_embd="4")
    assert "n_embd = '4' is not a whole number" in said(folder)
    describe(folder, model_type="gtp2")
    assert "model_type = 'gtp2' is not loaded (`jaxformer families` lists those that are); " in said(folder)
    assert "names of its tensors are those of a 'gpt2', which may compute something else" in said(folder)
    describe(folder, model_type=["gpt2"])
    assert "is not loaded" in said(folder)
    (folder / "config.json").write_text("{")
    assert "config.json is no JSON" in said(folder)


def test_the_description_of_another_family(folder):
    (folder / "config.json").write_text('{"model_type": "distilbert", "dim": 4, "n_heads": 2, "n_layers": 2}')
    message = said(folder)
    assert "missing, first embeddings.LayerNorm.bias" in message
    assert "left over, first transformer.h.0.attn.c_attn.bias" in message


TENSORS = {
    "missing": ({FC: None}, f"1 missing, first {FC}"),
    "extra": ({"transformer.h.0.more": np.ones(2, np.float32)}, "1 left over, first transformer.h.0.more"),
    "another shape": ({FC: np.ones((4, 7), np.float32)}, f"{FC} is float32[4, 7] as stack.blocks.feed_forward.up.kernel"),
    "transposed": ({FC: np.ones((6, 4), np.float32)}, f"{FC} is float32[6, 4] as stack.blocks.feed_forward.up.kernel"),
    "of integers": ({FC: np.ones((4, 6), np.int32)}, f"{FC} is int32[4, 6]"),
    "of another type": ({"transformer.h.1.mlp.c_fc.weight": np.ones((4, 6), np.float16)}, "is float16[4, 6]"),
    "not finite": ({FC: np.full((4, 6), np.nan, np.float32)}, "stack.blocks.feed_forward.up.kernel holds NaN or infinity"),
    "twice": ({FC.removeprefix("transformer."): np.ones((4, 6), np.float32)}, "1 left over"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_does_not_fit(name, folder):
    tensors, why = TENSORS[name]
    change(folder, **tensors)
    assert why in said(folder)


def test_a_tensor_of_another_name(folder):
    change(folder, **{FC: None, FC.replace("c_fc", "c_fd"): tensor(folder, FC)})
    message = said(folder)
    assert f"1 missing, first {FC} (is it transformer.h.0.mlp.c_fd.weight?)" in message
    assert "1 left over" in message


def test_both_kinds_are_told_at_once(folder):
    change(folder, **{FC: np.ones((6, 4), np.float32), "transformer.ln_f.bias": None, "more": np.ones(1, np.float32)})
    message = said(folder)
    assert all(
        it in message for it in ("1 missing, first transformer.ln_f.bias", "1 left over, first more", f"{FC} is float32")
    )


@pytest.mark.parametrize("where", ["prefix", "none", "wrapper"])
def test_prefixes_that_transformers_takes(where, folder, whole):
    state = safetensors.numpy.load_file(folder / WEIGHTS)
    renamed = {
        "prefix": state,
        "none": {name.removeprefix("transformer."): it for name, it in state.items()},
        "wrapper": {f"_orig_mod.{name}": it for name, it in state.items()},
    }[where]
    safetensors.numpy.save_file(renamed, folder / WEIGHTS)
    found = jf.load(folder)
    assert np.array_equal(found.embed.token.table[...], jf.load(whole).embed.token.table[...])
    assert np.array_equal(jf.load(folder / WEIGHTS, family="gpt2").embed.token.table[...], found.embed.token.table[...])


def test_names_of_older_files(tmp_path):
    """BERT's first files have gamma and beta, and a head whose names stand beside `bert.`"""
    sizes = {"vocab_size": 7, "context": 5, "d_model": 4, "n_layers": 1, "n_heads": 2, "d_ff": 6, "token_types": 2}
    config = jf.EncoderConfig(**sizes, norm_position="post", embedding_norm=True, pooler=True, padding_idx=0)
    model = jf.excite(jf.abstract(config), seed=0)
    jf.save(model, tmp_path / "it", like="hf")
    state = safetensors.numpy.load_file(tmp_path / "it" / WEIGHTS)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {f"bert.{re.sub('|'.join(old), lambda it: old[it[0]], name)}": it for name, it in state.items()}
    renamed["cls.predictions.bias"] = np.ones(7, np.float32)
    safetensors.numpy.save_file(renamed, tmp_path / "it" / WEIGHTS)
    with pytest.warns(UserWarning, match=r"cls.predictions.bias of a head for masked words are not loaded"):
        found = jf.load(tmp_path / "it")
    one, two = jax.tree.leaves(found), jax.tree.leaves(model)
    assert all(np.array_equal(*both) for both in zip(one, two, strict=True))


def test_types_are_read_without_torch(folder, whole):
    for dtype in (jnp.bfloat16, np.float16):
        state = safetensors.numpy.load_file(whole / WEIGHTS)
        safetensors.numpy.save_file({name: it.astype(dtype) for name, it in state.items()}, folder / WEIGHTS)
        found = jf.load(folder)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype)}
        assert {leaf.dtype for leaf in jax.tree.leaves(jf.load(folder, dtype="float32"))} == {jnp.dtype(np.float32)}


def test_a_type_that_cannot_hold_it(folder):
    change(folder, **{FC: np.full((4, 6), 1e6, np.float32)})
    assert said(folder, InputError, dtype="float16").startswith("dtype = float16 cannot hold a number as large as 1.0e+06")


DAMAGES = {
    "empty": lambda data: b"",
    "a truncated header": lambda data: data[:40],
    "truncated numbers": lambda data: data[:-4],
    "more after it": lambda data: data + b"1234",
    "a flipped brace": lambda data: data[:8] + b"[" + data[9:],
    "a flipped offset": lambda data: data.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1),
    "a flipped shape": lambda data: data.replace(b'"shape":[7,4]', b'"shape":[7,5]', 1),
    "a type that is none": lambda data: data.replace(b'"F32"', b'"F33"', 1),
    "10^12 bytes": lambda data: struct.pack("<Q", 10**12) + data[8:],
    "2^64 bytes": lambda data: b"\xff" * 8 + data[8:],
    "a pickle": lambda data: pickle.dumps({"a": 1}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file(name, folder):
    data = (folder / WEIGHTS).read_bytes()
    damaged = DAMAGES[name](data)
    assert damaged != data
    (folder / WEIGHTS).write_bytes(damaged)
    assert "is not a safetensors file" in said(folder)


class Evil:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth"])
def test_a_pickle_runs_no_code(suffix, tmp_path):
    path, witness = tmp_path / f"it{suffix}", tmp_path / "witness"
    torch.save({"a": Evil(witness)}, path)
    assert "is not a file of tensors alone" in said(path, family="gpt2")
    path.write_bytes(pickle.dumps(Evil(witness)))
    assert "is not a file of tensors alone" in said(path, family="gpt2")
    assert not witness.exists()


def test_a_file_without_tensors(tmp_path):
    torch.save({"step": 3, "name": "x"}, tmp_path / "it.pt")
    assert "holds no state_dict: step is an int, name is a str" in said(tmp_path / "it.pt", family="gpt2")
    (tmp_path / "it.txt").write_text("x")
    assert "ends in no known way" in said(tmp_path / "it.txt", InputError, family="gpt2")


ODD = {
    "float8": (lambda: torch.zeros(2).to(torch.float8_e4m3fn), "w is of type float8_e4m3fn"),
    "half complex": (lambda: torch.zeros(2, dtype=torch.complex32), "w is of type complex32"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "w is of type qint8"),
    "meta": (lambda: torch.zeros(2, device="meta"), "w is on device meta"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "w is of layout sparse_coo"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), "w is of layout sparse_csr"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "w is of layout nested"),
    "conjugated": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "w is a lazy conjugate or negative"),
    "expanded": (lambda: torch.zeros(1).expand(10**12), "w is of 4,000,000,000,000 bytes, of which the file holds 4"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ODD)
def test_a_tensor_without_plain_numbers(kind, tmp_path):
    make, why = ODD[kind]
    torch.save({"plain": torch.ones(1, dtype=torch.bfloat16), "w": make()}, tmp_path / "it.pt")
    message = said(tmp_path / "it.pt", family="gpt2")
    assert message == f"{tmp_path}/it.pt: {why}; save plain tensors, such as float32 on the CPU"


@pytest.mark.parametrize("name", [1, None, True, (1, 2)])
def test_a_key_that_is_no_name(name, tmp_path):
    torch.save({"a": torch.zeros(1), name: torch.zeros(1)}, tmp_path / "it.pt")
    assert f"holds no state_dict: its key {name!r} is {type_of(name)}; save" in said(tmp_path / "it.pt", family="gpt2")


def sharded(folder: Path, **names: str) -> None:
    """The folder in two files; `names` are other names in the index."""
    state = safetensors.numpy.load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(state)}
    for file in {*files.values()}:
        safetensors.numpy.save_file({name: it for name, it in state.items() if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files | names}))


def test_several_files(folder, whole):
    sharded(folder)
    one, two = jax.tree.leaves(jf.load(folder)), jax.tree.leaves(jf.load(whole))
    assert all(np.array_equal(*both) for both in zip(one, two, strict=True))
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is missing" in said(folder)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "..", "", "x.py"])
def test_an_index_that_points_elsewhere(name, folder):
    sharded(folder, more=name)
    assert f"{name!r} is not a plain name of a weights file" in said(folder)


def test_an_index_that_is_wrong(folder):
    sharded(folder, more="model-00001-of-00002.safetensors")
    assert "names tensors that no file has: more" in said(folder)
    for text in ("{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'):
        (folder / INDEX).write_text(text)
        assert "is not an index of weights" in said(folder)
    (folder / INDEX).unlink()
    assert "holds no weights: it has none of model.safetensors" in said(folder)


def test_a_tensor_in_two_files(folder):
    sharded(folder)
    both = [folder / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    first = safetensors.numpy.load_file(both[0])
    safetensors.numpy.save_file(safetensors.numpy.load_file(both[1]) | dict([next(iter(first.items()))]), both[1])
    assert "is in another file too" in said(folder)


def test_what_cannot_be_written(tmp_path, whole):
    model = jf.load(whole)
    with pytest.raises(CheckpointError, match="cannot be written"):
        jf.save(model, Path("/proc/it"), like="hf")
    biased = jf.GPT(
        jf.GPTConfig(vocab_size=7, context=5, d_model=4, n_layers=1, n_heads=2, d_ff=6, head_bias=True, gated=True),
        rngs=jax.random.key(0),
    )
    with pytest.raises(ConversionError) as caught:
        jf.save(biased, tmp_path / "it", like="hf")
    assert "no place for gated = True (False there); head_bias = True (False there)" in str(caught.value)
    assert not (tmp_path / "it").exists()


def test_a_field_without_a_place(tmp_path):
    config = jf.GPTConfig(
        vocab_size=7, context=5, d_model=4, n_layers=1, n_heads=2, d_ff=6, embedding_scale=True, logits_scale=2.0
    )
    with pytest.raises(ConversionError) as caught:
        jf.save(jf.excite(jf.abstract(config), seed=0), tmp_path / "it", like="hf")
    assert str(caught.value) == (
        "transformers' gpt2 has no place for embedding_scale = True (False there); logits_scale = 2.0 (1.0 there)"
    )
    assert not (tmp_path / "it").exists()


def test_settings_of_training_are_a_warning(tmp_path):
    config = jf.GPTConfig(vocab_size=7, context=5, d_model=4, n_layers=1, n_heads=2, d_ff=6, feed_forward_dropout=0.5)
    with pytest.warns(UserWarning, match=r"no place for feed_forward_dropout = 0.5 \(0.0 there\): training needs it"):
        jf.save(jf.excite(jf.abstract(config), seed=0), tmp_path / "it", like="hf")


def test_a_head_that_is_not_loaded(folder):
    change(folder, **{"score.weight": np.ones((2, 4), np.float32)})
    with pytest.warns(UserWarning, match=r"score.weight of a head for classification are not loaded: this model has none"):
        jf.load(folder)


def test_a_head_of_its_own_that_is_not_there(folder, tmp_path):
    """What has none is written without one; a folder that claims to have it lost it."""
    describe(folder, tie_word_embeddings=False)
    assert "lm_head.weight is missing, and the head of a GPT2LMHeadModel is not tied" in said(folder)
    describe(folder, architectures=["GPT2Model"])
    with pytest.warns(UserWarning, match="has no head for tokens: its states are right"):
        model = jf.load(folder)
    assert model.head.kernel is None
    with pytest.warns(UserWarning, match="no head"):
        jf.save(model, tmp_path / "back", like="hf", source=folder)
    assert {*safetensors.numpy.load_file(tmp_path / "back" / WEIGHTS)} == {
        name.removeprefix("transformer.") for name in safetensors.numpy.load_file(folder / WEIGHTS) if "lm_head" not in name
    }
    assert json.loads((tmp_path / "back/config.json").read_text())["tie_word_embeddings"] is False


def test_more_layers_than_tensors(folder):
    describe(folder, n_layer=10**9)
    assert "config.json has n_layer = 1000000000, and the files have 28 tensors in all" in said(folder)


DIVIDED = {
    "gpt_neox": {"num_attention_heads": 0},
    "gemma2": {"query_pre_attn_scalar": 0},
    "t5": {"d_model": 0},
    "m2m_100": {"pad_token_id": 10**5},
    "llama": {"rope_parameters": "x"},
}


@pytest.mark.parametrize("name", DIVIDED)
def test_a_number_that_makes_no_model(name):
    with pytest.raises(ConfigError, match=f"config.json of a {name} cannot be used: it describes no model"):
        MODEL_TYPES[name].read({"model_type": name} | DIVIDED[name], {"lm_head.weight"})


def test_a_file_says_too_little(folder, tmp_path):
    path = shutil.copy(folder / WEIGHTS, tmp_path / "alone.safetensors")
    assert "holds tensors alone; give their family: --family gpt2, in Python family='gpt2'" in said(path, InputError)
    (tmp_path / "text.txt").write_text("A text.")
    assert "text.txt ends in no known way; give a file that ends in .safetensors" in said(tmp_path / "text.txt", InputError)
    assert "does not say how many heads" in said(path, InputError, family="gpt2")
    assert "is not known; did you mean 'gpt2'?" in said(path, JaxformerError, family="gtp2")
    assert jf.load(path, family="gpt2", config=CONFIG).config == CONFIG
    assert "leave them out" in said(folder, InputError, family="gpt2")


def test_a_name_that_is_no_folder(monkeypatch):
    import huggingface_hub

    def offline(*_, **__):
        raise OSError("no network\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    assert (
        said("owner/model", InputError) == "owner/model is not here, and cannot be had from the hub: no network; give a folder"
    )
    assert "is not there; give a folder that is" in said("tests/nothing", InputError)
    assert "is not there" in said("/nothing/here", InputError)


def test_a_name_on_the_hub(monkeypatch, folder):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: folder if name == "owner/model" else None)
    assert jf.load("owner/model").config.d_model == 4
