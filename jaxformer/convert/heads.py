"""Heads of transformers' encoders: a model type with a head is a model type of its own, made of the base's table and a task's.

In torch, the encoder's tensors then have a prefix, and the head's are beside them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from jaxformer.config.dual import AnyModelConfig
from jaxformer.config.models import LABELLED, EncoderConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.family import Family, Rule, module_rules
from jaxformer.convert.model_type import Field, ModelType, Task
from jaxformer.errors import ConfigError, ConversionError

LABELS = {"id2label": Field("id2label", None), "num_labels": Field("num_labels", None)}
"""Keys that name the labels, or count them."""
DECODER = "decoder.", "model.decoder."
"""Starts of the names of a decoder's tensors."""
FEWEST_LABELS = 2
"""Number of labels where config.json says none."""


def find_head(kind: ModelType, described: Mapping[str, Any], names: Collection[str]) -> str:
    """Return the head in files with tensors of these names: the one that `architectures` names, or without any the only one
    that the tensors can be of; "none" if there is none, or none that jaxformer has.
    """
    classes = described.get("architectures") or ()
    found = [head for head, task in kind.tasks.items() if any(name.startswith(task.starts) for name in names)]
    if classes:
        found = [head for head in found if {*kind.tasks[head].models} & {*classes}]
    return found[0] if len(found) == 1 else "none"


def with_head(kind: ModelType, head: str) -> ModelType:
    """Return the model type of a base's models with this head; ConversionError if transformers has none, or jaxformer no
    counterpart."""
    if head == "none":
        return kind
    if head not in kind.tasks:
        known = ", ".join(kind.tasks) or "none"
        raise ConversionError(f"transformers' {kind.name} has no place for head = {head!r} ({known} there)")
    task = kind.tasks[head]
    held = *task.starts, *task.names.values()
    labelled = head in LABELLED or kind.config is VisionEncoderConfig

    def derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
        found = _labelled(found) if labelled else found
        found = kind.derive(found, names) if kind.derive else found
        return found | {"head_dropout": found["residual_dropout"]} if found.get("head_dropout", 0) is None else found

    def undo(config: Any) -> dict[str, Any]:
        return (kind.undo(config) if kind.undo else {}) | (_labels(config) if labelled else {})

    return replace(
        kind,
        family=_family(kind.family, kind.prefix, task),
        variant=_variant(kind.variant, kind.prefix, task),
        memory=None if kind.memory is None else _family(kind.memory, kind.prefix, task),
        memory_variant=_variant(kind.memory_variant, kind.prefix, task),
        keys={**kind.keys, **task.keys, **(LABELS if labelled else {})},
        fixed={**kind.fixed, **task.fixed, "head": head},
        model=task.models[0],
        heads={start: name for start, name in kind.heads.items() if not any(it.startswith(start) for it in held)},
        derive=derive,
        undo=undo,
    )


def find_variant(kind: ModelType, described: Mapping[str, Any], names: Collection[str]) -> ModelType:
    """Return the model type of files with tensors of these names: that of their head, or of an encoder alone."""
    if kind.encoder is not None and not any(name.startswith(DECODER) for name in names):
        return kind.encoder
    return with_head(kind, find_head(kind, described, names))


def variant_for(kind: ModelType, config: AnyModelConfig) -> ModelType | None:
    """Return the model type of a configuration, given its base's, as `find_variant`; None if it has none of that class."""
    found = next((it for it in (kind, kind.encoder) if it is not None and it.config is type(config)), None)
    return with_head(found, config.head) if found and isinstance(config, EncoderConfig | VisionEncoderConfig) else found


def _variant(variant: Callable[[Any], Family | None] | None, start: str, task: Task) -> Callable[[Any], Family | None] | None:
    """Return the choice of another family, for models with the head."""
    if variant is None:
        return None

    def with_task(config: Any) -> Family | None:
        base = variant(config)
        return None if base is None else _family(base, start, task)

    return with_task


def _family(base: Family, start: str, task: Task) -> Family:
    """Return the base's family under the prefix, with the head's rules; these come first and give full names."""
    rules = [rule for jax, torch in task.names.items() for rule in _rules(jax, torch)]
    return replace(
        base,
        stacks={"": start} | {ours: start + theirs for ours, theirs in base.stacks.items()},
        rules=(*rules, *base.rules),
        tied={start + alias: start + held for alias, held in base.tied.items()} | dict(task.tied),
        ignored={**base.ignored, **task.ignored},
    )


def _rules(jax: str, torch: str) -> list[Rule]:
    """Return the rules of a module, or of a single tensor: one without a module in torch."""
    if jax.endswith(".bias"):
        return [Rule(jax, (torch,))]
    return [replace(rule, torch=(rule.torch,)) for rule in module_rules(jax, torch)]


def _labelled(found: dict[str, Any]) -> dict[str, Any]:
    """Set `labels` by the names of config.json, or by their number."""
    names, n = found.pop("id2label"), found.pop("num_labels")
    if not names:
        return found | {"labels": tuple(f"LABEL_{i}" for i in range(FEWEST_LABELS if n is None else n))}
    if n not in (None, len(names)):
        raise ConfigError(f"num_labels = {n} differs from the {len(names)} labels of id2label; take the wrong one out")
    return found | {"labels": tuple(names[i] for i in sorted(names, key=int))}


def _labels(config: EncoderConfig | VisionEncoderConfig) -> dict[str, Any]:
    names = {str(i): name for i, name in enumerate(config.labels)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
