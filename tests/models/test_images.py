"""Images, settings and folders of vision models that are refused, each in one line."""

import re
import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

import jaxformer as jf
import torch_ref
from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.errors import CheckpointError, ConfigError, InputError
from jaxformer.models import abstract

B, V = 5, 23
SIZES = {"d_model": 12, "n_layers": 1, "n_heads": 3, "d_ff": 20, "layers": "rolled"}
IMAGE = {"image_size": (10, 16), "patch_size": (3, 4), "channels": 2}
LABELS = ("one", "two", "three")
TEXT = {**SIZES, "vocab_size": V, "context": 11}
SQUARE = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "num_channels": 2}
SQUARE |= {"image_size": 12, "patch_size": 4}


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


GOOD = VisionEncoderConfig(**SIZES, **IMAGE)
PAIR = DualEncoderConfig(vision=GOOD, text=jf.EncoderConfig(**TEXT, causal=True), width=9, end=4)
DISTILLED = replace(GOOD, distillation_token=True, head="distilled_image_classification", labels=LABELS)
BAD_IMAGES = {
    "channels last": (np.zeros((B, 10, 16, 2), np.float32), "channels first: images.transpose(0, 3, 1, 2)"),
    "width before height": (np.zeros((B, 2, 16, 10), np.float32), "height before width: images.swapaxes(2, 3)"),
    "no image": (np.zeros((0, 2, 10, 16), np.float32), "images: shape (0, 2, 10, 16); give (batch, 2, 10, 16)"),
    "one image": (np.zeros((2, 10, 16), np.float32), "(2, 10, 16); give (batch, 2, 10, 16): images[None]"),
    "another size": (np.zeros((B, 2, 20, 20), np.float32), "jaxformer.with_image_size(model, (20, 20))"),
    "other channels": (np.zeros((B, 3, 10, 16), np.float32), "images: shape (5, 3, 10, 16); give (batch, 2, 10, 16)"),
    "bytes": (np.zeros((B, 2, 10, 16), np.uint8), "images are of type uint8; give floats, scaled and normalised"),
    "not a number": (
        np.where(np.arange(16) == 3, np.nan, np.zeros((B, 2, 10, 16), np.float32)),
        "images[0, 0, 0, 3] = nan; give",
    ),
    "infinite": (jnp.zeros((B, 2, 10, 16)).at[1, 0, 2, 4].set(jnp.inf), "images[1, 0, 2, 4] = inf; give finite pixels"),
    "a list": ([[0.0]], "images are list; give an array of floats"),
    "torch's": (torch.zeros(B, 2, 10, 16), "images is a torch.Tensor; give the JAX model a numpy array"),
}


@pytest.fixture(scope="module")
def good():
    return jf.excite(abstract(GOOD), seed=1)


@pytest.mark.parametrize("name", [name for name in BAD_IMAGES if name not in ("a list", "torch's")])
def test_images_of_another_form_are_refused_in_one_line(name, good):
    images, said = BAD_IMAGES[name]
    with pytest.raises(InputError, match=re.escape(said)) as raised:
        good(images)
    assert "\n" not in str(raised.value)


def test_states_are_pooled_and_not_images(good):
    said = (
        r"states are of shape \(5, 2, 10, 16\); give those of encode, \(batch, 13, 12\): model.pool\(model.encode\(images\)\)"
    )
    twin = torch_ref.VisionEncoder(GOOD)
    for model, images in ((good, noise(B, 2, 10, 16)), (twin, torch.from_numpy(noise(B, 2, 10, 16)))):
        with pytest.raises(InputError, match=f"^{said}$"):
            model.pool(images)
        assert model.pool(model.encode(images)).shape == (B, 12)


def test_masks_need_a_token_and_a_bool_for_each_patch(good):
    images = noise(B, 2, 10, 16)
    with pytest.raises(InputError, match="no mask token"):
        good(images, masked=np.ones((B, 12), bool))
    model = jf.excite(abstract(replace(GOOD, mask_token=True)), seed=1)
    with pytest.raises(InputError, match=r"masked is bool of shape \(5, 11\); give booleans of shape \(5, 12\)"):
        model(images, masked=np.ones((B, 11), bool))


def test_a_text_without_its_end_is_refused():
    ids = np.random.default_rng(1).integers(5, V, (B, 11)).astype(np.int32)
    ids[[0, 1, 3, 4], 7] = 4
    with pytest.raises(InputError, match="row 2 has no end of a text, by which it is pooled; end it with id 4"):
        jf.excite(abstract(PAIR), seed=4)(noise(B, 2, 10, 16), ids)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_size": 224}, "image_size = 224 is no pair; give a tuple (height, width), in pixels"),
        ({"patch_size": (11, 4)}, "patch_size = (11, 4) exceeds image_size = (10, 16)"),
        ({"class_token": False}, "pooling = 'class' needs class_token = True; or set pooling = 'mean'"),
        ({"class_token": False, "pooling": "mean", "distillation_token": True}, "distillation_token = True needs class_token"),
        ({"head": "image_classification"}, "head = 'image_classification' needs labels"),
        ({"labels": LABELS}, "labels = ('one', 'two', 'three') is not read with head = 'none'"),
        ({"head": "distilled_image_classification", "labels": LABELS}, "needs distillation_token = True"),
        ({"pooler_activation": "relu"}, "pooler_activation = 'relu' is not read with pooling = 'class'"),
        ({"pooled_norm": True, "pooling": "mean"}, "pooled_norm = True is not read with pooling = 'mean'"),
        ({"pooled_norm": True, "stack_norm": False}, "pooled_norm = True needs the norm after the stack"),
        ({"layer_scale": 0.0}, "layer_scale = 0 is out of range"),
        ({"learned_positions": False}, "learned_positions = False leaves patches without an order; set rotary = 'half'"),
        ({"rotary": "half", "rotary_dim": 2}, "turns pairs by row and by column, and 2 units of a head are rotated"),
        ({"rotary": "half", "rotary_scaling": "linear", "rotary_factor": 2.0}, "rotary_scaling = 'linear' is for longer texts"),
        ({"activation": "quickgelu"}, "did you mean 'quick_gelu'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"end": None}, "text_pooling = 'end' needs the id"),
        ({"text_pooling": "last"}, "end = 4 is not read with text_pooling = 'last'"),
        ({"end": V}, f"end = {V} is out of range"),
        ({"image_projection": False}, "width = 9 is not the pooled image's 12"),
        ({"text": jf.EncoderConfig(**TEXT, pooler=True)}, "text has pooler = True"),
        ({"text": GOOD}, "text is a VisionEncoderConfig; give EncoderConfig(...)"),
        ({"vision": DISTILLED}, "vision has head = 'distilled_image_classification'"),
    ],
)
def test_settings_of_a_pair_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        replace(PAIR, **changes)


def test_a_type_that_is_not_loaded_is_named_with_the_closest(tmp_path):
    theirs = transformers.ASTModel(
        transformers.ASTConfig(
            hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=20, max_length=32, num_mel_bins=16
        )
    )
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.raises(
        CheckpointError, match=r"model_type = 'audio-spectrogram-transformer' is not loaded .* those of a '\w+'"
    ):
        jf.load(tmp_path / "theirs")


def test_a_head_that_is_not_loaded_is_named(tmp_path):
    config = transformers.ViTConfig(**SQUARE, intermediate_size=20)
    transformers.ViTForMaskedImageModeling(config).save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = jf.load(tmp_path / "theirs")
    assert "of a head for masked patches are not loaded" in str(told[0].message)
    assert model.config.mask_token


def test_a_bias_of_keys_alone_is_refused(tmp_path):
    config = transformers.DINOv3ViTConfig(**SQUARE, query_bias=False, value_bias=False, key_bias=True)
    transformers.DINOv3ViTModel(config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="keys have a bias, queries and values have none"):
        jf.load(tmp_path / "theirs")
