"""Rotary positions: transformers 4 reads `rope_theta` and `rope_scaling`, and 5 `rope_parameters`, into which it moves those.

Each version's reading is a function to the same form, layer type by layer type: the findings are where the two differ.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxformer.convert.versions.finding import ABSENT, Finding, shown
from jaxformer.convert.versions.folder import CONFIG, Described, Folder, mapping
from jaxformer.convert.versions.names import TYPES as NAMES

WHOLE, NEAR = "full_attention", "sliding_attention"
KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
KINDS = ("default", "dynamic", "linear", "llama3", "longrope", "yarn")
NEW_KINDS = ("axial", "proportional")
"""Kinds of scaling that only transformers 5 has."""
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
REQUIRED = {**dict.fromkeys(("dynamic", "linear", "yarn"), ("factor",)), "llama3": LLAMA3}
"""Kinds of scaling -> keys without which transformers 4 refuses them."""


@dataclass(frozen=True)
class Rotary:
    """Keys and defaults of a model type's rotary positions."""

    theta: float = 1e4
    """Default base in transformers 4."""
    theta_in_5: float | None = None
    """Default base in transformers 5, if it is another one."""
    part: float | None = None
    """Default rotated part of a head; None: heads are rotated as a whole."""
    theta_key: str = "rope_theta"
    part_key: str = "partial_rotary_factor"
    near: tuple[str, float] | None = None
    """Key and default of the base of layers with a sliding window, if they have their own."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """Scaling where config.json has none, in both versions."""
    old_spelling: bool = True
    """True if transformers 4 takes `type` for `rope_type`."""
    flat: bool = True
    """True if transformers 5 takes `rope_parameters` that are not by layer, though it may not read them."""

    @property
    def layers(self) -> dict[str, tuple[str, float]]:
        """Layer types -> key and default of their base; one type without a name if all layers have the same."""
        whole = (self.theta_key, self.theta)
        return {"": whole} if self.near is None else {WHOLE: whole, NEAR: self.near}


GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
GPT_OSS |= {"original_max_position_embeddings": 4096}
MODERNBERT = Rotary(1.6e5, theta_key="global_rope_theta", near=("local_rope_theta", 1e4), flat=False)
HALF, QUARTER = Rotary(part=0.5), Rotary(part=0.25)
TYPES: Mapping[str, Rotary] = {
    **dict.fromkeys(("bitnet", "blt", "csm", "ernie4_5", "ernie4_5_moe", "flex_olmo", "llama4_text"), Rotary(5e5)),
    **dict.fromkeys(("glm", "glm4", "glm4_moe", "nemotron", "phi", "recurrent_gemma"), HALF),
    **dict.fromkeys(("lfm2", "minimax", "mixtral", "phimoe", "qwen2_5_vl_text", "qwen2_vl_text"), Rotary(1e6)),
    "apertus": Rotary(1.2e7, scaling=dict(zip(LLAMA3, (8.0, 1.0, 4.0, 8192), strict=True)) | {"rope_type": "llama3"}),
    "cohere": Rotary(theta_in_5=5e5, old_spelling=False),
    "falcon_h1": Rotary(1e5, theta_in_5=1e4),
    "gemma3_text": Rotary(1e6, near=("rope_local_base_freq", 1e4), old_spelling=False),
    "gpt_neox": Rotary(part=0.25, theta_key="rotary_emb_base", part_key="rotary_pct"),
    "gpt_oss": Rotary(1.5e5, scaling=GPT_OSS),
    "helium": Rotary(1e5),
    "longcat_flash": Rotary(1e7),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), MODERNBERT),
    "nomic_bert": Rotary(1e3),
    "olmo3": Rotary(theta_in_5=5e5, near=("rope_theta", 1e4)),
    "persimmon": Rotary(2.5e4, theta_in_5=1e4, part=0.5),
    "phi3": Rotary(part=1.0),
    "qwen3_next": QUARTER,
    "smollm3": Rotary(2e6),
    "stablelm": QUARTER,
}
"""Model types whose keys or defaults are not those of Llama."""


@dataclass(frozen=True)
class Read:
    """Rotary positions of a layer type as a version reads them, or why it refuses them."""

    theta: Any = None
    part: Any = None
    scaling: Mapping[str, Any] = field(default_factory=dict)
    refuses: str = ""


def check_rotary(folder: Folder) -> Iterator[Finding]:
    """Yield the bases, rotated parts and scalings that the versions read differently, of types that both know."""
    if folder.model_type in NAMES.five - NAMES.four:
        return
    config, row = folder.config, TYPES.get(folder.model_type, Rotary())
    named = (*KEYS, row.theta_key, row.part_key, *(row.near or ())[:1])
    if (folder.kind is not None and "rope_parameters" not in folder.kind.keys) or not (
        folder.model_type in TYPES or any(key in config for key in named)
    ):
        return
    layered = "layer_types" in (config if folder.kind is None else folder.kind.keys)
    four, five = in_4(config, row), in_5(config, row, layered)
    for layer, (key, _) in row.layers.items():
        yield from differences(config, (key, row), layer, (four[layer], five[layer]))
    if "" in four:
        yield from unread(mapping(config.get("rope_scaling")), config.get("rope_parameters"))


def differences(config: Described, keys: tuple[str, Rotary], layer: str, read: tuple[Read, Read]) -> Iterator[Finding]:
    """Yield a finding for each part of one layer type's positions in which two readings differ."""
    key, row = keys
    four, five = read
    where = f"rope_parameters{layer and f'.{layer}'}"
    if four.refuses or five.refuses:
        old, new = (f"refuses it: {it.refuses}" if it.refuses else f"uses {words(it)}" for it in read)
        place = "rope_scaling" if config.get("rope_scaling") else where
        remedy = "write all that the kind of scaling needs, into rope_scaling and rope_parameters alike"
        level = "wrong" if four.refuses and five.refuses else "differs"
        yield Finding(level, CONFIG, place, shown(config.get(place.partition(".")[0], ABSENT)), old, new, remedy)
        return
    found = [
        (f"{where}.rope_theta", four.theta, five.theta, key),
        (f"{where}.{row.part_key}", four.part, five.part, row.part_key),
        (f"{where}.rope_type", dict(four.scaling), dict(five.scaling), "rope_scaling"),
    ]
    for place, old, new, older in found:
        if old != new:
            value = shown(config[older]) if older in config else f"with no {older} beside it"
            remedy = f"write the same into {older}, which 4 reads, and into rope_parameters, which 5 reads"
            yield Finding("differs", CONFIG, place, value, f"uses {plain(old)}", f"uses {plain(new)}", remedy)


def unread(scaling: Mapping[str, Any], parameters: Any) -> Iterator[Finding]:
    """Yield a note about `rope_parameters` that neither version reads, because `rope_scaling` comes first."""
    if scaling and parameters and any(mapping(parameters).get(name) != value for name, value in scaling.items()):
        reads, remedy = "reads rope_scaling instead", "take out the one that is not meant"
        yield Finding("note", CONFIG, "rope_parameters", shown(parameters), reads, reads, remedy)


def in_4(config: Described, row: Rotary) -> dict[str, Read]:
    """Return rotary positions by layer type as transformers 4 reads them: `rope_parameters` is unknown to it."""
    scaling = mapping(config.get("rope_scaling", row.scaling))
    part = config.get(row.part_key, 1.0 if row.part is None else row.part)
    refuses = refused_by_4(scaling, row)
    if row.part is None and part != 1:
        refuses = refuses or f"{row.part_key} = {part} rotates another width than the type's heads have"
    found = {}
    for layer, (key, default) in row.layers.items():
        own = {} if layer == NEAR else scaling
        found[layer] = Read(config.get(key, default), part, scaled(own, config), "" if layer == NEAR else refuses)
    return found


def refused_by_4(scaling: Mapping[str, Any], row: Rotary) -> str:
    """Return why transformers 4 refuses a `rope_scaling`; an empty string if it does not."""
    if not scaling:
        return ""
    kind = scaling.get("rope_type", scaling.get("type") if row.old_spelling else None)
    if kind is None:
        return "rope_scaling names no rope_type"
    if kind not in KINDS:
        return f"it has no scaling {kind}"
    if lacking := [key for key in REQUIRED.get(kind, ()) if scaling.get(key) is None]:
        return f"rope_scaling of {kind} has no {lacking[0]}"
    return ""


def in_5(config: Described, row: Rotary, layered: bool) -> dict[str, Read]:
    """Return rotary positions by layer type as transformers 5 reads them: older keys fill what `rope_parameters` lacks."""
    scaling, parameters = mapping(config.get("rope_scaling")), mapping(config.get("rope_parameters")) or row.scaling
    found = {}
    for layer, (key, default) in row.layers.items():
        rope = dict(scaling or parameters)
        if layer:
            rope = {**mapping(parameters.get(layer)), **(scaling if layer == WHOLE else {})}
        if layer and parameters and not {WHOLE, NEAR} & {*parameters} and (scaling or not row.flat):
            found[layer] = Read(refuses=f"its rope_parameters have no {WHOLE}")
            continue
        if not layer and layered and {WHOLE, NEAR} & {*rope}:
            found[layer] = Read(refuses="rope_parameters are by layer, and this type has the same for all")
            continue
        if (kind := scaled(rope, config)["rope_type"]) not in (*KINDS, *NEW_KINDS):
            found[layer] = Read(refuses=f"it has no scaling {kind}")
            continue
        base = rope.pop("rope_theta", config.get(key, row.theta_in_5 or default))
        part = rope.pop("partial_rotary_factor", config.get(row.part_key, row.part))
        found[layer] = Read(base, 1.0 if row.part is None else part, scaled(rope, config))
    return found


def scaled(rope: Mapping[str, Any], config: Described) -> dict[str, Any]:
    """Return a scaling in one form: its kind, and the numbers that are set; `default` has none."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return {"rope_type": kind}
    numbers = {
        key: value for key, value in rope.items() if key not in ("rope_type", "type", "rope_theta") and value is not None
    }
    original = {"original_max_position_embeddings": config.get("max_position_embeddings")} if kind in ("llama3", "yarn") else {}
    return {"rope_type": kind} | original | numbers


def words(read: Read) -> str:
    """Write rotary positions in a few words."""
    return f"base {read.theta}, {plain(dict(read.scaling))}"


def plain(value: Any) -> str:
    """Write a value in a sentence: a scaling as its kind and numbers."""
    if "rope_type" in mapping(value):
        numbers = ", ".join(f"{key} {number}" for key, number in value.items() if key != "rope_type")
        kind = "no scaling" if value["rope_type"] == "default" else f"scaling {value['rope_type']}"
        return f"{kind} ({numbers})" if numbers else kind
    return str(value)
