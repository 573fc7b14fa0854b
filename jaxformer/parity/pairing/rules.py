"""Rules of tensors whose partners were found: torch's names in each, and one family of all."""

from collections.abc import Mapping

from jaxformer.convert.rules import Family, Join, Rule
from jaxformer.parity.pairing.names import stack_start


def by_layer(rule: Rule) -> tuple[str, ...]:
    """Torch name of each layer."""
    return (rule.torch,) if isinstance(rule.torch, str) else rule.torch


def torch_names(rule: Rule) -> tuple[str, ...]:
    """Torch names of every layer and of every tensor joined in it."""
    return tuple(name for layer in by_layer(rule) for name in parts_of(layer, rule.join))


def parts_of(name: str, join: Join | None) -> tuple[str, ...]:
    """Torch names that a name stands for: itself, or one for each part of the join."""
    return tuple(name.replace("{part}", part) for part in join.names) if join else (name,)


def as_family(rules: Mapping[str, Rule]) -> Family:
    """Make one family of rules that are given by JAX names.

    A stack that holds one tensor starts with that tensor's full name, because other names may have the same prefix.
    """
    stacked = {name: rule.torch for name, rule in rules.items() if not isinstance(rule.torch, str)}
    others = rules.keys() - stacked.keys()
    starts = dict.fromkeys((stack_start(name, stacked, others) for name in stacked), "{layer}.")
    starts |= {name: "" for name in others if name.startswith(tuple(starts))}
    return Family("matched by values", starts, tuple(rules[name] for name in sorted(rules, key=len, reverse=True)))
