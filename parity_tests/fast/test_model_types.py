"""Folders that transformers wrote: its model and ours, of every model type, are equal, and what we write is what it wrote."""

import functools
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import jaxformer as jf
from jaxformer.checkpoints.certified import call_jax as encoder_by_jax
from jaxformer.checkpoints.certified import call_torch as encoder_by_torch
from jaxformer.convert.config_values import normal_form, value_of
from jaxformer.convert.model_type import Field, Only
from jaxformer.convert.registry import MODEL_TYPES
from jaxformer.convert.rules import gradients_to_torch
from jaxformer.errors import ParityError
from jaxformer.parity.numerics.float64 import to_float64, torch_float64
from jaxformer.parity.numerics.metrics import Noise, check_float64, check_gradients
from jaxformer.parity.trace.rounding_error import perturbation
from parity_tests.support.helpers import noise, usually
from parity_tests.zoo.model_types import CASES, EOS, PAD, START, hidden_patches, ids, in_float64, make_case, pictures, texts

N_NEW = 7
ENDS = [EOS, 6]
HEADS = {"bert, masked", "roberta, sequence", "electra, tokens", "distilbert, answers"}
RARE = {"qwen3_moe, window", "mistral, all", "gpt_neox, in turn", "mt5", "llama, base", "opt, narrow"}
RARE |= {"minicpm3, plain", "ernie4_5_moe, all"}
RARE |= {"modernbert, biases", "modernbert-decoder, biases", "umt5, untied", "umt5, encoder"}
RARE |= {"camembert", "data2vec-text", "ernie", "blenderbot", "mt5, encoder"}
RARE |= {"deepseek_v2, greedy", "deepseek_v2, dense", "deepseek_v3, halves", "glm4_moe_lite", "youtu", "glm4_moe"}
RARE |= {"deit", "deit, images", "dinov2", "dinov2_with_registers, images", "siglip_vision_model, no head"}
RARE |= {"dinov3_vit, bare", "gemma4_text, keys as values"}
RARE |= {it for it in CASES if it.endswith((", masked", ", sequence", ", tokens", ", answers"))} - HEADS
OFTEN = usually(CASES, *(name for name in CASES if name not in RARE))
ONE_OF_EACH = usually(
    CASES,
    *("bart", "bert, masked", "falcon, slopes", "gpt_oss", "modernbert, mean", "t5, untied"),
)
"""Cases that usually run; `python -m tests.proven` runs all."""
LIKE_OTHERS = {"gpt_bigcode, heads", "falcon, in turn", "codegen"}
"""Types whose configuration another type describes as well: without their folder, they are written as that one."""
ALONE = usually([it for it in CASES if it not in LIKE_OTHERS], *(it for it in CASES if it not in RARE | LIKE_OTHERS))
WRITE = usually(
    [
        it
        for it in CASES
        if MODEL_TYPES[it.partition(",")[0]].config in (jf.GPTConfig, jf.EncoderDecoderConfig)
        and "base" not in it
        and "encoder" not in it
    ],
    "gemma3_text",
    "gemma4_text",
    "gpt_neox",
    "marian",
    "t5",
    "gpt2",
    "qwen2_moe",
    "deepseek_v3",
    "modernbert-decoder",
    "falcon, slopes",
)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    @functools.cache
    def made(name: str):
        return make_case(name, tmp_path_factory.mktemp("model") / "theirs")

    return made


SOURCE, TARGET = ids(4, 14, 0), ids(4, 6, 1)
FRAMES = noise(4, 14, 5, seed=9)
"""Two to a token, so that there are seven."""
LENGTHS = np.array([[14], [9], [5], [1]])
VALID = np.arange(14) < LENGTHS
LEFT = VALID[:, ::-1]
BETWEEN = np.roll(VALID, 3, 1)  # padding on either side
POSITIONS = np.maximum(BETWEEN.cumsum(1) - 1, 0).astype(np.int32)
"""As transformers' generate counts them."""


def call_torch(model: Any) -> torch.Tensor:
    """Logits, or states and what they are pooled to; of padding, nothing."""
    if model.main_input_name == "pixel_values" or hasattr(model.config, "vision_config"):
        return of_images_by_torch(model)
    source, target, valid, between, positions = map(torch.from_numpy, (SOURCE, TARGET, VALID, BETWEEN, POSITIONS))
    if model.config.model_type == "whisper":
        frames = torch.from_numpy(FRAMES).to(model.dtype).mT
        return model(frames, decoder_input_ids=target.long(), use_cache=False).logits
    if model.config.is_encoder_decoder and model.can_generate():
        return model(source.long(), valid.long(), decoder_input_ids=target.long(), use_cache=False).logits
    if model.can_generate():
        given = {"attention_mask": between.long(), "position_ids": positions.long(), "use_cache": False}
        return model(source.long(), **given).logits * between[..., None]
    return encoder_by_torch(model, source, valid)


def of_images_by_torch(model: Any) -> torch.Tensor:
    """The same of images, and of images and texts; of patches, some are masked where a model without a head can."""
    images = torch.from_numpy(pictures(model.config)).to(model.dtype)
    if hasattr(model.config, "vision_config"):
        return encoder_by_torch(model, images, torch.from_numpy(texts()))
    if model.config.model_type.startswith("dino") and not hasattr(model, "classifier"):
        model = functools.partial(model, bool_masked_pos=torch.from_numpy(hidden_patches(model.config)))
    return encoder_by_torch(model, images)


def call_jax(model: Any) -> jax.Array:
    """The same."""
    if isinstance(model, jf.DualEncoder):
        return model(pictures(model.config), texts())
    if isinstance(model, jf.VisionEncoder) and model.config.mask_token and model.head is None:
        states = model(pictures(model.config), masked=hidden_patches(model.config))
        return jnp.concatenate([states, model.pool(states)[:, None]], 1)
    if isinstance(model, jf.VisionEncoder):
        return encoder_by_jax(model, jnp.asarray(pictures(model.config)))
    mask = jf.padding_mask(jnp.asarray(VALID))
    if isinstance(model, jf.EncoderDecoder) and model.stem is not None:
        return model(FRAMES, TARGET)
    if isinstance(model, jf.EncoderDecoder):
        return model(SOURCE, TARGET, source_mask=mask)
    if isinstance(model, jf.GPT):
        logits = model(SOURCE, mask=jf.padding_mask(jnp.asarray(BETWEEN)), positions=jnp.asarray(POSITIONS))
        return logits * BETWEEN[..., None].astype(logits.dtype)
    return encoder_by_jax(model, jnp.asarray(SOURCE), jnp.asarray(VALID))


def own_rounding(model, cotangent, gradients):
    """How far the last bits of what torch computes move its gradients."""
    model.zero_grad()
    with torch_float64(), perturbation(0):
        (call_torch(model) * torch.from_numpy(cotangent)).sum().backward()
    parameters = dict(model.named_parameters())
    return {name: Noise.between(parameters[name].grad.numpy(), gradient.numpy()) for name, gradient in gradients.items()}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_output_and_gradients_are_torchs(name, case):
    kind, _, _, ours = case(name)
    theirs = in_float64(case(name))
    with torch_float64():
        output = call_torch(theirs)
        cotangent = noise(*output.shape).astype(np.float64)
        (output * torch.from_numpy(cotangent)).sum().backward()
    wanted = {key: it.grad for key, it in theirs.named_parameters() if it.grad is not None}
    with jax.enable_x64(True):

        def loss(model):
            found = call_jax(model)
            return (found * cotangent).sum(), found

        gradients, found = jax.jit(jax.grad(loss, has_aux=True))(to_float64(ours))
        check_float64("output", found, output)
        mine = gradients_to_torch(gradients, kind.memory_of(ours.config), dict(theirs.named_parameters()))
    frozen = {"pegasus": ("encoder", "decoder"), "whisper": ("encoder",)}
    tables = {f"model.{stack}.embed_positions.weight" for stack in frozen.get(kind.name, ())}
    unread = {name for name in mine if name.endswith("embeddings.mask_token") and hasattr(theirs, "classifier")}
    unread |= {name for name in mine if name.endswith(("e_score_correction_bias", "layer_scalar")) and not mine[name].any()}
    assert set(mine) - set(wanted) <= {"final_logits_bias"} | tables | unread
    mine = {key: mine[key] for key in wanted}
    try:
        check_gradients(mine, wanted)
    except ParityError:  # a model that is ill-conditioned on this processor: torch's own rounding is measured
        check_gradients(mine, wanted, own_rounding(theirs, cotangent, wanted))


@pytest.mark.first(8)
@pytest.mark.parametrize("name", OFTEN)
def test_what_is_written_is_what_transformers_wrote(name, case, tmp_path):
    kind, folder, _, ours = case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jf.save(ours, tmp_path / "ours", like="hf", source=folder)
    wanted, found = (safetensors.numpy.load_file(it / "model.safetensors") for it in (folder, tmp_path / "ours"))
    assert {key: it.tobytes() for key, it in found.items()} == {key: it.tobytes() for key, it in wanted.items()}
    configs = [json.loads((it / "config.json").read_text()) for it in (folder, tmp_path / "ours")]
    assert configs[0] == configs[1]
    assert told(getattr(transformers, kind.model), tmp_path / "ours") == [set(), set(), set()]
    missing, _, mismatched = told(transformers.AutoModel, tmp_path / "ours")
    assert [missing, mismatched] == told(transformers.AutoModel, folder)[::2]


@pytest.mark.slow
def test_tables_that_older_pegasus_files_leave_out(case, tmp_path):
    folder = case("pegasus").folder
    shutil.copytree(folder, tmp_path / "older")
    state = safetensors.numpy.load_file(folder / "model.safetensors")
    kept = {name: it for name, it in state.items() if "embed_positions" not in name}
    safetensors.numpy.save_file(kept, tmp_path / "older" / "model.safetensors")
    older = jf.load(tmp_path / "older")
    assert older.config.positions == "sinusoid_blocks"
    assert len(state) - len(kept) == 2
    again = transformers.PegasusForConditionalGeneration.from_pretrained(tmp_path / "older")  # its tables are not excited
    with torch.no_grad():
        np.testing.assert_allclose(call_jax(older), call_torch(again.eval()), atol=1e-5)


def told(cls: Any, folder: Path) -> list[set[str]]:
    """What transformers says about the tensors that it loads."""
    _, info = cls.from_pretrained(folder, output_loading_info=True)
    return [set(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")]


@pytest.mark.first(8)
@pytest.mark.parametrize("name", ALONE)
def test_a_configuration_alone_is_enough_to_write(name, case, tmp_path):
    """Without the folder that it came from."""
    kind, _, theirs, ours = case(name)
    with warnings.catch_warnings(record=True) as told_of:
        warnings.simplefilter("always")
        jf.save(ours, tmp_path / "ours", like="hf")
        assert isinstance(ours, jf.EncoderDecoder) == any("names no special tokens" in str(it.message) for it in told_of)
        back = jf.load(tmp_path / "ours")
    assert back.config == ours.config or kind.name == "xlm-roberta"
    with torch.no_grad():
        cls = getattr(transformers, kind.model) if name.endswith("encoder") else transformers.AutoModel
        other = cls.from_pretrained(tmp_path / "ours").eval()
        wanted = (theirs.base_model if kind.headed else theirs).state_dict()
        assert {key: it.numpy().tobytes() for key, it in other.state_dict().items() if "pooler" not in key} == {
            key: it.numpy().tobytes() for key, it in wanted.items() if not key.startswith(("pooler", "lm_head"))
        }


OLDER = {"rope_theta", "rope_scaling", "rope_local_base_freq", "rotary_emb_base", "rotary_pct", "sliding_window_pattern"}
OLDER |= {"partial_rotary_factor"}
"""Keys that transformers 5 reads, and does not write."""


NEEDED = {
    "deberta-v2": {"relative_attention": True, "share_att_key": True, "pos_att_type": "p2c|c2p", "position_buckets": 256},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 64, "n_shared_experts": 2},
    "glm4_moe": {"head_dim": 128},
}
"""Keys without which the default of transformers is no model."""


@pytest.mark.parametrize("kind", MODEL_TYPES.values(), ids=MODEL_TYPES)
def test_every_key_of_transformers_is_known_with_its_default(kind):
    """None stands for what is computed of other keys."""
    needed = NEEDED.get(kind.name, {})
    described = CONFIG_MAPPING[kind.name](**needed).to_dict()
    for key, it in kind.keys.items():
        if isinstance(it, Field) and key not in OLDER and it.default is not None and value_of(described, key, None) is not None:
            assert key in needed or it.default == value_of(described, key, None), key
        if isinstance(it, Only) and key in described:
            assert described[key] in (it.value, None), key
    for names in ({"pooler.dense.weight", "final_logits_bias", "lm_head.weight"}, set()):
        found, default = (kind.read(it, names) for it in (described, needed | {"model_type": kind.name}))
        assert normal_form(found) == normal_form(default)


def generated(model: Any, beams: int) -> np.ndarray:
    """What transformers writes after what it reads: the source of a translation, or a text that is padded on the left."""
    seq2seq = model.config.is_encoder_decoder
    start = {"decoder_start_token_id": START} if seq2seq else {}
    model.generation_config = transformers.GenerationConfig(pad_token_id=PAD, eos_token_id=ENDS, **start)
    given = {"max_new_tokens": N_NEW, "do_sample": False, "num_beams": beams}
    if model.config.model_type == "whisper":  # a single call, without windows
        found = model.generate(torch.from_numpy(FRAMES).mT, force_unique_generate_call=True, **given)
        return found[:, 1:].numpy()
    source, valid = (torch.from_numpy(it.copy()).long() for it in (SOURCE, VALID if seq2seq else LEFT))
    found = model.generate(torch.where(valid > 0, source, PAD), attention_mask=valid, **given)
    return found[:, 1 if seq2seq else source.shape[1] :].numpy()


@pytest.mark.first(3)
@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_they_write_the_same(name, beams, case):
    _, _, theirs, ours = case(name)
    wanted, beam, given = generated(theirs, beams), jf.BeamConfig(width=beams), {"eos": ENDS, "pad": PAD}
    if isinstance(ours, jf.EncoderDecoder):
        source, valid = (SOURCE, VALID) if ours.stem is None else (FRAMES, None)
        found = jf.translate_beam(ours, source, N_NEW, beam, start=START, valid=valid, **given).tokens[:, 0]
    elif beams == 1:
        found = jf.generate(ours, SOURCE, N_NEW, valid=LEFT, **given)
    else:
        found = jf.generate_beam(ours, SOURCE, N_NEW, beam, valid=LEFT, **given).tokens[:, 0]
    np.testing.assert_array_equal(found[:, : wanted.shape[1]], wanted)
    assert wanted.shape[1] > 1
    assert (found[:, wanted.shape[1] :] == PAD).all()
