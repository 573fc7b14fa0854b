"""Model types of transformers: a table of the keys in config.json, by which config.json is both read and written.

    ModelType(
        name="gpt2",
        config=GPTConfig,
        family=GPT2,
        keys={"n_embd": Field("d_model", 768), "add_cross_attention": Only(False, "a second attention would be left out")},
        fixed={"projections": "fused"},
        model="GPT2LMHeadModel",
        base="GPT2Model",
        prefix="transformer.",
    )

A new model type only needs a file in `families/` that creates a ModelType: `load`, `save` and the commands find it.
"""

import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxformer.config.dual import AnyModelConfig
from jaxformer.convert.config_values import differences, part_of, value_of
from jaxformer.convert.family import Family
from jaxformer.errors import ConfigError, ConversionError

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""transformers' names of activations -> jaxformer's. If several have the same meaning, the first is written."""

TASKS = """_num_labels architectures bos_token_id cls_token_id decoder_start_token_id eos_token_id finetuning_task id2label
initializer_range init_std label2id mask_token_id model_type num_labels pad_token_id prefix problem_type sep_token_id
task_specific_params tokenizer_class unk_token_id"""
OUTPUTS = """output_attentions output_hidden_states output_past return_dict tie_last_hidden_states use_cache use_return_dict"""
SEARCH = """bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
exponential_decay_length_penalty force_bos_token_to_be_generated forced_bos_token_id forced_eos_token_id length_penalty
max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values
repetition_penalty return_dict_in_generate suppress_tokens temperature top_k top_p typical_p"""
DRAWING = {"epsilon_cutoff", "eta_cutoff", "min_p", "temperature", "top_h", "top_k", "top_p", "typical_p"}
"""Settings that take effect only when tokens are sampled."""
BEAMS = {"diversity_penalty", "early_stopping", "length_penalty", "num_beam_groups", "renormalize_logits"}
"""Settings that take effect only with several beams."""
RUNNING = """_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path attn_implementation
chunk_size_feed_forward dtype gradient_checkpointing torch_dtype torchscript transformers.js_config transformers_version
use_bfloat16"""
HARMLESS = frozenset(f"{TASKS} {OUTPUTS} {SEARCH} {RUNNING}".split())
"""Keys that change no output of any model: heads for tasks, returned values, decoding, execution."""


@dataclass(frozen=True)
class Field:
    """Key of config.json that sets a field of jaxformer's configuration."""

    name: str
    """Name of the field, or a name that `derive` reads and `undo` writes."""
    default: Any
    """Default value of transformers, for a missing key."""
    values: Mapping[Any, Any] | None = None
    """transformers' values -> jaxformer's, if they differ."""
    also: tuple[str, ...] = ()
    """Further fields that get the same value."""


@dataclass(frozen=True)
class Only:
    """Key with only one supported value, which a missing key means too."""

    value: Any
    otherwise: str
    """Consequence of ignoring another value, for the error message."""


@dataclass(frozen=True)
class Same:
    """Key that has to equal another key, because one field of jaxformer holds both."""

    key: str


Key = Field | Only | Same

SWITCHES: dict[str, Key] = {
    "add_cross_attention": Only(False, "a second attention would be left out"),
    "auto_map": Only(None, "the model has code of its own, which would not run"),
    "cross_attention_hidden_size": Only(None, "a second attention would be left out"),
    "is_decoder": Only(False, "every token would see the later ones"),
    "is_encoder_decoder": Only(False, "one of its two stacks would be left out"),
    "per_layer_config": Only(None, "some layers have settings of their own, which would be ignored"),
    "pruned_heads": Only({}, "heads that were taken out would be missing"),
    "quantization_config": Only(None, "the weights are quantized, and would be read as they are"),
    "tie_encoder_decoder": Only(False, "the two stacks share their weights, and would not"),
}
"""Keys of every model type; the table of a type's own keys, and its harmless ones, take precedence."""
NOT_FUNCTION = ("init", "embedding_std", "layers", "remat", "remat_policy", "projections", "experts")
"""Fields that change no output: initialisation, execution, packing of weights."""
AT_START = {"layers": "rolled"}
"""Fields of every model that is read: it compiles in seconds, and no layer's weights are copied next to the others."""
TRAINING = ("attention_dropout", "residual_dropout", "feed_forward_dropout", "embedding_dropout", "head_dropout", "padding_idx")
"""Fields that change only training."""


@dataclass(frozen=True)
class Task:
    """Head of a model type, by which its models are classes of their own in transformers."""

    models: tuple[str, ...]
    """Classes that have the head, the one that is written first."""
    starts: tuple[str, ...]
    """Starts of the names of the head's tensors."""
    names: Mapping[str, str]
    """Modules and tensors of the head: jaxformer's name -> full torch name."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Second torch name of a tied tensor -> its first name."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Tensors without a counterpart in JAX -> the reason."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Keys of config.json that describe the head."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are the same in every model with this head."""


@dataclass(frozen=True)
class ModelType:
    """Model type of transformers, as a table."""

    name: str
    """`model_type` in config.json."""
    config: type[AnyModelConfig]
    family: Family
    keys: Mapping[str, Key]
    """Keys that describe the model."""
    model: str
    """Class in transformers that has the family's tensors."""
    base: str
    """Class without a head; equal to `model` if the family has no head."""
    prefix: str
    """Prefix of tensor names in a model with a head."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are the same in every model of this type."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Prefix of the names of a head's tensors that jaxformer has no counterpart for -> the head's task."""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """`head` of an EncoderConfig -> the head that jaxformer has a counterpart for; `heads.with_head` makes its model type."""
    harmless: frozenset[str] = frozenset()
    """Additional keys that change no output."""
    derive: Callable[[dict[str, Any], Collection[str]], dict[str, Any]] | None = None
    """Function that completes jaxformer's fields, given those that the keys set and the names of the tensors."""
    undo: Callable[[Any], dict[str, Any]] | None = None
    """Function that returns the keys whose values `derive` changed, as config.json has them."""
    variant: Callable[[Any], Family | None] | None = None
    """Function that returns the family of configurations that use another one; None for the others."""
    memory: Family | None = None
    """Family of the tensors in transformers' own model; None: they have the names that they have in files."""
    memory_variant: Callable[[Any], Family | None] | None = None
    """Function as `variant`, for the tensors in transformers' own model."""
    parts: Mapping[str, tuple[str, "ModelType"]] = field(default_factory=dict)
    """Key of config.json with a description of its own -> the field that it describes, and the type that reads it. A name
    `part.key` among `keys` is a key of that description."""
    encoder: "ModelType | None" = None
    """Type of folders that hold the encoder of an encoder-decoder alone; None if there are none."""
    unwritten: tuple[str, ...] = ()
    """Fields without a key, which change no output of this type."""

    @property
    def headed(self) -> bool:
        """True if the family's names are those of a model with a head."""
        return self.model != self.base

    def family_of(self, config: AnyModelConfig) -> Family:
        """Return the family of a model of this configuration."""
        return ((self.variant and self.variant(config)) or self.family).sized(config)

    def memory_of(self, config: AnyModelConfig) -> Family:
        """Return the family of transformers' own model of this configuration."""
        if self.memory is None:
            return self.family_of(config)
        return ((self.memory_variant and self.memory_variant(config)) or self.memory).sized(config)

    def read(self, described: Mapping[str, Any], names: Collection[str]) -> AnyModelConfig:
        """Return jaxformer's configuration for the keys of config.json, given the names of the model's tensors.

        ConfigError lists every unknown key, and every value that jaxformer does not support.
        """
        problems = [problem for name, value in described.items() if (problem := self._problem(name, value, described))]
        given, unknown = self.fields_of(described)
        problems += [
            f"{name} = {value!r} is not known, and something else would be computed" for name, value in unknown.items()
        ]
        found: dict[str, Any] = {**({} if self.parts else AT_START), **self.fixed, **given}
        for name, (part, kind) in self.parts.items():
            try:
                found[part] = kind.read(part_of(described, name), names)
            except ConfigError as error:
                problems.append(str(error))
        if not problems:
            try:
                return self.config(**(self.derive(found, names) if self.derive else found))
            except (ConfigError, TypeError) as error:
                problems.append(f"it describes no model: {self._in_keys(str(error), described)}")
            except (ArithmeticError, LookupError, ValueError, AttributeError) as error:
                problems.append(f"it describes no model: a value is 0, too small or of another kind ({error!r})")
        raise ConfigError(f"config.json of a {self.name} cannot be used: {'; '.join(problems)}")

    def fields_of(self, described: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields that the keys set, and the keys whose values are not in their tables."""
        given, unknown = dict[str, Any](), dict[str, Any]()
        for name, key in self.keys.items():
            if isinstance(key, Field):
                value = value_of(described, name, key.default)
                if key.values is not None and value not in list(key.values):
                    unknown[name] = value
                else:
                    given |= dict.fromkeys((key.name, *key.also), value if key.values is None else key.values[value])
        return given, unknown

    def _problem(self, name: str, value: Any, described: Mapping[str, Any]) -> str | None:
        """Return what is wrong with a key; None if nothing is."""
        key = self.keys.get(name, None if name in self.harmless else SWITCHES.get(name))
        if isinstance(key, Only) and value != key.value and value is not None:
            return f"{name} = {value!r:.60} is not supported ({key.value!r} is): {key.otherwise}"
        if isinstance(key, Field) and isinstance(key.default, bool) and not key.values and value not in (True, False, None):
            return f"{name} = {value!r:.60} is neither true nor false"
        if isinstance(key, Same):
            wanted = described.get(key.key, self._default(key.key))
            return None if value == wanted else f"{name} = {value!r:.60} differs from {key.key} = {wanted!r}; here they are one"
        if key is None and name.removesuffix("_dict") not in self.parts and name not in HARMLESS | self.harmless:
            return f"{name} = {value!r:.60} is not a known key; take it out if it changes no output"
        return None

    def _in_keys(self, message: str, described: Mapping[str, Any]) -> str:
        """Replace fields that a message gives the value of by the keys of config.json that have this value."""

        def keyed(found: re.Match[str]) -> str:
            field, value = found.groups()
            keys = (name for name, key in self.keys.items() if isinstance(key, Field) and key.name == field)
            key = next((name for name in keys if repr(value_of(described, name, self._default(name))) == value), field)
            return f"{key} = {value}"

        return re.sub(r"\b(\w+) = ('[^']*'|[^\s;,:]+)", keyed, message)

    def _default(self, name: str) -> Any:
        key = self.keys[name]
        return key.default if isinstance(key, Field) else None

    def head_of(self, name: str) -> str | None:
        """Return the task of the head that a tensor belongs to, if jaxformer has no such head; else None."""
        return next((task for start, task in self.heads.items() if name.startswith(start)), None)

    def write(self, config: AnyModelConfig, names: Collection[str]) -> dict[str, Any]:
        """Return the keys of config.json that describe a model of this configuration, with tensors of these names.

        ConversionError lists the fields that transformers' model cannot represent; for fields of training only, it is a
        warning.
        """
        written: dict[str, Any] = {"model_type": self.name}
        for name, key in self.keys.items():
            if isinstance(key, Field) and hasattr(config, key.name):
                value = getattr(config, key.name)
                words = [word for word, mine in (key.values or {}).items() if mine == value]
                written[name] = words[0] if words else value
        written |= self.undo(config) if self.undo else {}
        for name, (part, kind) in self.parts.items():
            inner = [key for key in written if key.startswith(f"{name}.")]
            written[name] = kind.write(getattr(config, part), names) | {
                key.removeprefix(f"{name}."): written.pop(key) for key in inner
            }
        written |= {name: written[key.key] for name, key in self.keys.items() if isinstance(key, Same)}
        try:
            back = self.read(written, names)
        except ConfigError as error:
            raise ConversionError(str(error)) from None
        untold = *NOT_FUNCTION, *self.unwritten
        if lost := differences(config, back, but=(*untold, *TRAINING)):
            raise ConversionError(f"transformers' {self.name} has no place for {'; '.join(lost)}")
        if lost := differences(config, back, but=untold):
            warnings.warn(f"config.json of a {self.name} has no place for {'; '.join(lost)}: training needs it", stacklevel=4)
        return written
