"""Random bits of dropout masks. A comparison replaces `dropout_mask`, so that both frameworks drop the same units.

JAX's own generator (threefry) resists attackers. It is a loop over arrays, and takes a fifth of a small model's training step
on a CPU. Dropout only needs bits without a pattern: here a unit's bits are a few operations on its index, which the compiler
fuses into the loop that uses them, so that nothing is drawn in advance or stored.

The hash is the finalizer of 32-bit MurmurHash3 (Appleby 2011), applied twice, each time after mixing in one word of the key.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray, UInt32

GOLDEN = np.uint32(0x9E3779B9)
"""2^32 divided by the golden ratio: its multiples are spread evenly."""
OF_KEYS = np.array([0x243F6A88, 0x85A308D3], np.uint32)
"""Digits of pi, which separate the bits of keys from those of masks."""


def scramble(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Hash 32-bit words: every bit of the result depends on every bit of x, and the map is one-to-one."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def random_words(words: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Return 32 random bits for each element of an array."""
    number = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return scramble(scramble(number * GOLDEN ^ words[0]) + words[1])


def words_of(key: PRNGKeyArray) -> UInt32[Array, "2"]:
    """Return the first two words of a key of any kind."""
    return (key if key.dtype == jnp.uint32 else jax.random.key_data(key)).reshape(-1)[:2]


def split(key: PRNGKeyArray, n: int) -> UInt32[Array, "n 2"]:
    """Split a key into n keys of two words, for n random sites."""
    return random_words(words_of(key) ^ OF_KEYS, (n, 2))


def dropout_mask(key: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Draw a dropout mask: True where a unit is kept, independently with probability 1 - rate."""
    return random_words(words_of(key), shape) >= np.uint32(min(round(rate * 2**32), 2**32 - 1))
