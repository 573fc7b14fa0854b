"""Formula of scaled dot-product attention."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.evidence import Evidence
from jaxformer.parity.diagnose.formulas.choices import Choices, Hypothesis
from jaxformer.parity.report.text import count


def attention_choices(evidence: Evidence) -> Choices:
    """List the choices of softmax(q k^T scale) v.

    Queries, keys and values are the last three arrays, or one array that packs them. The mask is one of the given ones, a
    causal one, or both.
    """
    sources = packed(evidence) or separate(evidence)
    if not sources:
        return {}
    q, k, _ = next(iter(sources.values()))
    return {
        "(query, key, value)": sources,
        "heads": {str(n): n for n in (*HEADS, 1) if q.shape[-1] % n == 0},
        "heads laid out": {
            "head by head": (False, False),
            "interleaved": (True, True),
            "interleaved where they are split": (True, False),
            "interleaved where they are merged": (False, True),
        },
        "key heads": {"repeated": False, "tiled": True} if k.shape != q.shape else {"as many": False},
        "scale": {"1/sqrt(head width)": "head width", "1/sqrt(d_model)": "d_model", "1": "none"},
        "mask": masks(evidence.masks),
        "masked scores": {
            "-inf, rows without keys 0": (-np.inf, 0.0, 0.0),
            "-inf, rows without keys NaN": (-np.inf, 0.0, np.nan),
            "large and negative": (-1e9, 0.0, 0.0),
            "-1e4 added": (-1e4, 1.0, 0.0),
        },
        "softmax over": {"keys": -1, "queries": -2},
    }


def separate(evidence: Evidence) -> dict[str, list[np.ndarray]]:
    """Return the last three arrays as (query, key, value) in every order; the order that their names suggest comes first."""
    arrays = [(name, array) for name, array in evidence.before.items() if array.ndim == 3][-3:]

    def unlikely(three: Sequence[tuple[str, np.ndarray]]) -> list[bool]:
        return [not name.startswith(letter) for letter, (name, _) in zip("qkv", three, strict=True)]

    orders = sorted(itertools.permutations(arrays, 3), key=unlikely)
    return {f"({', '.join(name for name, _ in three)})": [array for _, array in three] for three in orders}


def packed(evidence: Evidence) -> dict[str, list[np.ndarray]]:
    """Unpack queries, keys and values from one array: in blocks, or head by head as in GPT-NeoX; empty if none packs them."""
    last = [array for array in evidence.before.values() if array.ndim == 3][-1:]
    inner = [array.shape[-1] for name, array in evidence.before.items() if name.startswith("input")]
    if not last or 3 * min(inner, default=0) != last[0].shape[-1]:
        return {}
    found = {"in blocks": np.split(last[0], 3, -1)}
    for n in (*HEADS, 1):
        if last[0].shape[-1] % (3 * n) == 0:
            parts = last[0].reshape(*last[0].shape[:-1], n, 3, -1)
            found[f"{count(n, 'head')}, each with its own three"] = [
                parts[..., i, :].reshape(found["in blocks"][0].shape) for i in range(3)
            ]
    return found


HEADS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 25, 32, 40, 48, 64)


def attend(**chosen: Any) -> np.ndarray:
    """Compute scaled dot-product attention in the chosen variants."""
    (q, k, v), n, (interleaved, merged) = chosen["(query, key, value)"], chosen["heads"], chosen["heads laid out"]
    width = q.shape[-1] // n
    qh, kh, vh = (split(x, x.shape[-1] // width, interleaved) for x in (q, k, v))
    groups = qh.shape[1] // kh.shape[1]
    if groups > 1:
        kh, vh = (np.tile(x, (1, groups, 1, 1)) if chosen["key heads"] else np.repeat(x, groups, 1) for x in (kh, vh))
    scale = {"head width": width, "d_model": q.shape[-1], "none": 1}[chosen["scale"]] ** -0.5
    scores = qh @ kh.swapaxes(-1, -2) * scale
    fill, kept, empty = chosen["masked scores"]
    scores = np.where(chosen["mask"](scores.shape), scores, fill + kept * scores)
    top = scores.max(chosen["softmax over"], keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(chosen["softmax over"], keepdims=True)
    gathered = np.where(total > 0, weights / total, empty) @ vh
    return gathered.transpose((0, 2, 3, 1) if merged else (0, 2, 1, 3)).reshape(len(gathered), q.shape[1], -1)


def split(x: np.ndarray, heads: int, interleaved: bool) -> np.ndarray:
    """Split `B T D` into heads, `B N T H`; `interleaved`: the heads are the fastest axis."""
    if interleaved:
        return x.reshape(*x.shape[:2], -1, heads).transpose(0, 3, 1, 2)
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def masks(given: Sequence[np.ndarray]) -> dict[str, Callable[[tuple[int, ...]], np.ndarray]]:
    """Return the masks that may have been applied, as functions of the scores' shape."""
    variants: dict[str, np.ndarray] = {}
    for mask in (mask for mask in given if mask.ndim == 4):
        padding = np.asarray(mask.any((-3, -2), keepdims=True))
        variants |= {"as given": mask, "inverted": ~mask, "padding alone": padding, "padding inverted": ~padding}
    every = np.ones((1, 1, 1, 1), bool)
    causal = {"": None, "causal": 0, "causal and one more": 1, "causal and one fewer": -1}
    return {
        ", ".join(filter(None, (name, more))) or "none": partial(_allowed, mask, shift)
        for name, mask in {**variants, "": every}.items()
        for more, shift in causal.items()
    }


def _allowed(mask: np.ndarray, shift: int | None, shape: tuple[int, ...]) -> np.ndarray:
    """Combine a mask with a causal one that is moved by `shift` keys; None: no causal mask."""
    mask = of_keys(mask, shape)
    return mask if shift is None else mask & np.tri(shape[-2], shape[-1], shift).astype(bool)


def of_keys(mask: np.ndarray, scores: tuple[int, ...]) -> np.ndarray:
    """Cut a mask to the number of keys in scores of this shape; a mask for a cache has more."""
    return mask[..., : scores[-1]]


HYPOTHESES = (Hypothesis("attention", attention_choices, attend),)
