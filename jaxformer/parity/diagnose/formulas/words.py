"""Words for the choices of formulas: verb phrases, by the names of the choice and of its option."""

from collections.abc import Mapping
from typing import Any

OTHER = "{}"
"""Key of the phrase for options that are not listed."""
GIVEN = {
    "": "no mask",
    "as given": "the mask as given",
    "inverted": "the mask inverted",
    "padding alone": "the padding mask",
    "padding inverted": "the padding mask inverted",
}
CAUSAL = {
    "": "",
    "causal": "a causal one",
    "causal and one more": "a causal one that lets through one key too many (`tril(k=1)` for `tril()`)",
    "causal and one fewer": "a causal one that hides one key too many (`tril(k=-1)` for `tril()`)",
}


def masked(given: str, causal: str) -> str:
    """Describe a mask: 'applies the padding mask and a causal one'."""
    if not given and causal:
        return f"applies {CAUSAL[causal].replace('one', 'mask', 1)}"
    return f"applies {GIVEN[given]}" + (f" and {CAUSAL[causal]}" if causal else "")


MASKS = {", ".join(filter(None, (g, c))) or "none": masked(g, c) for g in GIVEN for c in CAUSAL} | {
    "padding alone": "applies the padding mask alone, no causal one"
}
NORMS = {
    "norm of": {OTHER: "normalises {}"},
    "mean": {"subtracted": "subtracts the mean (LayerNorm)", "kept": "does not subtract the mean (RMSNorm)"},
    "variance": {"biased": "divides the variance by n (biased)", "unbiased": "divides the variance by n - 1 (unbiased)"},
    "epsilon's place": {
        "in the root": "adds epsilon under the root: sqrt(x + eps)",
        "outside the root": "adds epsilon after the root: sqrt(x) + eps",
        "in and outside": "adds epsilon under the root and after it: sqrt(x + eps) + eps",
    },
    "gain": {
        "as it is": "multiplies by the gain",
        "plus 1": "multiplies by 1 + gain",
        "left out": "does not multiply by the gain",
        OTHER: "multiplies by the gain {}",
    },
    "bias": {
        "added": "adds the bias",
        "left out": "does not add the bias",
        "added twice": "adds the bias twice",
        OTHER: "adds the bias {}",
    },
    "batch norm of": {OTHER: "normalises {}"},
    "statistics": {
        "of the batch": "normalises by the batch's own statistics (training)",
        "running": "normalises by the running statistics (inference)",
        "of each row": "normalises each row by its own statistics (instance norm)",
    },
    "channels along": {OTHER: "has its channels along {}"},
}
LAYERS = {
    "input": {OTHER: "multiplies {}"},
    "scale": {"1": "does not scale", OTHER: "scales by {}"},
    "weight": {"as it is": "uses its own weight", "transposed": "uses its weight transposed", OTHER: "uses the weight {}"},
    "embedding": {OTHER: "embeds by {}"},
    "embedding scale": {"1": "does not scale embeddings", OTHER: "multiplies embeddings by {}"},
    "positions": {
        "sinusoid": "has sines and cosines of positions in turns",
        "sinusoid in blocks": "has all sines of positions before all cosines",
    },
    "first position": {OTHER: "counts positions from {}"},
    "ids": {OTHER: "looks up {}"},
    "table": {"as it is": "looks up its own table", OTHER: "looks up the table {}"},
    "gate": {"none": "has no gate", OTHER: "activates the {} of the two (gate)"},
}
ATTENTION = {
    "(query, key, value)": {
        "in blocks": "has q, k and v packed in blocks: all of q, then k, then v",
        OTHER: "takes {} as (query, key, value)",
    },
    "heads": {OTHER: "splits into heads: {}"},
    "heads laid out": {
        "head by head": "splits as (heads, width)",
        "interleaved": "splits as (width, heads)",
        "interleaved where they are split": "splits as (width, heads), and merges (heads, width)",
        "interleaved where they are merged": "merges (width, heads), and splits as (heads, width)",
    },
    "key heads": {
        "repeated": "repeats each key and value head: 0 0 1 1 (`repeat`)",
        "tiled": "tiles key and value heads: 0 1 0 1 (`tile`)",
    },
    "mask": MASKS,
    "masked scores": {
        "-inf, rows without keys 0": "masks by -inf, and gives 0 where no key is left",
        "-inf, rows without keys NaN": "masks by -inf, and gives NaN where no key is left",
        "large and negative": "masks by a large negative number, and gives a mean where no key is left",
        "-1e4 added": "adds -1e4 to masked scores, which leaves them apart where no key is left",
    },
    "softmax over": {OTHER: "takes the softmax over the {}"},
    "queries and keys": {
        "as projected": "uses queries and keys without a norm",
        "normed": "norms queries and keys",
        "normed, the other way round": "norms queries and keys with each other's norm",
    },
    "rotary pairs": {
        "none": "does not rotate",
        "half and half": "rotates units i and i + d/2 together (half and half)",
        "interleaved": "rotates units 2i and 2i + 1 together (interleaved)",
    },
    "rotated part": {OTHER: "rotates {}"},
    "rotary scaling": {
        "none": "does not scale the rotary frequencies",
        OTHER: "scales the rotary frequencies: {}",
    },
    "soft cap": {"none": "does not cap scores", OTHER: "caps scores, c tanh(x / c), at {}"},
    "rotary amplitude": {"by the scaling": "multiplies cos and sin by YaRN's attention factor", "1": "does not"},
    "rotated": {"forwards": "rotates forwards", "backwards": "rotates backwards (the sine's sign)"},
    "window": {"none": "has no window", OTHER: "has a window of {} keys"},
    "values": {OTHER: "takes values {}"},
}
STEPS = {
    "momentum": {OTHER: "uses {} momentum"},
    "share of the last move": {"0": "has no momentum", OTHER: "has a momentum of {}"},
    "bias correction": {"on": "corrects the means for their start at 0", "off": "does not (no bias correction)"},
    "squares": {"plain": "does not center the squares", "centered": "takes the squared mean from the squares (centered)"},
    "moves": {"summed": "sums moves", "averaged": "averages moves: times 1 - momentum"},
    "squares begin at": {OTHER: "begins the mean of squares at {}"},
    "gradients times": {"1": "takes gradients as they are", OTHER: "takes gradients times {}"},
    "zero gradients": {
        "0": "takes in one gradient a step",
        "1": "takes in a gradient of zeros before each",
        OTHER: "takes in {} gradients of zeros before each",
    },
    "weight decay": {
        "decoupled": "decays weights apart from the gradient (AdamW)",
        "coupled": "adds the weight decay to the gradient (L2)",
        "left out": "does not decay weights",
    },
    "weights decayed": {
        "some": "decays some parameters",
        "all": "decays all parameters, gains and biases too",
        "matrices alone": "decays matrices alone",
    },
    "norm of gradients": {"nothing": "does not clip gradients", OTHER: "clips gradients to a norm of {}"},
    "gradients clipped by": {
        "norm + 1e-6": "clips gradients by max / (norm + 1e-6)",
        "norm": "clips gradients by max / norm",
        "nothing": "does not clip gradients",
        "each tensor's norm": "clips the gradient of each tensor by its own norm",
        "each tensor's norm + 1e-6": "clips the gradient of each tensor by its own norm + 1e-6",
        "entry": "clips each entry of the gradients",
        "each batch's norm": "clips the gradient of each batch before it is accumulated",
    },
}
PHRASES: Mapping[str, Mapping[str, str]] = NORMS | LAYERS | ATTENTION | STEPS
"""Phrases of all choices; a choice that is not listed is a setting, written as 'epsilon 1e-05'."""
HEAD_BY_HEAD = "has q, k and v packed head by head, as `reshape(..., heads, 3, width)`: {}"
BY_DEFAULT = "activation", ("gelu", "gelu by tanh")


def said(choices: Mapping[str, Any], side: int) -> str:
    """Describe the choices of torch (side 0) or jax (side 1) in which they differ."""
    phrases = [phrase(what, both[side]) for what, both in choices.items() if what != "formula"]
    usual = side == 1 and any((what, tuple(both)) == BY_DEFAULT for what, both in choices.items())
    return ", ".join(phrases) + " (`approximate=True`, the default of jax.nn.gelu)" * usual


def phrase(what: str, name: str) -> str:
    """Describe one option: 'adds the bias'; a setting as 'epsilon 1e-05'."""
    if what == "(query, key, value)" and name.endswith("with its own three"):
        return HEAD_BY_HEAD.format(name)
    if (names := PHRASES.get(what)) is None:
        return f"{what} {name}"
    return names[name] if name in names else names[OTHER].format(name)
