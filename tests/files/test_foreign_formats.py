"""Adapters, files of other libraries and heads that are not loaded: each is named as what it is, with what to do."""

import json
import shutil
import warnings
import zipfile

import pytest
import transformers

import jaxformer as jf
from jaxformer.checkpoints.foreign import ADAPTER
from jaxformer.errors import CheckpointError, InputError
from parity_tests.zoo.model_types import MODERN, T5

FILES = {
    "model.Q4_K_M.gguf": "is a GGUF file of llama.cpp",
    "flax_model.msgpack": "holds weights of flax; where that is installed, transformers 4 reads it with from_flax=True",
    "tf_model.h5": "holds weights of TensorFlow; where that is installed, transformers 4 reads it with from_tf=True",
    "model.ckpt.index": "is a part of a checkpoint of TensorFlow 1",
    "model.ckpt": "is a part of a checkpoint of TensorFlow 1",
    "model.onnx": "is a program of ONNX",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_format(name, tmp_path):
    """By itself, and in a folder that holds nothing else to load."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / name).write_bytes(b"GGUF")
    for place, given in ((tmp_path / name, {}), (tmp_path / name, {"family": "gpt2"}), (tmp_path, {})):
        with pytest.raises(InputError) as caught:
            jf.load(place, **given)
        assert f"{name} {FILES[name]}" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_of_lightning(tmp_path):
    with zipfile.ZipFile(tmp_path / "last.ckpt", "w") as file:
        file.writestr("archive/data.pkl", b"")
    with pytest.raises(InputError, match=r"is a checkpoint of Lightning: save torch.load\(it\)"):
        jf.load(tmp_path / "last.ckpt")


def test_a_file_beside_weights_changes_nothing(tmp_path):
    config = jf.GPTConfig(vocab_size=5, context=4, d_model=4, n_layers=1, n_heads=2, d_ff=6)
    jf.save(jf.excite(jf.abstract(config), seed=0), tmp_path / "it")
    (tmp_path / "it/tf_model.h5").write_bytes(b"x")
    assert jf.load(tmp_path / "it").config == config


@pytest.mark.parametrize("text", ['{"peft_type": "LORA", "base_model_name_or_path": "some/model"}', "[", "[]"])
def test_an_adapter(text, tmp_path):
    """Beside a whole model too, of which transformers would load the adapter."""
    (tmp_path / ADAPTER).write_text(text)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds an adapter of PEFT \(kind: .*merge_and_unload") as caught:
        jf.load(tmp_path)
    assert ("kind: LORA; base: some/model" in str(caught.value)) == (len(text) > 2)


HEADS = {
    "LlamaForQuestionAnswering": (MODERN, "question answering"),
    "T5ForTokenClassification": (T5, "token classification"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_whose_base_has_other_names(name, tmp_path):
    """What the line advises is what loads."""
    sizes, head = HEADS[name]
    cls = getattr(transformers, name)
    cls(cls.config_class(**sizes)).save_pretrained(tmp_path / "it")
    with pytest.raises(CheckpointError) as caught:
        jf.load(tmp_path / "it")
    assert str(caught.value).startswith(f"{tmp_path}/it: it holds a {name}, whose head ({head}) is not loaded; save its base")
    cls.from_pretrained(tmp_path / "it").base_model.save_pretrained(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert jf.load(tmp_path / "base").config.n_layers == 2


def test_a_table_of_positions_that_older_files_describe(tmp_path):
    """`extra_pos_embeddings`, which no version of transformers 5 reads."""
    sizes = {"vocab_size": 9, "d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 8}
    sizes |= {f"{stack}_{what}": 2 for stack in ("encoder", "decoder") for what in ("attention_heads", "ffn_dim")}
    transformers.MarianMTModel(transformers.MarianConfig(**sizes)).save_pretrained(tmp_path / "it")
    shutil.copytree(tmp_path / "it", tmp_path / "older")
    path = tmp_path / "older/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"extra_pos_embeddings": 9}))
    assert jf.load(tmp_path / "older").config == jf.load(tmp_path / "it").config
