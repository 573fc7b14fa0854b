"""Folders that transformers wrote: its model and ours, of every model type, are equal, and what we write is what it wrote."""

import functools
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import jaxformer as jf
from jaxformer.convert.families import MODEL_TYPES
from jaxformer.convert.families.bart import fairseq_sinusoids
from jaxformer.convert.model_type import Field, ModelType, Only
from jaxformer.convert.rules import gradients_to_torch
from jaxformer.nn.positions import sinusoid_blocks
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64, check_gradients
from parity_tests.helpers import noise

D, V, PAD, EOS, START, N_NEW = 12, 23, 1, 2, 3, 7
BERT = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
SEQ2SEQ = {"vocab_size": V, "d_model": D, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 18}
SEQ2SEQ |= {f"{stack}_attention_heads": 3 for stack in ("encoder", "decoder")}
SEQ2SEQ |= {f"{stack}_ffn_dim": 20 for stack in ("encoder", "decoder")}
IDS = {"bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": PAD}
SEQ2SEQ |= IDS | {"decoder_start_token_id": START}
GPT2 = {"vocab_size": V, "n_positions": 17, "n_embd": D, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": EOS}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2 | {"n_inner": 20, "layer_norm_epsilon": 1e-3, "activation_function": "relu"}),
    "gpt2, untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}),
    "gpt2, base": ("GPT2Model", GPT2),
    "bert": ("BertModel", BERT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-4, "type_vocab_size": 3, "pad_token_id": 2}),
    "bert, masked": ("BertForMaskedLM", BERT),
    "bert, classes": ("BertForSequenceClassification", BERT),
    "distilbert": ("DistilBertModel", {"vocab_size": V, "dim": D, "n_layers": 2, "n_heads": 3, "hidden_dim": 20}),
    "roberta": ("RobertaModel", BERT | IDS | {"max_position_embeddings": 20}),
    "xlm-roberta": ("XLMRobertaModel", BERT | IDS | {"max_position_embeddings": 20}),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ | {"scale_embedding": True}),
    "bart, base": ("BartModel", SEQ2SEQ),
    "marian": ("MarianMTModel", SEQ2SEQ | {"activation_function": "swish", "scale_embedding": True}),
    "marian, two": ("MarianMTModel", SEQ2SEQ | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V + 2}),
    "mbart": ("MBartForConditionalGeneration", SEQ2SEQ),
    "m2m_100": ("M2M100ForConditionalGeneration", SEQ2SEQ),
}
ALL = pytest.mark.parametrize("name", CASES)
WRITE = [name for name in CASES if "bert" not in name and "base" not in name]


class Case(NamedTuple):
    """What is in a folder, as transformers loads it and as we do."""

    kind: ModelType
    folder: Path
    torch: Any
    jax: Any


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    @functools.cache
    def made(name: str) -> Case:
        cls = getattr(transformers, CASES[name][0])
        model = jf.excite(cls(cls.config_class(**CASES[name][1])), seed=5)
        with torch.no_grad():
            for biases in (it for key, it in model.named_buffers() if key == "final_logits_bias"):
                biases.copy_(torch.from_numpy(noise(*biases.shape, seed=7)))
        folder = tmp_path_factory.mktemp(cls.__name__) / "theirs"
        model.save_pretrained(folder)
        kind = MODEL_TYPES[model.config.model_type]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of heads that are not loaded, which other tests read
            return Case(kind, folder, getattr(transformers, kind.model).from_pretrained(folder).eval(), jf.load(folder))

    return made


def ids(rows: int, length: int, seed: int) -> np.ndarray:
    """Ids of which none is special."""
    return np.random.default_rng(seed).integers(4, V, (rows, length)).astype(np.int32)


SOURCE, TARGET = ids(3, 9, 0), ids(3, 6, 1)
VALID = np.arange(9) < np.array([[9], [6], [1]])


def call_torch(model: Any, pooled: bool) -> torch.Tensor:
    """Logits, or states and what they are pooled to; of padding, nothing."""
    source, target, valid = (torch.from_numpy(it).long() for it in (SOURCE, TARGET, VALID))
    if model.config.is_encoder_decoder:
        return model(source, valid, decoder_input_ids=target, use_cache=False).logits
    found = model(source, attention_mask=valid)
    states = found[0] * valid[..., None]
    return torch.cat([states, found.pooler_output[:, None]], 1) if pooled else states


def call_jax(model: Any) -> jax.Array:
    """The same."""
    mask = jf.padding_mask(jnp.asarray(VALID))
    if isinstance(model, jf.EncoderDecoder):
        return model(SOURCE, TARGET, source_mask=mask)
    states = model(SOURCE, mask=mask)
    found = states * VALID[..., None].astype(states.dtype)
    return jnp.concatenate([found, model.pool(states)[:, None]], 1) if pools(model) else found


def pools(model: Any) -> bool:
    return isinstance(model, jf.Encoder) and model.config.pooler


@ALL
def test_output_and_gradients_are_torchs(name, case):
    kind, folder, _, ours = case(name)
    theirs = with_exact_sinusoids(getattr(transformers, kind.model).from_pretrained(folder).eval().double())
    output = call_torch(theirs, pools(ours))
    cotangent = noise(*output.shape).astype(np.float64)
    (output * torch.from_numpy(cotangent)).sum().backward()
    wanted = {key: it.grad for key, it in theirs.named_parameters() if it.grad is not None}
    with jax.enable_x64(True):

        def loss(model):
            found = call_jax(model)
            return (found * cotangent).sum(), found

        gradients, found = jax.jit(jax.grad(loss, has_aux=True))(to_float64(ours))
        check_float64("output", found, output)
        mine = gradients_to_torch(gradients, kind.family_of(ours.config), dict(theirs.named_parameters()))
    assert set(mine) - set(wanted) <= {"final_logits_bias"}
    check_gradients({key: mine[key] for key in wanted}, wanted)


def with_exact_sinusoids(model: Any) -> Any:
    """Tables that torch rounds to float32, in float64."""
    for stack in ("encoder", "decoder"):
        if model.config.model_type == "m2m_100":
            positions = getattr(model.model, stack).embed_positions
            positions.weights = torch.from_numpy(fairseq_sinusoids(*positions.weights.shape, PAD).array.copy())
        if model.config.model_type == "marian":
            weight = getattr(model.model, stack).embed_positions.weight.requires_grad_(False)
            weight.copy_(torch.from_numpy(sinusoid_blocks(*weight.shape)))
    return model


@ALL
def test_what_is_written_is_what_transformers_wrote(name, case, tmp_path):
    kind, folder, _, ours = case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jf.save(ours, tmp_path / "ours", like="hf", source=folder)
    wanted, found = (safetensors.numpy.load_file(it / "model.safetensors") for it in (folder, tmp_path / "ours"))
    if with_other_head := CASES[name][0].startswith("BertFor"):
        wanted = {key.removeprefix("bert."): it for key, it in wanted.items() if not kind.head_of(key)}
    assert {key: it.tobytes() for key, it in found.items()} == {key: it.tobytes() for key, it in wanted.items()}
    configs = [json.loads((it / "config.json").read_text()) for it in (folder, tmp_path / "ours")]
    assert configs[0] | ({"architectures": ["BertModel"]} if with_other_head else {}) == configs[1]
    without = {"pooler.dense.weight", "pooler.dense.bias"} if name == "bert, masked" else set()
    assert told(getattr(transformers, kind.model), tmp_path / "ours") == [without, set(), set()]
    missing, _, mismatched = told(transformers.AutoModel, tmp_path / "ours")
    assert [missing, mismatched] == told(transformers.AutoModel, folder)[::2]


def told(cls: Any, folder: Path) -> list[set[str]]:
    """What transformers says about the tensors that it loads."""
    _, info = cls.from_pretrained(folder, output_loading_info=True)
    return [set(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")]


@ALL
def test_a_configuration_alone_is_enough_to_write(name, case, tmp_path):
    """Without the folder that it came from."""
    kind, _, theirs, ours = case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jf.save(ours, tmp_path / "ours", like="hf")
        back = jf.load(tmp_path / "ours")
    assert back.config == ours.config or kind.name == "xlm-roberta"
    with torch.no_grad():
        other = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
        wanted = theirs.base_model.state_dict()
        assert {key: it.numpy().tobytes() for key, it in other.state_dict().items() if "pooler" not in key} == {
            key: it.numpy().tobytes() for key, it in wanted.items() if "pooler" not in key
        }


@pytest.mark.parametrize("kind", MODEL_TYPES.values(), ids=MODEL_TYPES)
def test_every_key_of_transformers_is_known_with_its_default(kind):
    described = CONFIG_MAPPING[kind.name]().to_dict()
    for key, it in kind.keys.items():
        if isinstance(it, Field) and key != "decoder_vocab_size":  # None there means as many as vocab_size
            assert it.default == described[key], key
        if isinstance(it, Only) and key in described:
            assert it.value == described[key], key
    names = {"pooler.dense.weight", "final_logits_bias"}
    assert kind.read(described, names) == kind.read({"model_type": kind.name}, names)


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("beams", [1, 3])
def test_they_write_the_same(name, beams, case):
    _, _, theirs, ours = case(name)
    theirs.generation_config = transformers.GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=START)
    given = {"max_new_tokens": N_NEW, "do_sample": False, "num_beams": beams}
    source, valid = (torch.from_numpy(it).long() for it in (SOURCE, VALID))
    beam = jf.BeamConfig(width=beams)
    if isinstance(ours, jf.GPT):
        wanted = theirs.generate(source[:1], **given)[:, SOURCE.shape[1] :]
        found = jf.generate_beam(ours, SOURCE[:1], N_NEW, beam, eos=EOS, pad=PAD).tokens[:, 0]
    else:
        wanted = theirs.generate(source, attention_mask=valid, **given)[:, 1:]
        found = jf.translate_beam(ours, SOURCE, N_NEW, beam, start=START, eos=EOS, pad=PAD, valid=VALID).tokens[:, 0]
    np.testing.assert_array_equal(found[:, : wanted.shape[1]], wanted.numpy())
    assert wanted.shape[1] > 1
    assert (found[:, wanted.shape[1] :] == PAD).all()
