"""Headers of the weights against config.json: types, sizes, layers; and what jaxformer makes of the folder."""

import re
from collections.abc import Iterator

from jaxformer.config.models import EncoderDecoderConfig, ModelConfig
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
        return
    yield from check_sizes(folder, kind, config)


def check_sizes(folder: Folder, kind: ModelType, config: ModelConfig) -> Iterator[Finding]:
    """Yield sizes and numbers of layers in which config.json and the headers differ."""
    width, own = config.d_model, {it.name: key for key, it in kind.keys.items() if isinstance(it, Field)}
    wanted = {
        "embed.token.table": ("vocab_size", (config.vocab_size, config.token_width)),
        "stack.blocks.attention.query.kernel": ("n_heads", (config.n_heads * config.head_width, width)),
        "stack.blocks.attention.key.kernel": ("n_kv_heads", (config.kv_heads * config.head_width, width)),
        "stack.blocks.feed_forward.up.kernel": ("d_ff", (config.d_ff, width)),
    }
    for jax, (name, shape) in wanted.items():
        if (tensor := first_tensor(folder, kind, config, jax)) and sorted(tensor[1]) != sorted(shape):
            key = own.get(name, name)
            value = (
                f"{shown(folder.config.get(key, ABSENT))}, by which {tensor[0]} would be {list(shape)} and is {list(tensor[1])}"
            )
            yield Finding("wrong", CONFIG, key, value, EQUAL, EQUAL, "write the numbers that the weights were trained with")
    yield from check_layers(folder, kind, config, own.get("n_layers", "n_layers"))


def first_tensor(folder: Folder, kind: ModelType, config: ModelConfig, jax: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and shape of the first tensor of a parameter, if the files have it on its own."""
    family = kind.family_of(config)
    try:
        rule = family.rule(jax)
        name = family.torch_names(jax, 1)[0]
    except ConversionError:
        return None
    plain = rule.join is None and rule.layout in ("same", "transposed") and rule.part.of == 1
    tensor = folder.tensors.get(name, folder.tensors.get(name.removeprefix(kind.prefix)))
    return (name, tensor.shape) if plain and tensor else None


def check_layers(folder: Folder, kind: ModelType, config: ModelConfig, key: str) -> Iterator[Finding]:
    """Yield numbers of layers that are not the files'."""
    stacks = {jax: torch for jax, torch in kind.family_of(config).stacks.items() if "{layer}" in torch}
    two = isinstance(config, EncoderDecoderConfig)
    for jax, torch in stacks.items():
        wanted = config.decoder.n_layers if two and jax.startswith("decoder") else config.n_layers
        wanted = 1 if config.shared_layers else wanted
        pattern = re.compile(re.escape(torch.removeprefix(kind.prefix)).replace(r"\{layer\}", r"(\d+)"))
        found = len({match[1] for name in folder.tensors if (match := pattern.search(name))})
        if found and found != wanted:
            makes = "draws layers at random" if found < wanted else "leaves layers of the files out"
            value = f"{wanted} layers of {torch.partition('.{')[0]}, and the files have {found}"
            yield Finding("wrong", CONFIG, key, f"gives {value}", makes, makes, f"write {found}")
