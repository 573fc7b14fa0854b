"""Settings in a folder of sentence-transformers: its modules, how they pool, and how texts are read.

`modules.json` lists the modules: Transformer, Pooling, and maybe Dense and Normalize, each with a folder of its own.
"""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from jaxformer.config.models import EncoderConfig
from jaxformer.config.sentences import Pooling, SentenceConfig
from jaxformer.errors import CheckpointError, ConfigError, InputError, first_line
from jaxformer.validation.fields import parsed, read_settings, read_small

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
ORDERS = tuple(("Transformer", "Pooling", *dense, *norm) for dense in ((), ("Dense",)) for norm in ((), ("Normalize",)))
"""Classes of the modules, in the orders that are supported."""
TEXTS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json")
"""Names of the file with the settings of the Transformer, the newest first."""
OLDER_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of older files -> poolings, in the order of the vectors that they give."""
TORCH_ACTIVATIONS = {"Tanh": "tanh", "Identity": None, "GELU": "gelu", "ReLU": "relu", "SiLU": "silu"}
"""Classes of torch.nn -> activations of the dense layer."""
IDLE = {
    *(
        "transformer_task",
        "modality_config",
        "processing_kwargs",
        "unpad_inputs",
        "model_args",
        "tokenizer_args",
        "config_args",
    ),
}
"""Settings of the Transformer that change no vector of a text."""
STATES, VECTOR = "token_embeddings", "sentence_embedding"
"""sentence-transformers' names of the states of tokens and of a sentence's vector."""


class Texts(NamedTuple):
    """Settings of the texts that are read."""

    longest: int
    """Longest text, in tokens; a longer one loses its end."""
    lowercase: bool
    prompts: Mapping[str, str]
    """Name of a prompt -> text before every sentence."""
    default_prompt: str | None


def read_modules(folder: Path) -> dict[str, Path]:
    """Return the folder of each module by its class; InputError for a folder without modules, ConfigError for other ones."""
    path = folder / MODULES
    if not path.is_file():
        raise InputError(f"{folder} has no {MODULES}, which says how tokens become a sentence's vector; load it with jf.load")
    try:
        found = {entry["type"].rpartition(".")[2]: folder / entry["path"] for entry in parsed(read_small(path))}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from None
    if tuple(found) not in ORDERS:
        raise ConfigError(
            f"{MODULES} lists {', '.join(found)}; supported are {', then '.join(ORDERS[-1])}, the last two or not"
        )
    if away := [str(it) for it in found.values() if folder.resolve() not in (it.resolve(), *it.resolve().parents)]:
        raise ConfigError(f"{MODULES} names {away[0]}, which is outside of the folder")
    return found


def sentence_config(modules: Mapping[str, Path], encoder: EncoderConfig) -> SentenceConfig:
    """Return the settings of pooling, dense layer and norm, given those of the encoder."""
    pooling = read_settings(modules["Pooling"] / "config.json")
    _check_keys("Pooling", pooling, {"word_embedding_dimension", "embedding_dimension", "pooling_mode", *OLDER_POOLINGS})
    wide = pooling.get("embedding_dimension", pooling.get("word_embedding_dimension", encoder.d_model))
    if wide != encoder.d_model:
        raise ConfigError(f"Pooling is {wide} wide, and the encoder {encoder.d_model}")
    given = {} if "Dense" not in modules else _dense(read_settings(modules["Dense"] / "config.json"))
    return SentenceConfig(encoder=encoder, pooling=_poolings(pooling), normalize="Normalize" in modules, **given)


def _poolings(said: Mapping[str, Any]) -> tuple[Pooling, ...]:
    found = said.get("pooling_mode", [name for key, name in OLDER_POOLINGS.items() if said.get(key)] or "mean")
    names = (found,) if isinstance(found, str) else tuple(found)
    if odd := [name for name in names if name not in get_args(Pooling)]:
        raise ConfigError(f"pooling_mode = {odd[0]!r} is not supported ({', '.join(get_args(Pooling))} are)")
    return names  # pyright: ignore[reportReturnType]


def _dense(said: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys("Dense", said, {"in_features", "out_features", "bias", "activation_function"})
    name = str(said.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if not name.startswith("torch.nn.") or name.rpartition(".")[2] not in TORCH_ACTIVATIONS:
        raise ConfigError(f"activation_function = {name!r} is not supported ({', '.join(TORCH_ACTIVATIONS)} of torch.nn are)")
    activation = TORCH_ACTIVATIONS[name.rpartition(".")[2]]
    return {"dense_width": said["out_features"], "dense_bias": said.get("bias", True), "dense_activation": activation}


NEUTRAL = {
    "include_prompt": True,
    "use_residual": False,
    "module_input_name": VECTOR,
    "module_output_name": VECTOR,
}
"""Settings with one supported value."""


def _check_keys(module: str, said: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ConfigError for a setting of a module that is not supported."""
    for name, value in said.items():
        if name not in known and not (name in NEUTRAL and value == NEUTRAL[name]):
            raise ConfigError(f"{name} = {value!r:.60} of {module} is not supported: the vectors would be others")


def read_texts(folder: Path, modules: Mapping[str, Path], context: int) -> Texts:
    """Return how texts are read; newer files have the longest text in the tokenizer's settings."""
    said = next((it for name in TEXTS if (it := read_settings(modules["Transformer"] / name))), {})
    odd = {name: value for name, value in said.items() if name not in {"max_seq_length", "do_lower_case", *IDLE}}
    if odd.pop("module_output_name", STATES) != STATES or odd:
        raise ConfigError(f"{', '.join(odd) or 'module_output_name'} of its {TEXTS[0]} is not supported")
    tokenizer = read_settings(modules["Transformer"] / "tokenizer_config.json")
    longest = said.get("max_seq_length", tokenizer.get("model_max_length", context))
    prompts = read_settings(folder / PROMPTS)
    given = {name: text or "" for name, text in prompts.get("prompts", {}).items()}
    default = prompts.get("default_prompt_name")
    if default is not None and default not in given:
        raise ConfigError(f"default_prompt_name = {default!r} is none of its prompts ({', '.join(given) or 'it has none'})")
    return Texts(min(int(longest), context), bool(said.get("do_lower_case", False)), given, default)


def copy_modules(folder: Path, target: Path) -> None:
    """Copy everything of a folder of sentence-transformers but the Transformer's own files: a folder written from it pools
    and reads texts alike. InputError, CheckpointError or ConfigError for a folder that is not supported."""
    for name in (MODULES, PROMPTS, *TEXTS):
        if (folder / name).is_file():
            (target / name).write_bytes(read_small(folder / name))
    for module in read_modules(folder).values():
        if module.is_dir() and module.resolve() != folder.resolve():
            shutil.copytree(module, target / module.relative_to(folder))
