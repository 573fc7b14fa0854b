"""Probes that hide no bug: excited parameters and adversarial inputs.

Parameters are random: a model initialised the usual way hides dropped biases and gains at any tolerance, since its biases are 0
and its gains 1. Inputs have padding, repeated ids and a large mean; images and audio have sizes that differ along each axis.
The input lengths that exceed a model's sliding windows and position tables stand here too.
"""

import copy
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.errors import InputError, type_of
from jaxformer.pytree import STACKED, path_name
from jaxformer.validation.fields import check_seed, check_size

Kind = Literal["gain", "bias", "table", "matrix"]


def excite(model: Any, seed: int) -> Any:
    """Return a copy with gains 1 + 0.3 n, biases 0.3 n, embeddings 0.5 n and matrices n / sqrt(fan_in), where n is standard
    normal.

    `model` is a torch module, a Flax NNX module, the variables or the parameters of a Flax Linen module, or another pytree of
    arrays. The kind of a parameter follows from its name, in torch also from its module; otherwise a parameter with one axis is
    a bias. All values are float32 numbers, in the parameter's own dtype. Tied weights stay tied. torch's running statistics
    become means 0.3 n and variances exp(0.3 n). Everything that is not a float parameter (buffers, random keys, integers)
    stays, and so does a table, such as of sinusoids, that torch does not train while it trains other parameters: a port may
    compute it. InputError if the model holds no arrays.
    """
    check_seed(seed)
    rng = np.random.default_rng(seed)
    if is_torch(model):
        return _excite_torch(model, rng)
    if isinstance(model, Mapping) and "params" in model:
        return {**model, "params": excite(model["params"], seed)}
    leaves = jax.tree.leaves(model)
    if model is None or (leaves and not any(hasattr(leaf, "dtype") for leaf in leaves)):
        raise InputError(f"{type_of(model)} holds no arrays to draw; give a torch or NNX module, or a tree of arrays")
    done: dict[int, Any] = {}

    def fill(path: Any, leaf: Any) -> Any:
        variable, name = isinstance(leaf, nnx.Variable), path_name(path)
        if variable and id(leaf) in done:
            return done[id(leaf)]
        if (variable and not isinstance(leaf, nnx.Param)) or not jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating):
            return leaf
        value = _value(kind_of(name, leaf.ndim), rng.standard_normal(leaf.shape), _fan_in(name, leaf.shape))
        done[id(leaf)] = jax.tree.map(lambda held: jnp.asarray(value, held.dtype), leaf)
        return done[id(leaf)]

    return jax.tree_util.tree_map_with_path(fill, model, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def is_torch(model: Any) -> bool:
    """True if the model is a torch module; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _excite_torch(model: Any, rng: np.random.Generator) -> Any:
    import torch

    model, frozen = copy.deepcopy(model), frozen_in(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                owner, shape = model.get_submodule(name.rpartition(".")[0]), tuple(parameter.shape)
                kind = _torch_kind(name, owner, shape)
                if kind == "table" and name in frozen:
                    continue
                value = _value(kind, rng.standard_normal(shape), _torch_fan_in(owner, shape))
                parameter.copy_(torch.from_numpy(value))
        for name, buffer in model.named_buffers():
            if (last := name.rpartition(".")[2]) in ("running_mean", "running_var"):
                noise = 0.3 * torch.from_numpy(rng.standard_normal(tuple(buffer.shape)))
                buffer.copy_(noise.exp() if last == "running_var" else noise)
    return model


def _value(kind: Kind, noise: np.ndarray | float, fan_in: int) -> np.ndarray:
    value = {"gain": 1 + 0.3 * noise, "bias": 0.3 * noise, "table": 0.5 * noise, "matrix": noise / math.sqrt(fan_in)}[kind]
    return np.asarray(value, np.float32)


def kind_of(name: str, rank: int) -> Kind:
    """Return the kind of a parameter by the last part of its name, else by its number of axes."""
    last = name.rpartition(".")[2].lower()
    if "bias" in last or last in ("beta", "b"):
        return "bias"
    if any(word in last for word in ("scale", "gain", "gamma")):
        return "gain"
    if "embed" in last or last == "table":
        return "table"
    return "matrix" if rank > 1 else "gain" if "weight" in last else "bias"


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    """Return the fan-in of a Flax parameter: the product of all axes but the last; projections to heads `D N H` and stacked
    layers count a single axis."""
    if len(shape) < 2:
        return 1
    if STACKED in name or len(shape) == 2:
        return shape[-2]
    to_heads = any(part in ("query", "key", "value") for part in name.split(".")[-2:])
    return shape[0] if to_heads else math.prod(shape[:-1])


def _torch_kind(name: str, owner: Any, shape: tuple[int, ...]) -> Kind:
    """Return the kind of a torch parameter by the class of its module; by its name if the class is not known."""
    found, known = kind_of(name, len(shape)), type(owner).__name__
    if found != "bias" and known.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d")):
        return "gain"
    return "table" if found == "matrix" and "Embedding" in known else found


def _torch_fan_in(owner: Any, shape: tuple[int, ...]) -> int:
    """Return the fan-in of a torch parameter: the last axis; the first for transformers' Conv1D, which stores (in, out). A
    convolution sums over its window too."""
    if len(shape) < 2:
        return 1
    if type(owner).__name__ == "Conv1D":
        return shape[0]
    if type(owner).__name__.startswith("Conv"):
        return math.prod(shape) // shape[1 if getattr(owner, "transposed", False) else 0]
    return shape[-1]


def frozen_in(model: Any) -> frozenset[str]:
    """Return the names of the parameters that are not trained; empty if none is trained, as for inference."""
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    return frozenset(name for name, it_is in trained.items() if not it_is) if any(trained.values()) else frozenset()


SHIFT = 50.0
"""Mean of one row of hidden states: a variance computed as E[x^2] - E[x]^2 loses its digits there."""


BEYOND = 9
"""Number of tokens by which a probe exceeds the longest window."""


def probe(
    vocab: int | None = None, batch: int = 5, length: int = 66, seed: int = 0, pad: int = 0, *, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return adversarial inputs `B T` and the mask of their real positions: `ids, valid = probe(vocab=50257)`.

    Row 1 is padded on the right, row 2 on the left, the last row everywhere. With `vocab`, the inputs are int32 ids below it;
    the id `pad` fills the padding and also occurs inside the text, and ids are repeated. With `width`, they are float32 hidden
    states `B T width`, the first row with a mean of 50; padding is noise, on which no output may depend. Pass `valid` to a
    model that takes a mask, and leave it out for one that does not. InputError or ConfigError for sizes or ids that do not fit.
    """
    if (vocab is None) == (width is None):
        raise InputError(f"probe has vocab = {vocab} and width = {width}; give one of them: vocab for ids, width for states")
    check_size("batch", batch, least=4)
    check_size("length", length, least=4)
    check_seed(seed)
    rng = np.random.default_rng(seed)
    valid = np.ones((batch, length), bool)
    valid[1, -(length // 4) :] = False
    valid[2, : length // 4] = False
    valid[-1] = False
    if vocab is None:
        check_size("width", width)
        states = rng.standard_normal((batch, length, width or 0))
        states[0] += SHIFT
        return states.astype(np.float32), valid
    check_size("vocab", vocab, least=2)
    check_size("pad", pad, least=0, most=vocab - 1)
    ids = rng.integers(0, vocab, (batch, length)).astype(np.int32)
    ids[:, length // 2] = pad
    ids[:, length // 2 + 1] = ids[:, length // 2 - 1]
    return np.where(valid, ids, pad).astype(np.int32), valid


def probe_config(config: Any, batch: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the `probe` of a model with this configuration, a mapping or an object: `ids, valid = probe_config(model.config)`.

    Ids are below `vocab_size`, padding is `pad_token_id`, and rows are longer than the sliding windows and the context before a
    rotary scaling; a learned table of positions is used to its end. InputError if there is no `vocab_size`.
    """
    held = dict(settings(config))
    if (vocab := held.get("vocab_size")) is None:
        raise InputError(f"the configuration, {type_of(config)}, has no vocab_size; give one that has, or call probe(vocab)")
    table, limits = table_of(config), limits_of(config)
    length = max([66, *(limit + BEYOND for limit in limits.values())])
    pad = held.get("pad_token_id")
    pad = pad if isinstance(pad, int) and 0 <= pad < vocab else 0
    return probe(vocab, batch, length if table is None else table, seed, pad)


CONSTANT = 0.5
"""Value of an image without contrast, whose variance is 0: there an epsilon decides."""


def probe_image(batch: int = 3, channels: int = 3, height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Return adversarial images `B C H W`, float32: `pixels = probe_image()`.

    Height and width differ, so that the two axes cannot be confused. The first image has a mean of 50, the last one is
    constant. InputError or ConfigError for sizes that do not fit.
    """
    check_size("batch", batch, least=3)
    for name, size in (("channels", channels), ("height", height), ("width", width)):
        check_size(name, size)
    check_seed(seed)
    pictures = np.random.default_rng(seed).standard_normal((batch, channels, height, width))
    pictures[0] += SHIFT
    pictures[-1] = CONSTANT
    return pictures.astype(np.float32)


def probe_audio(batch: int = 4, length: int = 1603, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return adversarial audio `B T`, float32, and the mask of its real samples: `waves, valid = probe_audio()`.

    The length is odd, so that strides leave samples over. The first sound has a mean of 50, the second is shorter, the last one
    is silent; padding is 0. InputError or ConfigError for sizes that do not fit.
    """
    check_size("batch", batch, least=4)
    check_size("length", length, least=4)
    check_seed(seed)
    waves, valid = np.random.default_rng(seed).standard_normal((batch, length)), np.ones((batch, length), bool)
    waves[0] += SHIFT
    valid[1, -(length // 3) :] = False
    waves[-1] = 0
    return np.where(valid, waves, 0).astype(np.float32), valid


PASSED = ("sliding_window", "window_size", "attention_window", "local_attention", "attention_chunk_size")
"""Settings that limit how many tokens a query sees: sliding windows and attention chunks."""
ORIGINAL = ("original_max_position_embeddings",)
"""Settings for the context length after which rotary positions are scaled."""
DISTANCES = ("relative_attention_max_distance", "max_distance")
"""Settings for the distance from which all relative positions share a bias."""
ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_emb_base", "rotary_dim", "partial_rotary_factor")
TABLES = ("max_position_embeddings", "n_positions", "max_source_positions")
"""Settings for the number of positions in a learned table."""
INSIDE = ("text_config", "rope_scaling", "rope_parameters", "encoder", "decoder", "layers")
LARGEST = 2**20
"""Values from here on mean that there is no limit."""


def limits_of(config: Any) -> dict[str, int]:
    """Return setting -> the number of tokens that an input has to exceed for the setting to have an effect."""
    found = {}
    for name, value in settings(config):
        if name in (*PASSED, *ORIGINAL, *DISTANCES) and type(value) is int and 0 < value < LARGEST:
            found[name] = max(value, found.get(name, 0))
    return found


def table_of(config: Any) -> int | None:
    """Return the number of positions in a model's learned table; None if positions are computed."""
    held = dict(settings(config))
    if any(held.get(name) for name in ROTARY) or any(name in held for name in DISTANCES):
        return None
    return next((held[name] for name in TABLES if type(held.get(name)) is int), None)


def settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a configuration, a mapping or an object, and of the nested ones in `INSIDE`."""
    held = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    for name, value in held.items():
        yield str(name), value
        if name in INSIDE:
            yield from settings(value)


def never_passed(model: Any, inputs: tuple[np.ndarray, ...]) -> list[str]:
    """Describe each window of a torch model that no input exceeds: 'sliding_window = 4096: the longest input has 17 tokens,
    which is not more'."""
    lengths = [array.shape[1] for array in inputs if array.ndim == (2 if array.dtype.kind in "iub" else 3)]
    found: dict[str, int] = {}
    for module in model.modules():
        found |= limits_of(getattr(module, "config", {})) | limits_of({name: vars(module).get(name) for name in PASSED})
    longest = max(lengths, default=0)
    tokens = f"the longest input has {longest} tokens"
    return [f"{name} = {limit}: {tokens}, which is not more" for name, limit in found.items() if 0 < longest <= limit]
