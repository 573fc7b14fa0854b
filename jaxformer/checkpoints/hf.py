"""Folders in transformers' format (HF directories): config.json, the weights, and the tokenizer's files."""

import json
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.foreign import foreign_head
from jaxformer.config.dual import AnyModelConfig
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.convert.config_values import differences, part_of
from jaxformer.convert.family import Family
from jaxformer.convert.heads import find_variant, variant_for
from jaxformer.convert.model_type import Field, ModelType
from jaxformer.convert.mxfp4 import dequantized
from jaxformer.convert.registry import MODEL_TYPES
from jaxformer.convert.rules import tensors_to_torch, to_jax
from jaxformer.convert.safetensors import check_counts, save_tensors
from jaxformer.convert.state_files import open_folder_state
from jaxformer.convert.versions.tables import may_be_null
from jaxformer.errors import CheckpointError, ConfigError, ConversionError, listed
from jaxformer.models import Model, abstract
from jaxformer.pytree import map_named, named_weights

CONFIG, WEIGHTS = "config.json", "model.safetensors"
LEGACY = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Endings of tensor names that transformers renames on loading: (old, new)."""
WRAPPERS = "_orig_mod.", "module."
"""Prefixes that torch.compile and DataParallel add to every tensor name."""
KEPT = "transformers"
"""Key in a config.json of ours: the settings of the folder of transformers that the model came from."""


@dataclass(frozen=True)
class Checkpoint:
    """Model, with everything that its folder says about it."""

    place: Path
    """The folder, or the file of tensors."""
    model: Model
    kind: ModelType
    described: Mapping[str, Any]
    """Contents of config.json."""
    names: Mapping[str, str]
    """Tensor names: the family's -> the files'."""
    unused: Mapping[str, str]
    """Names of tensors that belong to heads which the jax model lacks -> the tasks of these heads."""
    headless: bool
    """True if the model needs an untied head, but the files have none: logits are then computed with the embedding table."""

    @property
    def origin(self) -> "Origin":
        """Settings of the files beyond the model."""
        is_base = self.headless or (self.kind.headed and all(own != name for own, name in self.names.items()))
        return Origin(self.model.config, self.kind, self.described, is_base, self.headless)


@dataclass(frozen=True)
class Origin:
    """Settings of a folder of transformers beyond the model: `save` keeps them in folders of ours, and writes them back."""

    config: AnyModelConfig
    """Configuration that `described` describes."""
    kind: ModelType
    described: Mapping[str, Any]
    """Contents of transformers' config.json."""
    is_base: bool
    """True if the files hold the base of a model type whose models have heads."""
    headless: bool
    """True if the files lack the head that the model needs, as in Checkpoint."""

    @classmethod
    def kept_in(cls, described: Mapping[str, Any], config: AnyModelConfig) -> "Origin | None":
        """Return what `keep` put into the config.json of a folder of ours; None if the model comes from elsewhere."""
        if (kept := described.get(KEPT)) is None:
            return None
        return cls(config, MODEL_TYPES[kept["config"]["model_type"]], kept["config"], kept["is_base"], kept["headless"])

    def keep(self, model: Model) -> dict[str, Any]:
        """Return the key of our config.json that keeps it; empty if transformers has no such model any more."""
        try:
            described = settings_of(model, self)[1]
        except ConversionError:
            return {}
        return {KEPT: {"config": described, "is_base": self.is_base, "headless": self.headless}}


def read_checkpoint(folder: Path, described: Mapping[str, Any]) -> Checkpoint:
    """Read the model of a folder whose config.json is `described`.

    CheckpointError names the folder and lists everything that is wrong with its description or its tensors.
    """
    try:
        state = unwrapped(open_folder_state(folder))
        kind = find_model_type(described, state)
    except (ConfigError, ConversionError) as error:
        raise CheckpointError(f"{folder}: {error}") from None
    try:
        return checkpoint_of(folder, kind, described, state)
    except (ConfigError, ConversionError) as error:
        raise CheckpointError(f"{folder}: {foreign_head(described, kind, state) or error}") from None


def checkpoint_of(place: Path, kind: ModelType, described: Mapping[str, Any], state: Mapping[str, Any]) -> Checkpoint:
    """Build the model from a state; ConfigError or ConversionError lists everything that is wrong."""
    described, state = dequantized(described, state)
    names, unused = tensor_names(kind, state)
    check_layers(kind, described, names)
    config = kind.read(described, names)
    head = head_of(config, kind)
    headless = head is not None and head not in names
    if headless and kind.model in (described.get("architectures") or ()):
        raise ConversionError(f"{head} is missing, and the head of a {kind.model} is not tied to the embeddings' table")
    if headless:
        config = replace(config, tied=True)
    model = model_of({own: state[name] for own, name in names.items()}, config, kind.family_of(config))
    return Checkpoint(place, model, kind, described, names, unused, headless)


def check_layers(kind: ModelType, described: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise ConfigError if config.json has more layers than there are tensors, before a model of that size is built."""
    keys = [name for name, key in kind.keys.items() if isinstance(key, Field) and key.name in ("n_layers", "n_decoder_layers")]
    for name in keys:
        if isinstance(layers := described.get(name), int) and layers > len(names):
            raise ConfigError(f"config.json has {name} = {layers}, and the files have {len(names)} tensors in all")
    for name, (_, part) in kind.parts.items():
        check_layers(part, part_of(described, name), names)


def head_of(config: AnyModelConfig, kind: ModelType) -> str | None:
    """Return the family's name for the kernel of an untied head; None if the head is tied or absent."""
    if not isinstance(config, GPTConfig | EncoderDecoderConfig) or config.tied:
        return None
    return kind.family_of(config).torch_names("head.kernel", 1)[0]


def find_model_type(described: Mapping[str, Any], state: Collection[str]) -> ModelType:
    """Return the model type that config.json names, with the head that the tensors are of; ConfigError if there is none."""
    name = described["model_type"]
    if name not in list(MODEL_TYPES):
        raise ConfigError(
            f"model_type = {name!r:.40} is not loaded (`jaxformer families` lists those that are){closest(state)}"
        )
    return find_variant(MODEL_TYPES[name], described, state)


def closest(names: Collection[str]) -> str:
    """Say which model type's tensors have most of these names; '' if none has more than half of them."""
    found = {blank(name) for name in names}
    known = {kind.name: names_of(kind) for kind in MODEL_TYPES.values()}
    name = max(known, key=lambda name: (len(found & known[name]), -len(known[name])))
    if 2 * (n := len(found & known[name])) <= len(found):
        return ""
    return (
        f"; {n} of {len(found)} names of its tensors are those of a {name!r}, which may compute something else: where the code "
        f"is the same, give the file of tensors with --family {name}, in Python family={name!r}, else rules of your own "
        "(docs/models.md, Weights)"
    )


def names_of(kind: ModelType) -> set[str]:
    """Return the names that tensors of a model type may have, with and without its prefix."""
    ends = {end for rule in kind.family.rules for end in ((rule.torch,) if isinstance(rule.torch, str) else rule.torch)}
    whole = {start + end for start in ("", *kind.family.stacks.values()) for end in ends}
    return {blank(each) for name in whole for each in (name, name.removeprefix(kind.prefix), kind.prefix + name)}


def blank(name: str) -> str:
    """Replace numbers among the parts of a name, and placeholders of numbers, by 0."""
    return re.sub(r"(?<=\.)(\d+|\{\w+\})(?=\.)", "0", name)


def model_of(state: Mapping[str, Any], config: AnyModelConfig, family: Family) -> Model:
    """Build a model with the tensors' own dtypes; ConversionError lists everything that is wrong with them."""
    like = abstract(config)
    check_counts("the state", like, state)
    model = to_jax(state, typed(like, state, family), family)
    broken = [name for name, leaf in named_weights(model).items() if not np.isfinite(leaf).all()]
    if broken:
        verb = "hold" if broken[1:] else "holds"
        raise ConversionError(f"{listed(broken)} {verb} NaN or infinity; the file is damaged, or its training was")
    return model


def tensor_names(kind: ModelType, found: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Map the family's tensor names to the names found, and names of tensors of heads that the jax model lacks to their tasks.

    A model with a head has a prefix that its base lacks. ConversionError if two names mean the same tensor.
    """
    added = kind.prefix if kind.headed and not any(name.startswith(kind.prefix) for name in found) else ""
    names: dict[str, str] = {}
    unused: dict[str, str] = {}
    for name in found:
        own = added + (name if kind.headed else name.removeprefix(kind.prefix))
        for old, new in LEGACY:
            own = own.removesuffix(old) + new if own.endswith(old) else own
        if task := kind.head_of(name):
            unused[name] = task
        elif own in names:
            raise ConversionError(f"{name} and {names[own]} are the same tensor of a {kind.name}; leave one of them out")
        else:
            names[own] = name
    return names, unused


def unwrapped(state: dict[str, Any]) -> dict[str, Any]:
    """Strip the prefixes that torch.compile or DataParallel adds to every name."""
    for start in WRAPPERS:
        if state and all(name.startswith(start) for name in state):
            state = {name.removeprefix(start): tensor for name, tensor in state.items()}
    return state


def typed(like: Model, state: Mapping[str, Any], family: Family) -> Model:
    """Return the abstract model `like`, with the float dtypes of the tensors."""

    def leaf_type(name: str, leaf: Any) -> Any:
        layers = leaf.shape[0] if family.stacked(name) else 1
        first = next((state[it] for it in family.torch_names(name, layers) if it in state), leaf)
        return jax.ShapeDtypeStruct(leaf.shape, first.dtype if jnp.issubdtype(first.dtype, jnp.floating) else leaf.dtype)

    typed_like = map_named(leaf_type, like)
    types = {leaf.dtype for leaf in jax.tree.leaves(typed_like)}
    if wide := [it for it in types if jax.dtypes.canonicalize_dtype(it) != it]:
        raise ConversionError(f"the tensors are {wide[0]}; load them under jax.enable_x64(True)")
    return typed_like


def write_checkpoint(model: Model, folder: Path, source: Origin | None = None, ids: Mapping[str, int] = {}) -> None:
    """Write files that `AutoModel.from_pretrained` loads into an empty folder; `ids` are special tokens for config.json.

    The other keys of the source's config.json are kept. ConversionError lists configuration fields that transformers' format
    cannot express.
    """
    kind, described = settings_of(model, source, ids)
    state = tensors_to_torch(model, kind.family_of(model.config))
    if source is not None and source.is_base:
        state = {name.removeprefix(kind.prefix): array for name, array in state.items()}
    (folder / CONFIG).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", "utf-8")
    save_tensors(folder / WEIGHTS, state, {"format": "pt"})


def settings_of(model: Model, source: Origin | None, ids: Mapping[str, int] = {}) -> tuple[ModelType, dict[str, Any]]:
    """Return the model type that expresses a model, and its config.json, with what the source's says besides."""
    kind, described = describe(model.config, source and source.kind)
    unset = [name for name in ("bos_token_id", "eos_token_id") if may_be_null(kind, name)]
    special = {**dict.fromkeys(unset), **ids} if isinstance(model.config, ModelConfig) else {}
    if source is None and "decoder_start_token_id" not in ids and isinstance(model.config, EncoderDecoderConfig):
        warnings.warn(
            f"config.json of this {kind.name} names no special tokens, by which transformers' generate starts and ends; give "
            "source, the folder that the model came from, or write decoder_start_token_id and eos_token_id into it",
            stacklevel=4,
        )
    if source is None:
        described |= special
    else:
        same = not differences(model.config, source.config, but=())
        replaced = () if same else [f"{part}_dict" for part in kind.parts]
        kept = {name: value for name, value in source.described.items() if name not in replaced}
        described = kept if same else special | kept | described
    described["architectures"] = [kind.base if source is not None and source.is_base else kind.model]
    if source is not None and source.headless:
        described["tie_word_embeddings"] = source.described.get("tie_word_embeddings", False)
    types = sorted({str(leaf.dtype) for leaf in named_weights(model).values()})
    described["torch_dtype" if "torch_dtype" in described else "dtype"] = types[0] if len(types) == 1 else "float32"
    return kind, described


def describe(config: AnyModelConfig, kind: ModelType | None = None) -> tuple[ModelType, dict[str, Any]]:
    """Return the first model type that can express every field (or the given one), and the contents of config.json.

    ConversionError lists the fields that the given or the nearest model type cannot express.
    """
    refused: list[str] = []
    for base in MODEL_TYPES.values() if kind is None else [MODEL_TYPES[kind.name]]:
        try:
            if it := variant_for(base, config):
                return it, it.write(config, names_written(config, it.family_of(config)))
        except ConversionError as error:
            refused.append(str(error))
    if not refused:
        raise ConversionError(f"no {type(config).__name__} is known there")
    raise ConversionError(min(refused, key=lambda said: ("has no place for" not in said, said.count("; "))))


def names_written(config: AnyModelConfig, family: Family) -> set[str]:
    """Return the names of the tensors that the family has rules for."""
    leaves = {name: leaf for name, leaf in named_weights(abstract(config)).items() if family.ruled(name)}
    layers = {name: leaf.shape[0] if family.stacked(name) else 1 for name, leaf in leaves.items()}
    return {torch_name for name, n in layers.items() for torch_name in family.torch_names(name, n)}
