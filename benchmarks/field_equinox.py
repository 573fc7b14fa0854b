"""Compare Equinox models of two public packages with the PyTorch models that they were ported from.

They need an environment of their own (once, about two minutes):

    python3 -m venv equinox-venv
    equinox-venv/bin/pip install jax==0.10.2 flax==0.12.8 torch==2.13.0 torchvision==0.28.0 jaxtyping rich tyro
    equinox-venv/bin/pip install equinox==0.13.8 equimo==1.1.0 jaxonmodels==0.2.3 timm==1.0.31
    equinox-venv/bin/pip install --no-deps -e .
    equinox-venv/bin/python -m benchmarks.field_equinox

Every model is tiny and random, with excited parameters; nothing is downloaded, and the comparison gets no rules. A verdict that
is not the expected one is an error, exit code 2.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.cli.flags import parse, run
from jaxformer.errors import InputError, ParityError
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

KEY = jax.random.key(0)
IMAGE, CLASSES = 32, 7
VIT = {"img_size": IMAGE, "patch_size": 8, "num_heads": 3, "num_classes": CLASSES}


@dataclass(frozen=True)
class Port:
    """torch model and its port, made with the same weights."""

    name: str
    sides: Callable[[], tuple[Any, Any, Callable[..., Any]]]
    """Function that returns (torch model, JAX model, function that calls the JAX model)."""
    differs: str = ""
    """Text that the verdict has to contain; '' if both are equal."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Compare Equinox models with their PyTorch originals."""

    only: tuple[str, ...] = ()
    """Names of ports, such as swin; none given: all."""
    verbose: bool = False
    """Print the whole reports."""


def package(name: str) -> Any:
    """Import a package; InputError if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"{error.name} is not installed; see the first lines of benchmarks/field_equinox.py") from None


def vit(activation: str, pool: str = "token") -> tuple[Any, Any, Callable[..., Any]]:
    """Make timm's and Equimo's ViT: three blocks, which Equimo has in two chunks."""
    eqx, timm, equimo = package("equinox"), package("timm"), package("equimo.models.vit")
    theirs = timm.models.vision_transformer.VisionTransformer(**VIT, embed_dim=24, depth=3, global_pool=pool)
    model = equimo.VisionTransformer(
        **VIT, in_channels=3, dim=24, depths=[2, 1], key=KEY, reg_tokens=0, act_layer=activation, eps=1e-6, global_pool=pool
    )
    theirs = excite(theirs.eval(), seed=0)
    weights = {name.replace("fc_norm", "norm"): tensor for name, tensor in theirs.state_dict().items()}
    arrays, rest = eqx.partition(model, eqx.is_array)
    leaves, tree = jax.tree_util.tree_flatten_with_path(arrays)
    names = [_of_timm(jax.tree_util.keystr(path, simple=True, separator=".")) for path, _ in leaves]
    loaded = [jnp.asarray(weights[name].numpy().reshape(leaf.shape)) for name, (_, leaf) in zip(names, leaves, strict=True)]
    return theirs, eqx.combine(tree.unflatten(loaded), rest), _each_image


def _of_timm(name: str) -> str:
    """Return timm's name of a parameter of Equimo's."""
    name = re.sub(r"blocks\.(\d)\.blocks\.(\d)", lambda chunk: f"blocks.{2 * int(chunk[1]) + int(chunk[2])}", name)
    name = name.replace("global_pos_embed.weight", "pos_embed")
    return name.replace("prenorm", "norm1").replace(".norm.", ".norm2.") if name.startswith("blocks") else name


def _each_image(model: Any, images: Any) -> Any:
    return jax.vmap(lambda image: model(image, inference=True))(images)


def swin(version: int) -> tuple[Any, Any, Callable[..., Any]]:
    """Make torchvision's and jaxonmodels' Swin; the converter of jaxonmodels takes the weights, in their order."""
    eqx, theirs = package("equinox"), package("torchvision.models.swin_transformer")
    ours, convert = package("jaxonmodels.models.swin_transformer"), package("jaxonmodels.statedict2pytree.s2p")
    suffix = "V2" if version == 2 else ""
    parts = [f"{part}{suffix}" for part in ("SwinTransformerBlock", "PatchMerging", "ShiftedWindowAttention")]
    sizes = {"patch_size": [4, 4], "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3], "window_size": [4, 4]}
    sizes |= {"num_classes": CLASSES, "stochastic_depth_prob": 0.1, "mlp_ratio": 4.0, "norm_layer": None}
    block, merging, attention = (getattr(ours, part) for part in parts)
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "inference": True, "key": KEY}
    model, state = eqx.nn.make_with_state(ours.SwinTransformer)(
        **sizes, **rates, block=block, downsample_layer=merging, attn_layer=attention, dtype=jnp.float32
    )
    block, merging = (getattr(theirs, part) for part in parts[:2])
    torch_model = excite(theirs.SwinTransformer(**sizes, block=block, downsample_layer=merging).eval(), seed=0)
    weights = dict(torch_model.named_parameters())
    fields, indices = convert.pytree_to_fields(model)
    model = convert.convert(weights, model, fields, indices, convert.state_dict_to_fields(weights), dtype=jnp.float32)
    return torch_model, (eqx.nn.inference_mode(model), state), _each_image_with_state


def _each_image_with_state(given: Any, images: Any) -> Any:
    model, state = given
    return jax.vmap(lambda image: model(image, state=state, key=KEY)[0])(images)


PORTS = (
    Port("vit", partial(vit, "exactgelu")),
    Port("vit-presets", partial(vit, "gelu"), "jax activation gelu by tanh"),
    Port("vit-average", partial(vit, "exactgelu", "avg"), "torch has fc_norm where it is; jax has it after blocks"),
    Port("swin", partial(swin, 1), "attn: torch has 24 at [0] of relative_position_index; jax has 26 there, in 1.0"),
    Port(
        "swin-v2",
        partial(swin, 2),
        "attn: torch has -1.05664 at [0, 0, 0, 0] of relative_coords_table; jax has -1.3023 there, in 1.1",
    ),
)


def main(arguments: list[str]) -> None:
    """Print a line for each port; ParityError if a verdict is not the expected one."""
    flags = parse(Field, arguments, prog="python -m benchmarks.field_equinox")
    if unknown := sorted(set(flags.only) - {port.name for port in PORTS}):
        raise InputError(f"only = {unknown[0]} is not one of {', '.join(port.name for port in PORTS)}")
    wrong = []
    images = np.random.default_rng(0).normal(size=(2, 3, IMAGE, IMAGE)).astype(np.float32)
    for port in PORTS:
        if flags.only and port.name not in flags.only:
            continue
        torch_model, model, call = port.sides()
        start = time.perf_counter()
        report = compare(torch_model, model, (images,), call_jax=call)
        expected = report.status == ("different" if port.differs else "equal") and port.differs in report.verdict
        wrong += [] if expected else [port.name]
        print(f"{'ok   ' if expected else 'WRONG'}  {port.name:12} {time.perf_counter() - start:5.1f} s  {report.verdict}")
        if flags.verbose:
            print(report, flush=True)
    if wrong:
        raise ParityError(f"unexpected verdicts: {', '.join(wrong)}")


if __name__ == "__main__":
    run(main)
