"""Names in config.json that a version does not know: the model type, activations, types of numbers."""

from collections.abc import Iterator

from jaxformer.convert.model_type import ACTIVATIONS as OWN
from jaxformer.convert.model_type import Field
from jaxformer.convert.versions.finding import Finding, shown
from jaxformer.convert.versions.folder import CONFIG, Folder
from jaxformer.convert.versions.names import ACTIVATIONS, NUMBERS, TYPES, Names

PROJECTION = "feed_forward_proj"
"""Key of T5's types whose last word is an activation: 'gated-gelu'."""


def check_model_type(folder: Folder) -> Iterator[Finding]:
    """Yield a model type that a version does not know, unless the folder names code of its own for it."""
    if "auto_map" not in folder.config:
        yield from _unknown("model_type", folder.config.get("model_type"), folder.model_type, TYPES)


def check_activations(folder: Folder) -> Iterator[Finding]:
    """Yield activations that a version does not know, of the model types whose keys are known."""
    keys = folder.kind.keys if folder.kind is not None else {}
    for name, key in keys.items():
        value = folder.config.get(name)
        if isinstance(value, str) and isinstance(key, Field) and (key.values is OWN or name == PROJECTION):
            yield from _unknown(name, value, value.rpartition("-")[2] if name == PROJECTION else value, ACTIVATIONS)


def check_numbers(folder: Folder) -> Iterator[Finding]:
    """Yield a type that torch does not have; where two keys name one, `dtype` is read, and before 4.56 `torch_dtype`."""
    named = {key: folder.config.get(key) for key in ("dtype", "torch_dtype")}
    types = {key: value.removeprefix("torch.") for key, value in named.items() if isinstance(value, str)}
    for first, (key, name) in enumerate(types.items()):
        if name in NUMBERS.five:
            continue
        if not first:
            yield from _unknown(key, named[key], name, NUMBERS)
        else:
            remedy = "take the key out, or write the type of dtype"
            yield Finding(
                "differs",
                CONFIG,
                key,
                shown(named[key]),
                "refuses it before 4.56, and reads dtype since",
                "reads dtype",
                remedy,
            )


def _unknown(key: str, value: object, name: str, names: Names) -> Iterator[Finding]:
    four, five = ("reads it" if name in known else "refuses it" for known in names)
    if "refuses it" in (four, five):
        near = names.near(name)
        remedy = f"is it {near}?" if near else "write a name that both know"
        yield Finding("wrong" if four == five else "differs", CONFIG, key, shown(value), four, five, remedy)
