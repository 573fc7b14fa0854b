"""Formula of attention with rotary positions, sliding windows, soft caps and norms of queries and keys.

torch's choices are found from the attention scores that its module made; jax's are then searched near to them.
"""

import itertools
import math
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.by_arrays.values import same_but_for_ones
from jaxformer.parity.diagnose.evidence import Evidence
from jaxformer.parity.diagnose.formulas.attention import of_keys, packed, separate
from jaxformer.parity.diagnose.formulas.choices import Choices, Hypothesis

BASES = (10000.0, 500000.0, 1000000.0, 150000.0, 160000.0, 100000.0, 1000.0)
LLAMA3, YARN = 8192.0, (4096.0, 8192.0, 32768.0)
"""Original contexts, before the scaling, in tokens: Llama 3's and those of YaRN."""
PROBED = 23
"""Number of scores that are enough to tell one combination from all others."""
CLOSE = 1e-11
ROTATION = ("rotary pairs", "rotated part", "rotary base", "rotary scaling")
Scaling = tuple[str, float, float]
"""Scaling of the rotary frequencies: kind, factor, and original context."""
SCALINGS: dict[str, Scaling] = {
    "none": ("none", 1.0, 0.0),
    **{f"linear by {n:g}": ("linear", n, 0.0) for n in (2.0, 4.0, 8.0)},
    **{f"llama3 by {n:g}": ("llama3", n, LLAMA3) for n in (8.0, 32.0)},
    **{f"yarn by {n:g} of {of:g}": ("yarn", n, of) for n in (4.0, 32.0, 40.0) for of in YARN},
    **{f"yarn by {n:g} of {of:g}, between pairs": ("yarn between pairs", n, of) for n in (4.0, 32.0) for of in YARN},
}


def placed_choices(evidence: Evidence) -> Choices:
    """List the choices of attention, those that give torch's scores first.

    Empty if no combination gives the scores, or if torch uses none of these features, so that plain attention is enough.
    """
    sources = packed(evidence) or separate(evidence)
    if not sources or not evidence.scores:
        return {}
    projected, scores = next(iter(sources.values())), evidence.scores[-1]
    (batch, length, size), heads = projected[0].shape, scores.shape[1] if scores.ndim == 4 else 0
    if scores.shape != (batch, heads, length, length) or not heads or size % heads or projected[1].shape[1] != length:
        return {}
    width = size // heads
    if any(x.shape[-1] % width or heads % (x.shape[-1] // width) for x in projected):
        return {}  # as of a layer that projects no keys of its own
    q, k, v = (x.reshape(*x.shape[:2], -1, width) for x in projected)
    options = how_scores_are_made(evidence, q, k)
    chosen, allowed = found_in(options, scores), alive(evidence.masks, scores)
    reach = windows(scores, allowed)
    if chosen is None or (chosen == usual(options) and next(iter(reach)) == "none"):
        return {}
    if (cap := options["soft cap"][chosen["soft cap"]]) is not None:
        options["soft cap"][f"{cap[0]:g} after the mask"] = (cap[0], True)
    options = {what: {chosen[what]: each[chosen[what]]} | each for what, each in options.items()}
    return options | {
        "rotary amplitude": {"by the scaling": True, "1": False},
        "rotated": {"forwards": 1, "backwards": -1},
        "window": reach,
        "mask": {"as given": allowed},
        "values": {"as projected": v},
    }


def how_scores_are_made(evidence: Evidence, q: np.ndarray, k: np.ndarray) -> Choices:
    """List the choices of scores of queries `B T N H` and keys `B T K H`."""
    width = q.shape[-1]
    normed = itertools.permutations([x for x in evidence.before.values() if x.shape in (q.shape, k.shape)], 2)
    pairs = [(a, b) for a, b in normed if (a.shape, b.shape) == (q.shape, k.shape)]
    return {
        "queries and keys": {"as projected": (q, k)}
        | {f"normed{', the other way round' * i}": pair for i, pair in enumerate(pairs[:2])},
        "rotary pairs": {"none": None} | ({} if width % 2 else {"half and half": -2, "interleaved": -1}),
        "rotated part": {"all of a head": 1} | {f"1/{n} of a head": n for n in (2, 4) if width % (2 * n) == 0},
        "rotary base": {f"{base:g}": base for base in BASES},
        "rotary scaling": dict(SCALINGS),
        "scale": {"1/sqrt(head width)": width**-0.5, "1/sqrt(256)": 1 / 16, "1": 1.0},
        "soft cap": {"none": None, **{str(cap): (float(cap), False) for cap in (50, 30, 5)}},
    }


def usual(options: Choices) -> dict[str, str]:
    """Return the first option of each choice."""
    return {what: next(iter(each)) for what, each in options.items()}


def found_in(options: Choices, scores: np.ndarray) -> dict[str, str] | None:
    """Return the combination that gives these scores at finite entries, of which some are checked; None if none does."""
    finite = np.argwhere(np.isfinite(scores))
    places = tuple(finite[:: max(len(finite) // PROBED, 1)].T)
    wanted, unrotated = scores[places], tuple(usual(options)[what] for what in ROTATION[1:])
    for names in itertools.product(options["queries and keys"], *(options[what] for what in ROTATION)):
        if names[1] == "none" and names[2:] != unrotated:
            continue
        chosen = dict(zip(("queries and keys", *ROTATION), names, strict=True))
        product = products({what: options[what][name] for what, name in chosen.items()}, places)
        for scale, cap in itertools.product(options["scale"], options["soft cap"]):
            given, most = product * options["scale"][scale], options["soft cap"][cap]
            if np.allclose(given if most is None else capped(given, most[0]), wanted, rtol=CLOSE, atol=CLOSE):
                return chosen | {"scale": scale, "soft cap": cap}
    return None


def products(chosen: dict[str, Any], places: tuple[np.ndarray, ...]) -> np.ndarray:
    """Compute products of rotated queries and keys at these places (batch, head, query, key)."""
    q, k = chosen["queries and keys"]
    b, n, t, s = places
    q, k = q[b, t, n], k[b, s, n // (q.shape[2] // k.shape[2])]
    return (turned(q, t, chosen) * turned(k, s, chosen)).sum(-1)


def attend_placed(**chosen: Any) -> np.ndarray:
    """Compute softmax(softcap(rotated q k^T scale)) v over the keys in the sliding window."""
    (q, k), v, positions = chosen["queries and keys"], chosen["values"], np.arange(chosen["values"].shape[1])[:, None]
    q, k = turned(q, positions, chosen), turned(k, positions, chosen)
    groups = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, groups, 2).transpose(0, 2, 1, 3) for x in (k, v))
    scores = q.transpose(0, 2, 1, 3) @ k.swapaxes(-1, -2) * chosen["scale"]
    near = np.abs(positions - positions.T) < chosen["window"]
    hidden = -np.inf
    if (cap := chosen["soft cap"]) is not None:
        scores, hidden = capped(scores, cap[0]), -cap[0] if cap[1] else -np.inf
    scores = np.where(chosen["mask"] & near, scores, hidden)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    total = weights.sum(-1, keepdims=True)
    gathered = np.where(total > 0, weights / np.where(total > 0, total, 1), 0) @ v
    return gathered.transpose(0, 2, 1, 3).reshape(*q.shape[:2], -1)


def capped(scores: np.ndarray, cap: float) -> np.ndarray:
    """Compute cap tanh(scores / cap)."""
    return cap * np.tanh(scores / cap)


def turned(x: np.ndarray, positions: np.ndarray, chosen: dict[str, Any]) -> np.ndarray:
    """Rotate vectors on the last axis by rotary positions; `positions` broadcasts to the axes before it."""
    axis = chosen["rotary pairs"]
    if axis is None:
        return x
    n = x.shape[-1] // chosen["rotated part"]
    angles, amplitude = angles_of(n, chosen["rotary base"], *chosen["rotary scaling"])
    angles = positions[..., None] * angles * chosen.get("rotated", 1)
    amplitude = amplitude if chosen.get("rotary amplitude", True) else 1.0
    cos, sin = np.cos(angles) * amplitude, np.sin(angles) * amplitude
    pairs = x[..., :n].reshape(*x.shape[:-1], *((n // 2, 2) if axis == -1 else (2, n // 2)))
    a, b = np.moveaxis(pairs, axis, 0)
    both = np.stack([a * cos - b * sin, b * cos + a * sin], axis).reshape(*x.shape[:-1], n)
    return np.concatenate([both, x[..., n:]], -1)


def angles_of(n: int, base: float, kind: str, factor: float, context: float) -> tuple[np.ndarray, float]:
    """Return radians per token for each of n / 2 pairs (n even), and the factor by which rotated units are multiplied."""
    angles = base ** -(np.arange(0, n, 2) / n)
    if kind in ("none", "linear"):
        return angles / factor, 1.0
    if kind == "llama3":
        kept = np.clip((context * angles / (2 * math.pi) - 1) / 3, 0, 1)
        return angles * (kept + (1 - kept) / factor), 1.0
    low, high = (n * math.log(context / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (32, 1))
    if kind == "yarn":
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    ramp = np.clip((np.arange(n // 2) - low) / (high - low or 0.001), 0, 1)
    return angles * (1 - ramp + ramp / factor), 0.1 * math.log(factor) + 1


def alive(masks: Any, scores: np.ndarray) -> np.ndarray:
    """Return the mask before a sliding window: the module's mask, without later keys if its scores hide them, or the finite
    entries of its scores.
    """
    given = [cut for mask in masks if same_but_for_ones(cut := of_keys(mask, scores.shape), scores)]
    seen, later = np.isfinite(scores), ~np.tri(*scores.shape[-2:], dtype=bool)
    if not given:
        return seen
    masked = ~seen.all(-1, keepdims=True)  # a row without any key may be left unmasked
    is_causal = (later & ~seen).any() and not (later & seen & masked).any()
    return given[-1] & ~later if is_causal else given[-1]


def windows(scores: np.ndarray, allowed: np.ndarray) -> dict[str, int]:
    """Return the sizes of the sliding window to try: the one that torch's scores show, one less, one more, and none."""
    length = scores.shape[-1]
    distance = np.abs(np.arange(length)[:, None] - np.arange(length))
    hidden = allowed & ~np.isfinite(scores)
    seen = allowed & np.isfinite(scores) & hidden.any(-1, keepdims=True)  # a row without any key may be left unmasked
    widest = int((distance * seen).max()) + 1 if hidden.any() else length
    return {"none" if n >= length else str(n): n for n in (widest, widest - 1, widest + 1, length) if n > 0}


HYPOTHESES = (Hypothesis("attention with places", placed_choices, attend_placed),)
