"""Settings of config.json that the versions read differently, and heads that one of them ties and the other does not."""

from collections.abc import Iterator
from typing import Any

from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.convert.model_type import Field, ModelType
from jaxformer.convert.versions.finding import ABSENT, Finding, shown
from jaxformer.convert.versions.folder import CONFIG, Folder
from jaxformer.convert.versions.tables import CHANGED, LAYERS, STRICT, WINDOWS, is_typed, may_be_null
from jaxformer.convert.weight_files import Tensor

SAMPLE = 2**16
"""Bytes of two tensors that are compared at both of their ends."""
TIE = "tie_word_embeddings"
T5 = ("t5", "mt5")
RIGHT = {bool: "write true or false", float: "write it with a point, as 1.0", int: "write a whole number without a point"}
"""Types that transformers 5 asks for -> how their values are written."""


def check_changed(folder: Folder) -> Iterator[Finding]:
    """Yield keys whose values only one version reads."""
    for key, changed in CHANGED.items():
        value = folder.config.get(key, ABSENT)
        concerned = not changed.types or folder.model_type in changed.types
        if value is not ABSENT and concerned and changed.matters(value):
            yield Finding("differs", CONFIG, key, shown(value), changed.four, changed.five, changed.remedy)


def check_types(folder: Folder) -> Iterator[Finding]:
    """Yield values that transformers 5 refuses for their types, and version 4 takes or leaves to torch."""
    if (kind := folder.kind) is None:
        return
    for key, wanted in STRICT.items():
        value = folder.config.get(key, ABSENT)
        fits = isinstance(value, wanted) or (value is None and may_be_null(kind, key))
        if value is not ABSENT and not fits and is_typed(kind, key):
            takes, refuses = "takes it, or leaves it to torch", f"refuses what is no {wanted.__name__}"
            yield Finding("differs", CONFIG, key, shown(value), takes, refuses, RIGHT[wanted])


def check_layer_types(folder: Folder) -> Iterator[Finding]:
    """Yield names of layers that transformers 5 refuses, even for types that do not read them."""
    kind = folder.kind
    types = folder.config.get("layer_types")
    known = "layer_types" in kind.keys if kind is not None else True
    if isinstance(types, list) and (odd := [name for name in types if name not in LAYERS.split()]):
        four = "refuses them" if known else "does not read them"
        remedy = "write full_attention or sliding_attention"
        yield Finding("wrong" if known else "differs", CONFIG, "layer_types", shown(odd), four, "refuses them", remedy)


def check_windows(folder: Folder) -> Iterator[Finding]:
    """Yield kinds of layers by which the versions attend in other windows."""
    windows, config, kind = WINDOWS.get(folder.model_type), folder.config, folder.kind
    if windows is None or kind is None:
        return
    given = kind.fields_of(config)[0]
    n_layers, window = given["n_layers"], given["window"] if given.get("use_sliding_window", True) else None
    types = config.get("layer_types")
    if type(n_layers) is not int or (type(window) is int and type(given["context"]) is int and window >= given["context"]):
        return
    four = ["full_attention" if window is None else "sliding_attention"] * n_layers
    if not isinstance(types, list):
        last = given.get("max_window_layers", n_layers)
        types = [name if not windows.by_turns or (i % 2 == 0 and i < last) else "full_attention" for i, name in enumerate(four)]
    if types != four:
        key = "layer_types" if "layer_types" in config else "use_sliding_window"
        yield Finding("differs", CONFIG, key, shown(config.get(key, ABSENT)), windows.four, windows.five, windows.remedy)


def check_head(folder: Folder) -> Iterator[Finding]:
    """Yield a head that a version ties, scales or draws at random, and the other does not."""
    kind = folder.kind
    if kind is None or kind.config not in (GPTConfig, EncoderDecoderConfig):
        return
    four, five = tied(kind, folder.config)
    if kind.name in T5 and len({*(scales := scaled(kind, folder.config))}) == 2:
        said = ["multiplies logits by d_model^-0.5" if it else "does not scale logits" for it in scales]
        value = shown(folder.config.get(TIE, ABSENT))
        remedy = "write true" if scales[1] else "write false, and keep lm_head.weight in the files, which 4 then needs"
        yield Finding("differs", CONFIG, TIE, value, said[0], said[1], remedy)
    heads = [name for name in kind.family.tied if name in ("lm_head.weight", "embed_out.weight")]
    found = next((folder.tensors[name] for name in heads if name in folder.tensors), None)
    table = next((folder.tensors[kind.family.tied[name]] for name in heads if kind.family.tied[name] in folder.tensors), None)
    yield from heads_of_files(folder, (four, five), found, table)


def heads_of_files(folder: Folder, ties: tuple[bool, bool], head: Tensor | None, table: Tensor | None) -> Iterator[Finding]:
    """Yield what the versions make of the head and the table of embeddings that the files hold."""
    four, five = ties
    value = shown(folder.config.get(TIE, ABSENT))
    if head is not None and table is not None and four and not same(head, table):
        own, table_wins = "keeps the head of the files", "replaces the head of the files by the embeddings"
        yield Finding("differs", CONFIG, TIE, value, table_wins, own, "write false, or take the head out of the files")
    named = str(folder.config.get("architectures"))
    if head is None and table is not None and not four and folder.kind is not None and repr(folder.kind.model) in named:
        drawn = "draws the head at random, since the files have none"
        said = "ties it to the embeddings" if five else drawn
        yield Finding("differs" if five else "wrong", CONFIG, TIE, value, drawn, said, "write true, or save the head")


def tied(kind: ModelType, config: Any) -> tuple[bool, bool]:
    """Return whether versions 4 and 5 tie the head to the embeddings; T5's is tied in 5 whatever config.json has."""
    key = kind.keys.get(TIE)
    default = kind.name != "mt5" if not isinstance(key, Field) or key.default is None else key.default
    value = config.get(TIE, default) is True
    return value, value or kind.name in T5


def scaled(kind: ModelType, config: Any) -> tuple[bool, bool]:
    """Return whether versions 4 and 5 multiply a T5's logits by d_model^-0.5."""
    four = bool(config.get(TIE, kind.name == "t5"))
    five = config.get("scale_decoder_outputs", config.get(TIE) is not False)
    return four, bool(five) and kind.name == "t5"


def same(one: Tensor, other: Tensor) -> bool:
    """True if two tensors have one type, shape, and the same bytes at both ends."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return ends(one) == ends(other)


def ends(tensor: Tensor) -> bytes:
    """Read the first and the last bytes of a tensor."""
    with tensor.file.open("rb") as file:
        file.seek(tensor.begin)
        first = file.read(min(SAMPLE, tensor.end - tensor.begin))
        file.seek(max(tensor.begin, tensor.end - SAMPLE))
        return first + file.read(min(SAMPLE, tensor.end - tensor.begin))
