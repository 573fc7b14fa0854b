"""Distributions over a vocabulary: log-softmax, the rounding that it may have, and the divergence of two of them."""

from typing import NamedTuple

import numpy as np

FACTOR = 64.0
"""Unit roundoffs of the largest logit by which two log-probabilities may differ: a log-softmax loses one or two, and the sums
of the model before it a few dozen."""
UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}
DROPPED = 5000.0
"""Distance below the largest logit from which an id is dropped: masks are -inf, -1e9 or the type's minimum."""
IMPOSSIBLE = -87.0
"""Log-probability below which float32 may hold a probability as 0."""


def kept(values: np.ndarray) -> np.ndarray:
    """True for logits `... V` of ids that have a probability."""
    finite = np.where(np.isfinite(values), values, -np.inf)
    return finite > finite.max(-1, keepdims=True, initial=-np.inf) - DROPPED


def log_softmax(values: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """Log-probabilities `... V` of logits in float64, of the ids `among`; -inf for others."""
    among = kept(values) if among is None else among
    values = np.where(among, values, -np.inf).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        shifted = values - values.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def log_mass(values: np.ndarray) -> np.ndarray:
    """Logarithm of the sum of exp(values): 0 where they are log-probabilities."""
    with np.errstate(divide="ignore", invalid="ignore"):
        most = values.max(-1)
        return most + np.log(np.exp(values - most[..., None]).sum(-1))


def tolerances(unit: float, *logits: np.ndarray) -> np.ndarray:
    """Largest difference `...` of two log-probabilities that rounding explains, from the largest of the logits `... V`."""
    largest = [np.abs(np.where(kept(values), values, 0.0)).max(-1) for values in logits]
    return FACTOR * unit * np.maximum.reduce([*largest, np.ones_like(largest[0])])


class Apart(NamedTuple):
    """Difference of two distributions at each place `...`."""

    differs: np.ndarray
    forward: np.ndarray
    """KL(trainer || sampler) in nats."""
    backward: np.ndarray
    """KL(sampler || trainer) in nats."""


def apart(trainer: np.ndarray, sampler: np.ndarray, tolerance: np.ndarray) -> Apart:
    """Compare log-probabilities `... V` by a tolerance `...`."""
    with np.errstate(invalid="ignore"):
        gap = trainer - sampler
        one_alone = np.isfinite(trainer) != np.isfinite(sampler)
        gap[(one_alone & (np.fmax(trainer, sampler) < IMPOSSIBLE)) | ~(np.isfinite(trainer) | np.isfinite(sampler))] = 0
        differs = np.logical_not((np.abs(gap) <= tolerance[..., None]).all(-1))
        forward, backward = (np.where(np.exp(p) > 0, np.exp(p) * d, 0).sum(-1) for p, d in ((trainer, gap), (sampler, -gap)))
    return Apart(differs, forward, backward)
