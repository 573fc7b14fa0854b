"""What a rule is, a family of them, and the rules of modules that many models have."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxformer.config.models import BlockConfig
from jaxformer.convert.axes import WHOLE, Axes, Join, Layout, Part, to_jax_axes, to_torch_axes
from jaxformer.convert.patterns import Pattern, Shape, read_pattern
from jaxformer.errors import ConversionError
from jaxformer.validation.fields import check_kind, check_size


@dataclass(frozen=True)
class Rule:
    """`jax` and `torch` are the last parts of a tensor's two names."""

    jax: str
    torch: str | tuple[str, ...]
    """A tuple names each layer of a stacked tensor in full, but for what is joined."""
    layout: Layout = "same"
    part: Part = WHOLE
    """Which part of torch's tensor it is."""
    join: Join | None = None
    """Which of torch's tensors it is, where it is several: their name holds `{part}`."""

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
        """Its layout, where that names axes."""
        named = isinstance(self.layout, str) and self.layout not in ("same", "transposed")
        return read_pattern(self.layout) if named else None  # pyright: ignore[reportArgumentType]

    @property
    def packed(self) -> Pattern | None:
        """The pattern of which it is a summand."""
        return self.pattern if self.pattern and self.part.of > 1 and self.pattern.packed > 1 else None

    def to_jax(self, array: np.ndarray, sizes: Mapping[str, int] = {}, shape: Shape | None = None) -> np.ndarray:
        """Our tensor, of torch's whole one, by the model's sizes; ValueError where it cannot be cut or laid out so, as in
        `shape`."""
        if self.packed:
            return self.packed.to_jax(array, sizes, shape, self.part.number)
        return to_jax_axes(self.part.cut(array), self.layout, sizes, shape)

    def to_torch(self, array: np.ndarray, sizes: Mapping[str, int] = {}, like: np.ndarray | None = None) -> np.ndarray:
        """The inverse: torch's tensor, or its part where that is not a summand; what is dropped is as in `like`."""
        return to_torch_axes(array, self.layout, sizes, like)


@dataclass(frozen=True)
class Family:
    """How one kind of torch checkpoint relates to a JAX model."""

    name: str
    stacks: Mapping[str, str]
    """Start of a JAX name -> start of its torch names. One with `{layer}` is that of a stack; another is only a name. Of
    several that fit, the longest counts."""
    rules: tuple[Rule, ...]
    """The first that fits a name counts. One that spells out a stacked JAX name has `{layer}` in its torch name."""
    constants: frozenset[str] = frozenset()
    """Float arrays of the JAX model, by their whole names, that are no weights: they stay as they are."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Another torch name of a tensor -> its first: whichever of them the JAX model has. Where it has both, torch may not."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """torch's tensors that the JAX model has none of -> the reason. The last parts of their names, where `{layer}` is any
    number and `*` anything."""
    absent: frozenset[str] = frozenset()
    """The same by their whole names, as a comparison finds them."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of axes in layouts that no shape says, as {"N": 12}. A model's own N, K, G and H need not be given."""

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
        """The sizes that its layouts may need: those of the model's configuration, and its own."""
        config, known = getattr(model, "config", None), {}
        if isinstance(config, BlockConfig):
            known = {"N": config.n_heads, "K": config.kv_heads, "G": config.n_heads // config.kv_heads, "H": config.head_width}
        return {**known, **self.sizes}

    def torch_names(self, name: str, n_layers: int) -> list[str]:
        """Where a JAX tensor lives in torch: one name, or those of each layer."""
        return [torch_name for names in self.sources(name, n_layers) for torch_name in names]

    def sources(self, name: str, n_layers: int) -> list[tuple[str, ...]]:
        """The same layer by layer; each has several names where torch's tensors are joined."""
        rule = self.rule(name)
        parts = rule.join.names if rule.join else ("",)
        if isinstance(rule.torch, tuple):
            if len(rule.torch) != n_layers:
                raise ConversionError(f"{name} has {n_layers} layers; family {self.name} has {len(rule.torch)}")
            return [tuple(torch_name.replace("{part}", part) for part in parts) for torch_name in rule.torch]
        stem = name.removesuffix(rule.jax)
        start = self.start(stem)
        torch_name = stem + rule.torch if start is None else self.stacks[start] + stem.removeprefix(start) + rule.torch
        self._check_layer(name, torch_name)
        layers = range(n_layers if self.stacked(name) else 1)
        return [tuple(torch_name.format(layer=layer, part=part) for part in parts) for layer in layers]

    def _check_layer(self, name: str, torch_name: str) -> None:
        """ConversionError where one side has layers and the other has not."""
        stacked, start = self.stacked(name), self.start(name) or ""
        if stacked and name.removeprefix(start).partition(".")[0].isdigit():
            raise ConversionError(
                f"{name}: the JAX model numbers its layers in the names; write {start!r} in stacks without {{layer}}: the "
                "number stays where it is"
            )
        if stacked != ("{layer}" in torch_name):
            raise ConversionError(
                f"{name} has a layer axis, its torch name {torch_name} no number; write {{layer}} into its rule"
                if stacked
                else f"{name} is under no start in stacks with {{layer}}, its torch name is {torch_name}; add its start to "
                "stacks, or leave {layer} out of its rule"
            )

    def start(self, name: str) -> str | None:
        """The start of a JAX name that counts."""
        return max((start for start in self.stacks if name.startswith(start)), key=len, default=None)

    def stacked(self, name: str) -> bool:
        """Whether a JAX tensor carries a layer axis."""
        start = self.start(name)
        return start is not None and "{layer}" in self.stacks[start]

    def rule(self, name: str) -> Rule:
        """The first rule for a JAX tensor; ConversionError where there is none."""
        if (rule := self.ruled(name)) is None:
            raise ConversionError(f"{name} has no rule in family {self.name}")
        return rule

    def ruled(self, name: str) -> Rule | None:
        """The same, or None."""
        return next((rule for rule in self.rules if f".{name}".endswith(f".{rule.jax}")), None)

    def why_ignored(self, torch_name: str) -> str | None:
        """The reason why the JAX model has none of it; None where it has."""
        if torch_name in self.absent:
            return "the JAX model has none"
        for pattern, reason in self.ignored.items():
            parts = re.escape(pattern).replace(r"\{layer\}", r"\d+").replace(r"\*", ".*")
            if re.fullmatch(rf"(.*\.)?{parts}", torch_name):
                return reason
        return None


def module_rules(jax: str, torch: str, kernel: Layout = "transposed") -> tuple[Rule, ...]:
    """`torch.nn.Linear`, `LayerNorm` or `Embedding`, by the two modules' names; '' is the model itself."""
    leaves = ("kernel", "weight", kernel), ("scale", "weight", "same"), ("table", "weight", "same"), ("bias", "bias", "same")
    return tuple(Rule(_below(jax, ours), _below(torch, theirs), layout) for ours, theirs, layout in leaves)


def attention_rules(jax: str, torch: str) -> tuple[Rule, ...]:
    """`torch.nn.MultiheadAttention`, which packs queries, keys and values, for projections that are fused or separate."""
    names = ("kernel", "in_proj_weight", "transposed"), ("bias", "in_proj_bias", "same")
    fused = (Rule(_below(jax, f"qkv.{leaf}"), _below(torch, name), layout) for leaf, name, layout in names)
    separate = (
        Rule(_below(jax, f"{own}.{leaf}"), _below(torch, name), layout, Part(number, 3))
        for number, own in enumerate(("query", "key", "value"))
        for leaf, name, layout in names
    )
    return *fused, *separate, *module_rules(_below(jax, "out"), _below(torch, "out_proj"))


def projection_rules(jax: str, torch: str, names: tuple[str, str, str], out: str) -> tuple[Rule, ...]:
    """Attention of four linear layers, of which torch has these names, for projections that are fused or separate."""
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
    """One `torch.nn.Linear` that holds queries, keys and values, for projections that are fused or separate; `torch` is its
    name. `rows` says how it holds them: "(K (G + 1 + 1) H)" head by head, or by groups of G queries that share a key and a
    value (GPT-NeoX, BLOOM, Falcon, InternLM2); "(K G H + K H + K H)" all queries, all keys, all values (Phi-3, Qwen 1).
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
