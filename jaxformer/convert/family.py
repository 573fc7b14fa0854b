"""Rules, families of rules, and the rules of modules that many models have."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.layer_kinds import starts_of
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.axes import WHOLE, Axes, Join, Layout, Part, to_jax_axes, to_torch_axes
from jaxformer.convert.patterns import Pattern, Shape, read_pattern
from jaxformer.errors import ConversionError
from jaxformer.validation.fields import check_kind, check_size

LAYER = "{layer}", "{later}", "{one}"
"""Places of a layer's number in a torch name: counted from the stack's first layer, or from the model's; none in a stack of
one layer."""
PART = "{part}"
"""Place of the number of a stack among several, in a start of names."""


@lru_cache
def _start_pattern(start: str) -> re.Pattern[str]:
    """Compile a start of names, where `{part}` is a number."""
    return re.compile(re.escape(start).replace(re.escape(PART), r"(\d+)"))


@dataclass(frozen=True)
class Rule:
    """Rule for tensors whose JAX name ends with `jax` and whose torch name ends with `torch`."""

    jax: str
    torch: str | tuple[str, ...]
    """End of the torch name, or a tuple with the full name for each layer of a stacked tensor, in which `{part}` may remain."""
    layout: Layout = "same"
    part: Part = WHOLE
    """Part of the torch tensor that is the JAX tensor."""
    join: Join | None = None
    """Torch tensors that are joined into the JAX tensor; their name holds `{part}`."""

    def __post_init__(self) -> None:
        check_kind("the jax name of a Rule", self.jax, str, "the last parts of its name, as 'up.kernel'")
        check_kind("the torch name of a Rule", self.torch, (str, tuple), "the last parts of its name, as 'fc1.weight'")
        check_kind(f"layout of the rule of {self.jax}", self.layout, (str, Axes), "'same', 'transposed' or axes by name")
        check_kind(f"part of the rule of {self.jax}", self.part, Part, "a Part")
        check_kind(f"join of the rule of {self.jax}", self.join, (Join, type(None)), "a Join, or None")
        packed = self.pattern.packed if self.pattern else 1
        if packed > 1 and self.part.of not in (1, packed):
            raise ConversionError(
                f"the rule of {self.jax} has a layout of {packed} summands and part = {self.part}; give a Part of {packed}"
            )
        names = (self.torch,) if isinstance(self.torch, str) else self.torch
        joined = self.join is not None and not self.join.summed
        if (self.join is not None) != all("{part}" in name for name in names) or (joined and self.part != WHOLE):
            raise ConversionError(
                f"the rule of {self.jax} has torch = {self.torch!r}, join = {self.join} and part = {self.part}; "
                "join goes with a name that holds {part}, and, but for a sum, without part"
            )

    @property
    def pattern(self) -> Pattern | None:
        """Pattern of the layout, if that names axes; else None."""
        named = isinstance(self.layout, str) and self.layout not in ("same", "transposed")
        return read_pattern(self.layout) if named else None  # pyright: ignore[reportArgumentType]

    @property
    def packed(self) -> Pattern | None:
        """Pattern of which this rule's tensor is one summand; None if it is none."""
        return self.pattern if self.pattern and self.part.of > 1 and self.pattern.packed > 1 else None

    def to_jax(self, array: np.ndarray, sizes: Mapping[str, int] = {}, shape: Shape | None = None) -> np.ndarray:
        """Convert the whole torch tensor to the JAX tensor, by the model's sizes.

        `shape` is the JAX tensor's, if known. ValueError if the tensor cannot be cut or laid out so.
        """
        if self.packed:
            return self.packed.to_jax(array, sizes, shape, self.part.number)
        return to_jax_axes(self.part.cut(array), self.layout, sizes, shape)

    def to_torch(self, array: np.ndarray, sizes: Mapping[str, int] = {}, like: np.ndarray | None = None) -> np.ndarray:
        """Convert the JAX tensor to torch's, or to its part; values that are dropped are taken from `like`. For summands use
        `packed`."""
        return to_torch_axes(array, self.layout, sizes, like)


@dataclass(frozen=True)
class Family:
    """Family of torch checkpoints: the rules that relate their tensors to a JAX model."""

    name: str
    stacks: Mapping[str, str]
    """Start of a JAX name -> start of its torch names. With `{layer}` in the torch name, it is the start of a stack, with
    `{later}` of one of several stacks, whose layers torch counts from the model's first one on, with `{one}` of a stack of one
    layer, which torch does not number, else only of names. `{part}` in both is the number of one of several stacks. If several
    fit, the longest counts."""
    rules: tuple[Rule, ...]
    """Rules; the first one that fits a name counts. A rule that spells out a stacked JAX name has `{layer}` in its torch
    name."""
    constants: frozenset[str] = frozenset()
    """Full names of float arrays of the JAX model that are no weights: they stay as they are."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Second torch name of a tied tensor -> its first name, whichever the JAX model has. If the JAX model has both tensors,
    torch's need not be tied."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """torch's tensors without a counterpart in JAX -> the reason. Keys are the last parts of the names, where `{layer}` is any
    number and `*` anything."""
    absent: frozenset[str] = frozenset()
    """Full names of torch's tensors without a counterpart in JAX, as a comparison finds them."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of axes in layouts that no shape determines, as {"N": 12}. A model's own N, K, G, H and E need not be given, nor
    P and Q, the height and width of its patches."""

    def __post_init__(self) -> None:
        check_kind("the name of a Family", self.name, str, "a string")
        for field_name in ("stacks", "tied", "ignored", "sizes"):
            check_kind(f"{field_name} of family {self.name}", getattr(self, field_name), Mapping, "a dict of names")
        for axis, size in self.sizes.items():
            check_size(f"sizes[{axis!r}] of family {self.name}", size)
        check_kind(f"rules of family {self.name}", self.rules, tuple, "a tuple of Rules")
        for rule in self.rules:
            check_kind(f"a rule of family {self.name}", rule, Rule, "a Rule")

    def sizes_for(self, model: Any) -> dict[str, int]:
        """Return the sizes that layouts and joins may need: those of the model or its configuration, and the family's own."""
        config, known = getattr(model, "config", model), {}
        if isinstance(config, BlockConfig):
            known = {"N": config.n_heads, "K": config.kv_heads, "G": config.n_heads // config.kv_heads, "H": config.head_width}
            known |= {"E": config.n_experts} if config.n_experts else {}
            known |= {f"part {n}": start for n, start in enumerate(starts_of(config)) if start}
        vision = config.vision if isinstance(config, DualEncoderConfig) else config
        if isinstance(vision, VisionEncoderConfig):
            known |= dict(zip("PQ", vision.patch_size, strict=True))
        return {**known, **self.sizes}

    def sized(self, model: Any) -> "Family":
        """Return the family with the sizes of a model, or of its configuration, and with all joins spelled out."""
        sizes = self.sizes_for(model)
        rules = tuple(replace(rule, join=rule.join.counted(sizes)) if rule.join else rule for rule in self.rules)
        return replace(self, rules=rules, sizes=sizes)

    def torch_names(self, name: str, n_layers: int) -> list[str]:
        """Return the torch names of a JAX tensor: one name, or those of all layers."""
        return [torch_name for names in self.sources(name, n_layers) for torch_name in names]

    def sources(self, name: str, n_layers: int) -> list[tuple[str, ...]]:
        """Return the torch names of a JAX tensor layer by layer; several per layer if torch's tensors are joined."""
        rule = self.rule(name)
        parts = rule.join.names if rule.join else ("",)
        if isinstance(parts, str):
            raise ConversionError(
                f"no model says the size {parts} of a Join; give sizes={{{parts!r}: ...}} to the family {self.name}"
            )
        if isinstance(rule.torch, tuple):
            if len(rule.torch) != n_layers:
                raise ConversionError(f"{name} has {n_layers} layers; family {self.name} has {len(rule.torch)}")
            return [tuple(torch_name.replace("{part}", part) for part in parts) for torch_name in rule.torch]
        stem = name.removesuffix(rule.jax)
        start, its = self._start(stem)
        torch_name = its + stem.removeprefix(start) + rule.torch
        self._check_layer(name, torch_name, n_layers)
        layers = range(n_layers if self.stacked(name) else 1)
        first = self._first(start)
        return [tuple(torch_name.format(layer=i, later=first + i, one="", part=part) for part in parts) for i in layers]

    def _check_layer(self, name: str, torch_name: str, n_layers: int) -> None:
        """Raise ConversionError if only one side has layers, or torch a single one for several."""
        stacked, start = self.stacked(name), self.start(name) or ""
        if stacked and name.removeprefix(start).partition(".")[0].isdigit():
            raise ConversionError(
                f"{name}: the JAX model numbers its layers in the names; write {start!r} in stacks without {{layer}}: the "
                "number stays where it is"
            )
        if "{one}" in torch_name and n_layers != 1:
            raise ConversionError(f"{name} has {n_layers} layers, and {{one}} in {torch_name} stands for one; write {{layer}}")
        if stacked != any(mark in torch_name for mark in LAYER):
            raise ConversionError(
                f"{name} has a layer axis, its torch name {torch_name} no number; write {{layer}} into its rule"
                if stacked
                else f"{name} is under no start in stacks with {{layer}}, its torch name is {torch_name}; add its start to "
                "stacks, or leave {layer} out of its rule"
            )

    def start(self, name: str) -> str | None:
        """Return the longest start of a JAX name that `stacks` has; None if there is none."""
        return self._start(name)[0] or None

    def _start(self, name: str) -> tuple[str, str]:
        """Return the longest start of a JAX name that `stacks` has, and torch's start; two empty strings if there is none."""
        found = []
        for ours, theirs in self.stacks.items():
            if match := _start_pattern(ours).match(name):
                found.append((match[0], theirs.replace(PART, match[match.lastindex or 0])))
        return max(found, key=lambda it: len(it[0]), default=("", ""))

    def _first(self, start: str) -> int:
        """Return the number of the first layer of the stack whose names have this start, in the model."""
        number = re.search(r"\.(\d+)\.", f".{start}")
        return 0 if number is None else self.sizes.get(f"part {number[1]}", 0)

    def stacked(self, name: str) -> bool:
        """True if a JAX tensor has a layer axis."""
        return any(mark in self._start(name)[1] for mark in LAYER)

    def rule(self, name: str) -> Rule:
        """Return the first rule for a JAX tensor; ConversionError if there is none."""
        if (rule := self.ruled(name)) is None:
            raise ConversionError(f"{name} has no rule in family {self.name}")
        return rule

    def ruled(self, name: str) -> Rule | None:
        """Return the first rule for a JAX tensor, or None."""
        return next((rule for rule in self.rules if f".{name}".endswith(f".{rule.jax}")), None)

    def why_ignored(self, torch_name: str) -> str | None:
        """Return the reason why a torch tensor has no counterpart in JAX; None if it has one."""
        if torch_name in self.absent:
            return "the JAX model has none"
        for pattern, reason in self.ignored.items():
            parts = re.escape(pattern).replace(r"\{layer\}", r"\d+").replace(r"\*", ".*")
            if re.fullmatch(rf"(.*\.)?{parts}", torch_name):
                return reason
        return None


def stacks_below(start: str) -> dict[str, str]:
    """Return `stacks` of a model whose layers begin with `start` and a number: of one stack, and of several."""
    return {"stack.blocks.": f"{start}{{layer}}.", f"stack.parts.{PART}.blocks.": f"{start}{{later}}."}


def module_rules(jax: str, torch: str, kernel: Layout = "transposed") -> tuple[Rule, ...]:
    """Return rules for `torch.nn.Linear`, `LayerNorm` or `Embedding`, by the names of both modules; '' is the model itself."""
    leaves = ("kernel", "weight", kernel), ("scale", "weight", "same"), ("table", "weight", "same"), ("bias", "bias", "same")
    return tuple(Rule(_below(jax, ours), _below(torch, theirs), layout) for ours, theirs, layout in leaves)


def attention_rules(jax: str, torch: str) -> tuple[Rule, ...]:
    """Return rules for `torch.nn.MultiheadAttention`, which packs queries, keys and values; JAX's may be fused or separate."""
    names = ("kernel", "in_proj_weight", "transposed"), ("bias", "in_proj_bias", "same")
    fused = (Rule(_below(jax, f"qkv.{leaf}"), _below(torch, name), layout) for leaf, name, layout in names)
    separate = (
        Rule(_below(jax, f"{own}.{leaf}"), _below(torch, name), layout, Part(number, 3))
        for number, own in enumerate(("query", "key", "value"))
        for leaf, name, layout in names
    )
    return *fused, *separate, *module_rules(_below(jax, "out"), _below(torch, "out_proj"))


def projection_rules(jax: str, torch: str, names: tuple[str, str, str], out: str) -> tuple[Rule, ...]:
    """Return rules for attention of four linear layers, which torch calls by these names; JAX's projections may be fused or
    separate."""
    fused = (("kernel", "weight", "transposed"), ("bias", "bias", "same"))
    check_kind("names", names, tuple, "torch's names of query, key and value")
    if len(names) != 3:
        raise ConversionError(f"names = {names} of the projections are {len(names)}; give three: of query, key and value")
    modules, join = zip(("query", "key", "value", "out"), (*names, out), strict=True), Join(names, shares=("N", "K", "K"))
    return (
        *(Rule(_below(jax, f"qkv.{a}"), _below(torch, f"{{part}}.{b}"), layout, join=join) for a, b, layout in fused),
        *(rule for own, name in modules for rule in module_rules(_below(jax, own), _below(torch, name))),
    )


def packed_rules(jax: str, torch: str, rows: str = "(K (G + 1 + 1) H)") -> tuple[Rule, ...]:
    """Return rules for one `torch.nn.Linear`, named `torch`, that holds queries, keys and values.

    JAX's projections may be fused or separate. `rows` is torch's order: "(K (G + 1 + 1) H)" head by head, or by groups of G
    queries that share a key and a value (GPT-NeoX, BLOOM, Falcon, InternLM2); "(K G H + K H + K H)" all queries, all keys, all
    values (Phi-3, Qwen 1).
    """
    fused = "(K G H + K H + K H)"
    leaves = ("kernel", "weight", f"{rows} D -> D {fused}"), ("bias", "bias", f"{rows} -> {fused}")
    parts = {"qkv": WHOLE, "query": Part(0, 3), "key": Part(1, 3), "value": Part(2, 3)}
    return tuple(
        Rule(_below(jax, f"{own}.{leaf}"), f"{torch}.{name}", layout, part)
        for own, part in parts.items()
        for leaf, name, layout in leaves
    )


def _below(module: str, name: str) -> str:
    check_kind("the name of a module", module, str, "a string; '' is the model itself")
    return f"{module}.{name}" if module else name
