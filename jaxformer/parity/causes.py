"""Why a module differs: hypotheses about what each side computed, tried on the values that were recorded.

A hypothesis is a formula with choices: a layer norm has an epsilon, a bias or none, and so on. A cause is named only where one
combination of choices gives torch's array to 1e-12, and another one ours, in float64; it says in which choices they differ.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.measure import difference

EXPLAINED = 1e-12
"""The largest relL2 at which a formula gives an array."""
UNUSUAL = 3
"""How many choices may differ from the first of their kind."""


@dataclass(frozen=True)
class Evidence:
    """What a module had at hand, all of it torch's."""

    before: Mapping[str, np.ndarray]
    """Its float inputs as 'input', 'input 1', ..., and the outputs of its children so far by their names."""
    masks: tuple[np.ndarray, ...]
    """Its boolean inputs."""
    parameters: Mapping[str, np.ndarray]
    """Its own, by our names and in our layout: 'scale', 'bias', 'kernel'."""
    siblings: Mapping[str, Mapping[str, np.ndarray]]
    """Those of the modules beside it, by their names."""


Choices = dict[str, dict[str, Any]]
"""What is open -> what it may be, by name; what is usual comes first."""


@dataclass(frozen=True)
class Hypothesis:
    """choices(evidence) says what may be combined, none if the formula does not apply; compute(**chosen) gives an array."""

    choices: Callable[[Evidence], Choices]
    compute: Callable[..., np.ndarray]


def explain(evidence: Evidence, ours: np.ndarray, theirs: np.ndarray) -> str:
    """'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)', or '' where nothing explains both sides."""
    if np.issubdtype(theirs.dtype, np.integer):
        return explain_ids(ours, theirs)
    for hypothesis in HYPOTHESES:
        choices = hypothesis.choices(evidence)
        usual = {what: next(iter(options)) for what, options in choices.items()}
        if usual and (found := search(hypothesis, choices, usual, theirs)):
            torch_chose, one = found
            if found := search(hypothesis, choices, torch_chose, ours):
                jax_chose, other = found
                differing = [what for what in choices if torch_chose[what] != jax_chose[what]]
                sides = [", ".join(f"{what} {chose[what]}" for what in differing) for chose in (torch_chose, jax_chose)]
                if differing:
                    return f"torch {sides[0]}; jax {sides[1]} (residual {max(one, other):.0e})"
    return explain_sum(evidence, ours, theirs)


def search(
    hypothesis: Hypothesis, choices: Choices, usual: Mapping[str, str], wanted: np.ndarray
) -> tuple[dict[str, str], float] | None:
    """The combination nearest to the usual one that gives the array, and how far it is off."""
    for chosen in near(choices, usual):
        with np.errstate(all="ignore"):
            try:
                array = hypothesis.compute(**{what: choices[what][name] for what, name in chosen.items()})
                residual = difference("", array, wanted).relative
            except (ValueError, ParityError):
                continue
        if residual <= EXPLAINED:
            return chosen, residual
    return None


def near(choices: Choices, usual: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Every combination with at most UNUSUAL others than the usual choices, those with few of them first."""
    for count in range(min(UNUSUAL, len(choices)) + 1):
        for changed in itertools.combinations(choices, count):
            others = ([name for name in choices[what] if name != usual[what]] for what in changed)
            for names in itertools.product(*others):
                yield {**usual, **dict(zip(changed, names, strict=True))}


def explain_ids(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Where one side's ids are the other's and a number."""
    shifts = np.unique(ours.astype(np.int64) - theirs) if ours.shape == theirs.shape else np.array([])
    return f"jax looks up ids {shifts[0]:+d} from torch's" if shifts.size == 1 else ""


def explain_sum(evidence: Evidence, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Where both sides are sums of what came before with constant factors: in which factors they differ."""
    fitting = {name: array for name, array in evidence.before.items() if array.shape == theirs.shape == ours.shape}
    terms = {name: array for name, array in fitting.items() if np.isfinite(array).all()}
    if not terms:
        return ""
    matrix = np.stack([array.ravel() for array in terms.values()], -1)
    factors, worst = [], 0.0
    for wanted in (theirs, ours):
        if not np.isfinite(wanted).all():
            return ""
        solved, *_ = np.linalg.lstsq(matrix, wanted.ravel(), rcond=None)
        worst = max(worst, difference("", matrix @ solved, wanted.ravel()).relative)
        factors.append(np.round(solved, 9) + 0.0)
    differing = [(name, t, j) for name, t, j in zip(terms, *factors, strict=True) if t != j]
    if worst > EXPLAINED or not differing:
        return ""
    sides = [", ".join(f"{values[side]:.6g} times {values[0]}" for values in differing) for side in (1, 2)]
    return f"torch adds {sides[0]}; jax adds {sides[1]} (residual {worst:.0e})"


def norm_choices(evidence: Evidence) -> Choices:
    """Layer norm and RMS norm."""
    scale, bias = evidence.parameters.get("scale"), evidence.parameters.get("bias")
    fitting = {name: x for name, x in evidence.before.items() if scale is not None and x.shape[-1:] == scale.shape}
    if scale is None or not fitting:
        return {}
    return {
        "norm of": fitting,
        "epsilon": {f"{epsilon:g}": epsilon for epsilon in (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 0.0)},
        "mean": {"subtracted": True, "kept": False},
        "variance": {"biased": 0, "unbiased": 1},
        "epsilon's place": {"in the root": False, "outside the root": True},
        "gain": {"as it is": scale, "plus 1": 1 + scale, "left out": np.ones_like(scale)},
        "bias": ({} if bias is None else {"added": bias}) | {"left out": np.zeros_like(scale)},
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
    """A linear layer, with its own weight or that of a layer beside it."""
    kernel, bias = evidence.parameters.get("kernel"), evidence.parameters.get("bias")
    if kernel is None:
        return {}
    fitting = {name: x for name, x in evidence.before.items() if x.shape[-1] == kernel.shape[0]}
    square = {"transposed": kernel.T} if kernel.shape[0] == kernel.shape[1] else {}
    others = {name: own["kernel"] for name, own in evidence.siblings.items() if "kernel" in own}
    biases = {"left out": 0.0} if bias is None else {"added": bias, "left out": 0.0}
    other_biases = {f"of {name}": own["bias"] for name, own in evidence.siblings.items() if "bias" in own}
    weights = {f"of {name}": other for name, other in others.items() if other.shape == kernel.shape}
    return (
        {
            "input": fitting,
            "weight": {"as it is": kernel} | square | weights,
            "bias": biases
            | {name: other for name, other in other_biases.items() if bias is not None and other.shape == bias.shape},
        }
        if fitting
        else {}
    )


def affine(**chosen: Any) -> np.ndarray:
    """x W + b"""
    return chosen["input"] @ chosen["weight"] + chosen["bias"]


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
    """softmax(q k^T scale) v of the last three arrays, under one of the masks there are, or a causal one, or both."""
    arrays = [(name, array) for name, array in evidence.before.items() if array.ndim == 3][-3:]
    if len(arrays) < 3:
        return {}

    def unlikely(three: Sequence[tuple[str, np.ndarray]]) -> list[bool]:
        return [not name.startswith(letter) for letter, (name, _) in zip("qkv", three, strict=True)]

    width = arrays[0][1].shape[-1]
    return {
        "(query, key, value)": {
            f"({', '.join(name for name, _ in three)})": [array for _, array in three]
            for three in sorted(itertools.permutations(arrays), key=unlikely)
        },
        "heads": {str(n): n for n in (*HEADS, 1) if width % n == 0},
        "heads laid out": {"head by head": False, "interleaved": True},
        "scale": {"1/sqrt(head width)": "head width", "1/sqrt(d_model)": "d_model", "1": "none"},
        "mask": masks(evidence.masks),
        "masked scores": {
            "-inf, rows without keys 0": (-np.inf, 0.0, 0.0),
            "-inf, rows without keys NaN": (-np.inf, 0.0, np.nan),
            "-1e9": (-1e9, 0.0, 0.0),
            "-1e4": (-1e4, 0.0, 0.0),
            "-1e4 added": (-1e4, 1.0, 0.0),
        },
        "softmax over": {"keys": -1, "queries": -2},
    }


HEADS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 25, 32, 40, 48, 64)


def attend(**chosen: Any) -> np.ndarray:
    """Scaled dot-product attention in the variants chosen."""
    (q, k, v), n, interleaved = chosen["(query, key, value)"], chosen["heads"], chosen["heads laid out"]
    qh, kh, vh = (
        x.reshape(*x.shape[:2], -1, n).swapaxes(-1, -2) if interleaved else x.reshape(*x.shape[:2], n, -1) for x in (q, k, v)
    )
    scale = {"head width": qh.shape[-1], "d_model": q.shape[-1], "none": 1}[chosen["scale"]] ** -0.5
    scores = np.einsum("btnh,bsnh->bnts", qh, kh) * scale
    fill, kept, empty = chosen["masked scores"]
    scores = np.where(chosen["mask"](scores.shape), scores, fill + kept * scores)
    top = scores.max(chosen["softmax over"], keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(chosen["softmax over"], keepdims=True)
    gathered = np.einsum("bnts,bsnh->btnh", np.where(total > 0, weights / total, empty), vh)
    return (gathered.swapaxes(-1, -2) if interleaved else gathered).reshape(*q.shape[:2], -1)


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


HYPOTHESES = (
    Hypothesis(norm_choices, norm),
    Hypothesis(affine_choices, affine),
    Hypothesis(activation_choices, activate),
    Hypothesis(attention_choices, attend),
)
"""In the order in which they are tried."""
