"""Encoders of images, and of images and texts: outputs, gradients, other image sizes, losses, and bad input."""

import functools
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

import jaxformer as jf
import torch_ref.models as torch_models
from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.initialisers import initialisers
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.rules import gradients_to_torch
from jaxformer.errors import ConfigError
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.evaluation.mutants.images import column_by_column
from jaxformer.models import abstract, initialiser_table
from jaxformer.nn import images
from jaxformer.nn.resampling import resample_grid
from jaxformer.parity.numerics.float64 import to_float64, torch_float64
from jaxformer.parity.numerics.metrics import check_float64, check_gradients
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.training import contrastive
from parity_tests.support.helpers import D, F, L, N, V, check_function, checks, noise, run_check, twins, usually
from torch_ref.models.init import named_tensors
from torch_ref.nn.resampling import resample_grid as torch_resample_grid
from torch_ref.training import contrastive as torch_contrastive

B = 5
SIZES = {"d_model": D, "n_layers": L, "n_heads": N, "d_ff": F, "layers": "rolled"}
IMAGE = {"image_size": (10, 16), "patch_size": (3, 4), "channels": 2}
LABELS = ("one", "two", "three")
IMAGES = {
    "class token, registers, masks, layer scale, dense": VisionEncoderConfig(
        **SIZES, **IMAGE, register_tokens=2, mask_token=True, layer_scale=0.3, pooling="dense", pooler_activation="relu"
    ),
    "distilled": VisionEncoderConfig(
        **SIZES, **IMAGE, distillation_token=True, head="distilled_image_classification", labels=LABELS
    ),
    "attention pooling of patches alone": VisionEncoderConfig(
        **SIZES, **IMAGE, class_token=False, pooling="attention", projections="fused", activation="gelu_tanh"
    ),
    "norm before the blocks and of the pooled": VisionEncoderConfig(
        **SIZES, **IMAGE, patch_bias=False, embedding_norm=True, pooled_norm=True, activation="quick_gelu"
    ),
    "class and mean": VisionEncoderConfig(
        **SIZES, **IMAGE, register_tokens=3, pooling="class_mean", head="image_classification", labels=LABELS, gated=True
    ),
    "rows and columns": VisionEncoderConfig(
        **SIZES, **IMAGE, rotary="interleaved", rotary_dim=4, key_bias=False, register_tokens=1, pooling="mean"
    ),
    "mean, post-norm": VisionEncoderConfig(
        **SIZES, **IMAGE, pooling="mean", head="image_classification", labels=LABELS, norm_position="post"
    ),
}
TEXT = {"vocab_size": V, "context": 11, "d_model": 12, "n_layers": 1, "n_heads": 3, "d_ff": F, "layers": "rolled"}
PAIRS = {
    "end": DualEncoderConfig(
        vision=IMAGES["norm before the blocks and of the pooled"], text=jf.EncoderConfig(**TEXT, causal=True), width=9, end=4
    ),
    "highest": DualEncoderConfig(
        vision=IMAGES["norm before the blocks and of the pooled"],
        text=jf.EncoderConfig(**TEXT, causal=True),
        width=9,
        text_pooling="highest",
        logit_bias=0.5,
    ),
    "last": DualEncoderConfig(
        vision=IMAGES["attention pooling of patches alone"],
        text=jf.EncoderConfig(**TEXT),
        width=D,
        text_pooling="last",
        image_projection=False,
        text_projection_bias=True,
        logit_bias=-1.0,
    ),
}
CONFIGS = IMAGES | PAIRS


@functools.cache
def model_twins(name):
    config = CONFIGS[name]
    inputs = adversarial_inputs(config, B, 11, seed=2)
    reference, candidate = twins(abstract(config), torch_models.build(config).eval(), *inputs, call=call_torch)
    return reference, Candidate(candidate.like, call_jax)


@pytest.mark.first(8)
@checks
@pytest.mark.parametrize("name", usually(CONFIGS, "class token, registers, masks, layer scale, dense", "end", "last"))
def test_equal(name, check):
    run_check(check, *model_twins(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_both_sides_start_from_the_same_distributions(name):
    config, table = CONFIGS[name], initialiser_table(CONFIGS[name])
    tensors = dict(named_tensors(torch_models.build(config)))
    theirs = initialisers(config, {key: tuple(tensor.shape) for key, tensor in tensors.items()})
    assert {re.sub(r"blocks\.\d+", "blocks", key): it for key, it in theirs.items()} == table
    for key in ("logit_scale", "logit_bias"):
        if key in table:
            assert tensors[key].item() == pytest.approx(getattr(config, key)) == table[key].value


def test_layer_scale_starts_at_its_number():
    model = jf.VisionEncoder(IMAGES["class token, registers, masks, layer scale, dense"], rngs=nnx.Rngs(0))
    for part in (model.stack.blocks.attention_layer_scale, model.stack.blocks.feed_forward_layer_scale):
        np.testing.assert_array_equal(part.scale, np.float32(0.3))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("wanted", [(5, 7), (2, 3), (9, 2)])
def test_a_grid_of_positions_becomes_another_as_in_torch(wanted, antialias):
    """More points, fewer, and both."""
    given = {"antialias": antialias}
    found = check_function(
        lambda table: resample_grid(table, (3, 4), wanted, **given),
        lambda table: torch_resample_grid(table, (3, 4), wanted, **given),
        noise(12, 5),
    )
    assert np.abs(found - resample_grid(jnp.asarray(noise(12, 5)), (4, 3), wanted, **given)).max() > 0.1


SQUARE = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_channels": 2,
    "image_size": 12,
    "patch_size": 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dinov2_with_registers", "vit"])
def test_images_of_another_size_are_transformers(kind, tmp_path):
    """Output, and the gradient of the positions of the size that was loaded."""
    name, more = {
        "vit": ("ViTModel", {"interpolate_pos_encoding": True}),
        "dinov2_with_registers": ("Dinov2WithRegistersModel", {}),
    }[kind]
    theirs = jf.excite(getattr(transformers, name)(getattr(transformers, name).config_class(**SQUARE)), seed=5).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    images = noise(B, 2, 20, 8, seed=1).astype(np.float64)
    with jax.enable_x64(True):
        ours = to_float64(jf.load(tmp_path / "theirs"))
        with torch_float64():
            output = theirs.double()(torch.from_numpy(images), **more)[0]
            cotangent = noise(*output.shape, seed=2).astype(np.float64)
            (output * torch.from_numpy(cotangent)).sum().backward()

        def loss(model):
            found = jf.with_image_size(model, (20, 8), antialias=kind != "vit")(images)
            return (found * cotangent).sum(), found

        gradients, found = jax.jit(jax.grad(loss, has_aux=True))(ours)
        check_float64("states", found, output)
        assert np.abs(np.asarray(jf.with_image_size(ours, (20, 8), antialias=kind == "vit")(images)) - found).max() > 1e-3
    position = theirs.embeddings.position_embeddings.grad[0]
    check_gradients({"positions": gradients.embed.position.table}, {"positions": position})


def test_rotary_positions_are_transformers_for_images_of_another_size(tmp_path):
    """Of DINOv3 without registers, of which transformers holds a tensor without rows."""
    theirs = jf.excite(transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**SQUARE)), seed=5).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    images = noise(B, 2, 20, 8, seed=1)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(images))[0]
    found = jf.with_image_size(jf.load(tmp_path / "theirs"), (20, 8))(images)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.slow
def test_twins_for_another_size_are_equal():
    config = PAIRS["end"]
    model = jf.excite(abstract(config), seed=4)
    twin = load_torch(torch_models.DualEncoder(config).double(), model).eval()
    _, ids, valid = adversarial_inputs(config, B, 11, seed=3)
    images = noise(B, 2, 7, 21).astype(np.float64)
    with jax.enable_x64(True), torch.no_grad():
        found = jf.with_image_size(to_float64(model), (7, 21))(images, ids, mask=jf.padding_mask(jnp.asarray(valid)))
        other = torch_models.with_image_size(twin, (7, 21))
        check_float64(
            "logits", found, other(torch.from_numpy(images), torch.from_numpy(ids), mask=torch.from_numpy(valid[:, None, None]))
        )


@pytest.mark.usefixtures("float64")
def test_attention_weights_and_hidden_states_are_the_twins():
    config = IMAGES["class token, registers, masks, layer scale, dense"]
    model = to_float64(jf.excite(abstract(config), seed=6))
    twin = load_torch(torch_models.VisionEncoder(config).double(), model).eval()
    images, masked = adversarial_inputs(config, B, 0, seed=7)
    with torch.no_grad():
        given = {"masked": torch.from_numpy(masked)}
        for method in ("attention_weights", "hidden_states"):
            ours = jax.jit(getattr(jf.VisionEncoder, method))(model, images, masked=masked)
            check_float64(method, ours, getattr(twin, method)(torch.from_numpy(images).double(), **given))


LOSSES = ["softmax_contrastive_loss", "sigmoid_contrastive_loss"]


@pytest.mark.parametrize("name", LOSSES)
def test_contrastive_losses_are_the_twins(name):
    found = check_function(getattr(contrastive, name), getattr(torch_contrastive, name), 3 * noise(7, 7))
    assert abs(found - getattr(contrastive, name)(3 * jnp.asarray(noise(7, 7))[::-1])) > 0.05  # other pairs


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [*zip(["CLIP", "Siglip"], LOSSES, strict=True)])
def test_contrastive_losses_and_their_gradients_are_transformers(kind, name, tmp_path):
    tower = SQUARE | {"intermediate_size": 20}
    text = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 20, "vocab_size": 23}
    text |= {"max_position_embeddings": 9, "bos_token_id": 0, "eos_token_id": 3, "pad_token_id": 1}
    cls = getattr(transformers, f"{kind}Model")
    theirs = jf.excite(cls(cls.config_class(text_config=text, vision_config=tower)), seed=5).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    images, ids = noise(4, 2, 12, 12), np.random.default_rng(1).integers(4, 23, (4, 9)).astype(np.int32)
    ids[range(4), [8, 6, 4, 2]] = 3
    theirs = theirs.double()
    loss = theirs(torch.from_numpy(ids).long(), torch.from_numpy(images).double(), return_loss=True).loss
    loss.backward()
    with jax.enable_x64(True):
        ours = to_float64(jf.load(tmp_path / "theirs"))
        value, gradients = jax.jit(
            jax.value_and_grad(lambda model: getattr(contrastive, name)(model(images.astype(np.float64), ids)))
        )(ours)
        check_float64("loss", value, loss)
        family = FAMILIES[kind.lower()]
        wanted = {key: it.grad for key, it in theirs.named_parameters()}
        check_gradients(gradients_to_torch(gradients, family, dict(theirs.named_parameters())), wanted)


@pytest.mark.slow
def test_a_comparison_by_rules_names_patches_in_another_order(tmp_path, monkeypatch):
    """transformers' ViT beside ours, by the rules of its family."""
    theirs = jf.excite(transformers.ViTModel(transformers.ViTConfig(**SQUARE, intermediate_size=20)), seed=5).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours, image = jf.load(tmp_path / "theirs"), noise(3, 2, 12, 12)
    checks = ("weights", "forward", "local")

    def compared():
        return jf.compare(
            theirs,
            ours,
            (image,),
            rules=FAMILIES["vit_memory"],
            call_torch=lambda model, image: model(image).last_hidden_state,
            call_jax=lambda model, image: model(image),
            checks=checks,
        )

    assert compared().status == "equal"
    monkeypatch.setattr(images, "cut_patches", column_by_column(images.cut_patches))
    report = compared()
    assert report.status == "different"
    assert [module.torch for module in report.modules if module.diverging] == ["embeddings"]


@pytest.mark.slow
def test_a_new_head_keeps_the_parameters():
    base = jf.VisionEncoder(IMAGES["class token, registers, masks, layer scale, dense"], rngs=nnx.Rngs(0))
    changed = replace(base.config, pooling="class", pooler_activation="tanh", head="image_classification", labels=LABELS)
    model = jf.with_head(base, changed, rngs=nnx.Rngs(1))
    images = noise(B, 2, 10, 16)
    assert model(images).shape == (B, 3)
    np.testing.assert_array_equal(model.encode(images), base.encode(images))
    with pytest.raises(ConfigError, match=r"register_tokens = 3 is 2 in the encoder"):
        jf.with_head(base, replace(changed, register_tokens=3), rngs=nnx.Rngs(1))


@pytest.mark.parametrize("name", ["class token, registers, masks, layer scale, dense", "last"])
def test_a_saved_model_is_the_same(name, tmp_path):
    model = jf.excite(abstract(CONFIGS[name]), seed=8)
    jf.save(model, tmp_path / "ours")
    back = jf.load(tmp_path / "ours")
    assert back.config == model.config
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), back, model)))
