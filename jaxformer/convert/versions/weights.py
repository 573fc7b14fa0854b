"""Headers of the weights against config.json: sizes, layers; and what jaxformer makes of the folder."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.convert.family import Family
from jaxformer.convert.model_type import Field, ModelType
from jaxformer.convert.registry import MODEL_TYPES
from jaxformer.convert.versions.finding import ABSENT, Finding, shown
from jaxformer.convert.versions.folder import CONFIG, Folder
from jaxformer.errors import ConfigError, ConversionError

BITS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
"""Types in config.json -> their names in safetensors."""
EQUAL = "refuses tensors of another size"


def check_files(folder: Folder) -> Iterator[Finding]:
    """Yield what is wrong with the files of weights themselves."""
    if folder.fault:
        yield Finding("wrong", "weights", "files", "are incomplete or damaged", "", "", folder.fault)


def check_dtype(folder: Folder) -> Iterator[Finding]:
    """Yield the type in which each version loads the weights when it is not told."""
    held = {tensor.dtype for tensor in folder.tensors.values()} & {*BITS.values()}
    key = next((key for key in ("dtype", "torch_dtype") if folder.config.get(key) is not None), None)
    named = str(folder.config.get(key)).removeprefix("torch.") if key else None
    loads = named or next((name for name, short in BITS.items() if {short} == held), "float32")
    if loads not in ("float16", "bfloat16"):
        return
    rounds = bool(held - {BITS[loads]})
    said = f"loads in {loads}" + (f" and rounds the files' {', '.join(sorted(held))}" if rounds else "")
    value = shown(folder.config.get(key, ABSENT) if key else ABSENT)
    remedy = "give from_pretrained a dtype" + (", and write the type of the files" if rounds else " to have the same in both")
    level = "differs" if rounds else "note"
    yield Finding(level, CONFIG, key or "dtype", value, "loads in float32 unless told", said, remedy)


def check_jaxformer(folder: Folder) -> Iterator[Finding]:
    """Yield why jaxformer does not load the folder, and sizes that differ between config.json and the headers."""
    kind, value = folder.kind, shown(folder.model_type)
    if kind is None:
        known = ", ".join(MODEL_TYPES)
        yield Finding("note", CONFIG, "model_type", value, "", "", f"its own keys are not examined, but those of {known}")
        return
    try:
        config = kind.read(folder.config, folder.tensors)
    except ConfigError as error:
        yield Finding("note", CONFIG, "model_type", value, "", "", f"jaxformer does not load it: {error}")
        yield from check_sizes(folder, kind, kind.family)
        return
    family = kind.family_of(config)
    yield from check_sizes(folder, kind, family)
    if isinstance(config, BlockConfig):
        yield from check_layers(folder, kind, family, config)


def check_sizes(folder: Folder, kind: ModelType, family: Family) -> Iterator[Finding]:
    """Yield sizes in which config.json and the headers differ, one a key, whether or not jaxformer can load the model."""
    own, told = names_of_keys(kind), set[str]()
    for jax, (name, shape) in sizes(kind.fields_of(folder.config)[0]).items():
        tensor, key = first_tensor(folder, kind, family, jax), own.get(name, name)
        if tensor and key not in told and sorted(tensor[1]) != sorted(shape):
            told.add(key)
            value = (
                f"{shown(folder.config.get(key, ABSENT))}, by which {tensor[0]} would be {list(shape)} and is {list(tensor[1])}"
            )
            yield Finding("wrong", CONFIG, key, value, EQUAL, EQUAL, "write the numbers that the weights were trained with")


def names_of_keys(kind: ModelType) -> dict[str, str]:
    """Return the keys of config.json by the fields that they set."""
    return {it.name: key for key, it in kind.keys.items() if isinstance(it, Field)}


def sizes(given: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return shapes of parameters, each with the field that it is of, for those fields that are sizes."""
    numbers = {name: value for name, value in given.items() if type(value) is int and value > 0}
    width, heads = (numbers.get(name, 0) for name in ("d_model", "n_heads"))
    head = numbers.get("head_dim") or (width // heads if heads else 0)
    if "latent_units" in numbers:
        head = numbers["latent_units"] + numbers.get("rotary_dim", 0)
    inner = "dense_d_ff" if "dense_d_ff" in numbers else "d_ff"
    wanted = {
        "embed.token.table": ("vocab_size", (numbers.get("vocab_size", 0), numbers.get("embedding_width", width))),
        "stack.blocks.feed_forward.router.kernel": ("n_experts", (numbers.get("n_experts", 0), width)),
    }
    for stack in ("stack", "encoder", "decoder"):
        blocks = f"{stack}.blocks"
        wanted |= {
            f"{blocks}.attention.query.kernel": ("n_heads", (heads * head, width)),
            f"{blocks}.attention.key.kernel": ("n_kv_heads", (numbers.get("n_kv_heads", heads) * head, width)),
            f"{blocks}.feed_forward.up.kernel": (inner, (numbers.get(inner, 0), width)),
            **dict.fromkeys(
                (f"{stack}.relative_bias.table", f"{blocks}.relative_bias.table"),
                ("relative_buckets", (numbers.get("relative_buckets", 0), heads)),
            ),
        }
    return {jax: (name, shape) for jax, (name, shape) in wanted.items() if all(shape)}


def first_tensor(folder: Folder, kind: ModelType, family: Family, jax: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and shape of the first tensor of a parameter, if the files have it on its own."""
    try:
        rule = family.rule(jax)
        name = family.torch_names(jax, 1)[0]
    except ConversionError:
        return None
    plain = rule.join is None and rule.layout in ("same", "transposed") and rule.part.of == 1
    tensor = folder.tensors.get(name, folder.tensors.get(name.removeprefix(kind.prefix)))
    return (name, tensor.shape) if plain and tensor else None


def check_layers(folder: Folder, kind: ModelType, family: Family, config: BlockConfig) -> Iterator[Finding]:
    """Yield numbers of layers that are not the files'."""
    key = names_of_keys(kind).get("n_layers", "n_layers")
    stacks = {torch: jax for jax, torch in family.stacks.items() if "{layer}" in torch}
    counted = [name for name in folder.tensors if family.why_ignored(name) is None]
    two = isinstance(config, EncoderDecoderConfig)
    for torch, jax in stacks.items():
        wanted = config.decoder.n_layers if two and jax.startswith("decoder") else config.n_layers
        wanted = 1 if config.shared_layers else wanted
        pattern = re.compile(re.escape(torch.removeprefix(kind.prefix)).replace(r"\{layer\}", r"(\d+)"))
        found = len({match[1] for name in counted if (match := pattern.search(name))})
        if found and found != wanted:
            makes = "draws layers at random" if found < wanted else "leaves layers of the files out"
            value = f"{wanted} layers of {torch.partition('.{')[0]}, and the files have {found}"
            yield Finding("wrong", CONFIG, key, f"gives {value}", makes, makes, f"write {found}")
