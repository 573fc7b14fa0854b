"""What a module may have computed: formulas with choices, one function each, and a table of them.

A new one is two functions and a line in `HYPOTHESES`.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Evidence:
    """What a module had at hand, all of it torch's."""

    before: Mapping[str, np.ndarray]
    """Its float inputs as 'input', 'input 1', ..., and the outputs of its children so far by their names."""
    masks: tuple[np.ndarray, ...]
    """Its boolean inputs."""
    parameters: Mapping[str, np.ndarray]
    """Its own by what they are: 'scale', 'bias', 'kernel' (inputs first), 'table'."""
    others: Mapping[str, Mapping[str, np.ndarray]]
    """Those of every other module: by its name where it lies beside, by its path elsewhere."""


Choices = dict[str, dict[str, Any]]
"""What is open -> what it may be, by name; what is usual comes first."""


@dataclass(frozen=True)
class Hypothesis:
    """choices(evidence) says what may be combined, none if the formula does not apply; compute(**chosen) gives an array."""

    choices: Callable[[Evidence], Choices]
    compute: Callable[..., np.ndarray]


EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 0.0, 1e-4, 1e-7, 1e-10, float(np.finfo(np.float32).eps))
"""The last is that of torch's RMSNorm for float32, if none is given."""


def norm_choices(evidence: Evidence) -> Choices:
    """Layer norm and RMS norm."""
    scale, bias = evidence.parameters.get("scale"), evidence.parameters.get("bias")
    fitting = {name: x for name, x in evidence.before.items() if scale is not None and x.shape[-1:] == scale.shape}
    if scale is None or not fitting:
        return {}
    others = {f"of {path}": own["scale"] for path, own in evidence.others.items() if same_shape(own.get("scale"), scale)}
    other_biases = {f"of {path}": own["bias"] for path, own in evidence.others.items() if same_shape(own.get("bias"), scale)}
    return {
        "norm of": fitting,
        "epsilon": {f"{epsilon:g}": epsilon for epsilon in EPSILONS},
        "mean": {"subtracted": True, "kept": False},
        "variance": {"biased": 0, "unbiased": 1},
        "epsilon's place": {"in the root": False, "outside the root": True},
        "gain": {"as it is": scale, "plus 1": 1 + scale, "left out": np.ones_like(scale)} | others,
        "bias": ({} if bias is None else {"added": bias}) | {"left out": np.zeros_like(scale)} | other_biases,
    }


def norm(**chosen: Any) -> np.ndarray:
    """(x - mean) / sqrt(variance + epsilon) gain + bias, in the variants chosen."""
    x = chosen["norm of"]
    y = x - x.mean(-1, keepdims=True) if chosen["mean"] else x
    variance = (y**2).sum(-1, keepdims=True) / (x.shape[-1] - chosen["variance"])
    epsilon = chosen["epsilon"]
    y = y / (np.sqrt(variance) + epsilon if chosen["epsilon's place"] else np.sqrt(variance + epsilon))
    return y * chosen["gain"] + chosen["bias"]


def affine_choices(evidence: Evidence) -> Choices:
    """A linear layer, with its own weights or those of another one; without any, with a table of embeddings."""
    kernel, bias = evidence.parameters.get("kernel"), evidence.parameters.get("bias")
    weights = tied(evidence.others, bias) if kernel is None else own_or_other(evidence.others, kernel, bias)
    if not weights:
        return {}
    wide = next(iter(weights.values()))[0].shape[0]
    fitting = {name: x for name, x in evidence.before.items() if x.shape[-1] == wide}
    if not fitting:
        return {}
    return {
        "input": fitting,
        "scale": {"1": 1.0, "1/sqrt(d_model)": wide**-0.5},
        "weight": weights,
        "bias": {"left out": False} if bias is None else {"added": True, "left out": False},
    }


Weights = dict[str, tuple[np.ndarray, np.ndarray | None]]


def own_or_other(others: Mapping[str, Mapping[str, np.ndarray]], kernel: np.ndarray, bias: np.ndarray | None) -> Weights:
    """A module's kernel and bias, and all that could be taken for them."""
    square = {"transposed": (kernel.T, bias)} if kernel.shape[0] == kernel.shape[1] else {}
    return (
        {"as it is": (kernel, bias)}
        | square
        | {
            f"of {path}": (own["kernel"], own.get("bias"))
            for path, own in others.items()
            if same_shape(own.get("kernel"), kernel) and same_shape(own.get("bias"), bias)
        }
    )


def tied(others: Mapping[str, Mapping[str, np.ndarray]], bias: np.ndarray | None) -> Weights:
    """Tables whose rows read out as many numbers as there are biases."""
    tables = {path: own["table"] for path, own in others.items() if "table" in own}
    return {
        f"the table of {path}": (table.T, bias)
        for path, table in tables.items()
        if bias is not None and len(table) == bias.size
    }


def affine(**chosen: Any) -> np.ndarray:
    """scale x W + b"""
    kernel, bias = chosen["weight"]
    return chosen["scale"] * chosen["input"] @ kernel + (bias if chosen["bias"] else 0.0)


def same_shape(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Of two arrays, or none on both sides."""
    return one is other if one is None or other is None else one.shape == other.shape


def activation_choices(evidence: Evidence) -> Choices:
    """A function of what came last, or of one of the last two times the other."""
    last = list(evidence.before.values())[-2:]
    gates = {"none": (last[-1], 1.0)} if last else {}
    if len(last) == 2 and last[0].shape == last[1].shape:
        gates |= {"first": (last[0], last[1]), "second": (last[1], last[0])}
    return {"activation": dict(ACTIVATIONS), "gate": gates} if gates else {}


def activate(**chosen: Any) -> np.ndarray:
    """f(gate) times the other, if there is one."""
    gate, value = chosen["gate"]
    return chosen["activation"](gate) * value


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))"""
    return 0.5 * (1 + np.tanh(0.5 * x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))),
    "gelu by tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick gelu": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "squared relu": lambda x: np.maximum(x, 0) ** 2,
    "none": lambda x: x,
}


def attention_choices(evidence: Evidence) -> Choices:
    """softmax(q k^T scale) v of the last three arrays, or of one that packs them, under one of the masks there are, or a
    causal one, or both."""
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
    """The last three arrays, in every order; what is called query, key and value is taken for it first."""
    arrays = [(name, array) for name, array in evidence.before.items() if array.ndim == 3][-3:]

    def unlikely(three: Sequence[tuple[str, np.ndarray]]) -> list[bool]:
        return [not name.startswith(letter) for letter, (name, _) in zip("qkv", three, strict=True)]

    orders = sorted(itertools.permutations(arrays, 3), key=unlikely)
    return {f"({', '.join(name for name, _ in three)})": [array for _, array in three] for three in orders}


def packed(evidence: Evidence) -> dict[str, list[np.ndarray]]:
    """One array that holds all three: in blocks, or head by head as GPT-NeoX has it."""
    last = [array for array in evidence.before.values() if array.ndim == 3][-1:]
    inner = [array.shape[-1] for name, array in evidence.before.items() if name.startswith("input")]
    if not last or 3 * min(inner, default=0) != last[0].shape[-1]:
        return {}
    found = {"in blocks": np.split(last[0], 3, -1)}
    for n in (*HEADS, 1):
        if last[0].shape[-1] % (3 * n) == 0:
            parts = last[0].reshape(*last[0].shape[:-1], n, 3, -1)
            found[f"{n} heads, each with its own three"] = [
                parts[..., i, :].reshape(found["in blocks"][0].shape) for i in range(3)
            ]
    return found


HEADS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 25, 32, 40, 48, 64)


def attend(**chosen: Any) -> np.ndarray:
    """Scaled dot-product attention in the variants chosen."""
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
    return gathered.transpose((0, 2, 3, 1) if merged else (0, 2, 1, 3)).reshape(*q.shape[:2], -1)


def split(x: np.ndarray, heads: int, interleaved: bool) -> np.ndarray:
    """`B T D` as `B N T H`."""
    return (
        x.reshape(*x.shape[:2], -1, heads).transpose(0, 3, 1, 2)
        if interleaved
        else (x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3))
    )


def masks(given: Sequence[np.ndarray]) -> dict[str, Callable[[tuple[int, ...]], np.ndarray]]:
    """What may be attended to, as functions of the scores' shape."""
    causal = {"causal": 0, "causal and one more": 1, "causal and one fewer": -1}
    ready = {"none": partial(_allowed, None, None)} | {name: partial(_allowed, None, shift) for name, shift in causal.items()}
    found: dict[str, Callable[[tuple[int, ...]], np.ndarray]] = {}
    for mask in (mask for mask in given if mask.ndim == 4):
        padding = np.asarray(mask.any((-3, -2), keepdims=True))
        variants = {"as given": mask, "inverted": ~mask, "padding alone": padding, "padding inverted": ~padding}
        for name, variant in variants.items():
            found[name] = partial(_allowed, variant, None)
            found |= {f"{name}, {more}": partial(_allowed, variant, shift) for more, shift in causal.items()}
    return found | ready


def _allowed(mask: np.ndarray | None, shift: int | None, shape: tuple[int, ...]) -> np.ndarray:
    """A mask, under a causal one that is moved by `shift`; None leaves either out."""
    allowed = np.ones((1, 1, 1, 1), bool) if mask is None else mask
    return allowed if shift is None else allowed & np.tri(shape[-2], shape[-1], shift).astype(bool)


def embedding_choices(evidence: Evidence) -> Choices:
    """A table's rows, scaled, and sinusoid positions (Vaswani et al. 2017, section 3.5)."""
    tokens = {name: x for name, x in list(evidence.before.items())[:1] if x.ndim == 3 and not name.startswith("input")}
    width = next((x.shape[-1] for x in tokens.values()), 1)
    if width % 2:
        return {}
    return {
        "embedding": tokens,
        "embedding scale": {"1": 1.0, "sqrt(d_model)": math.sqrt(width), "1/sqrt(d_model)": 1 / math.sqrt(width)},
        "positions": {"sinusoid": False, "sinusoid in blocks": True},
        "first position": {str(first): first for first in (0, 1, 2, -1)},
    }


def embed(**chosen: Any) -> np.ndarray:
    """x scale + sin and cos of the positions."""
    x, first = chosen["embedding"], chosen["first position"]
    rates = 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = np.arange(first, first + x.shape[1])[:, None] * rates
    waves = np.stack([np.sin(angles), np.cos(angles)], -2 if chosen["positions"] else -1)
    return x * chosen["embedding scale"] + waves.reshape(x.shape[1:])


HYPOTHESES = (
    Hypothesis(norm_choices, norm),
    Hypothesis(affine_choices, affine),
    Hypothesis(embedding_choices, embed),
    Hypothesis(activation_choices, activate),
    Hypothesis(attention_choices, attend),
)
"""In the order in which they are tried."""
