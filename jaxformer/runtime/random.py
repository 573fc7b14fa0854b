"""Which units dropout keeps. A comparison takes the place of `dropout_mask`, so that both frameworks drop the same units.

JAX's own generator (threefry) withstands attackers. It is a loop over arrays, and on a CPU it takes a fifth of a small model's
training step. Dropout needs bits without a pattern, no more: here a unit's bits are a few operations on its number, which the
compiler puts into the loop that uses them, so that nothing is drawn ahead or stored.

The hash is the last part of MurmurHash3 for 32 bits (Appleby 2011), twice, each with a word of the key before it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray, UInt32

GOLDEN = np.uint32(0x9E3779B9)
"""2^32 over the golden ratio: multiples of it are spread evenly."""
OF_KEYS = np.array([0x243F6A88, 0x85A308D3], np.uint32)
"""Digits of pi: keys are made of other bits than masks."""


def scramble(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Every bit depends on every bit of x; no two x give the same."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def random_words(words: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """32 random bits for each place of an array."""
    number = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return scramble(scramble(number * GOLDEN ^ words[0]) + words[1])


def words_of(key: PRNGKeyArray) -> UInt32[Array, "2"]:
    """The first two words of a key of any kind."""
    return (key if key.dtype == jnp.uint32 else jax.random.key_data(key)).reshape(-1)[:2]


def split(key: PRNGKeyArray, n: int) -> UInt32[Array, "n 2"]:
    """n keys of two words, for n random sites."""
    return random_words(words_of(key) ^ OF_KEYS, (n, 2))


def dropout_mask(key: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True where a unit is kept: independently with probability 1 - rate."""
    return random_words(words_of(key), shape) >= np.uint32(min(round(rate * 2**32), 2**32 - 1))
