"""Logits of a trainer, and what a sampler makes of them."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.decoding.sampling import penalise

ROWS, LENGTH, VOCAB = 3, 13, 37
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(4, VOCAB, (ROWS, LENGTH))
LOGITS = (3 * RANDOM.normal(size=(ROWS, LENGTH, VOCAB))).astype(np.float32)
NOISE = (2e-3 * RANDOM.normal(size=LOGITS.shape)).astype(np.float32)


def flat(rule, *numbers):
    """One of our sampler's rules at every place."""
    return lambda logits: np.array(rule(jnp.asarray(logits.reshape(-1, VOCAB)), *numbers)).reshape(logits.shape)


def temperature(value):
    return lambda logits: logits / np.float32(value)


def cap(value):
    return lambda logits: np.float32(value) * np.tanh(logits / np.float32(value))


def rounded(dtype):
    return lambda logits: logits.astype(dtype).astype(np.float32)


def repetition(value):
    seen = np.array([[[token in row[: t + 1] for token in range(VOCAB)] for t in range(LENGTH)] for row in IDS])
    return lambda logits: flat(penalise, jnp.asarray(seen.reshape(-1, VOCAB)), value)(logits)


def bias(logits):
    return logits + np.where(np.arange(VOCAB) == 17, np.float32(1.25), 0)


def frequency(logits):
    counts = np.array([[np.bincount(row[: t + 1], minlength=VOCAB) for t in range(LENGTH)] for row in IDS])
    return logits - np.float32(0.35) * counts


def never(logits):
    return np.where(np.isin(np.arange(VOCAB), (5, 30)), -np.inf, logits)


def wider(logits):
    return np.concatenate([logits, np.zeros((ROWS, LENGTH, 6), np.float32)], -1)


def log_softmax(logits):
    return np.array(jax.nn.log_softmax(logits))


def chosen(logits, ids=IDS):
    return np.take_along_axis(log_softmax(logits)[:, :-1], ids[:, 1:, None], -1)[..., 0]


def causes(report):
    return [(cause.name, cause.side, *(v for v in cause.args.values() if not isinstance(v, dict))) for cause in report.causes]


def named(report):
    return [cause.name for cause in report.causes]
