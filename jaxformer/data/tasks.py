"""Synthetic tasks: a source of random symbols and a target by rule, drawn on the device from a key alone."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from jaxformer.errors import InputError

SOS, EOS, PAD = 0, 1, 2
SPECIAL = ("<SOS>", "<EOS>", "<PAD>")
"""Tokens of ids 0 to 2; the symbols come after them."""


Ids = Int[Array, " X"] | np.ndarray


class Pairs(NamedTuple):
    """Sources and targets, both `<SOS> symbols <EOS>`, padded on the right."""

    source: Int[Array, "B S"] | np.ndarray
    target: Int[Array, "B U"] | np.ndarray


def frame(symbols: Int[Array, "B X"], lengths: Int[Array, " B"]) -> Int[Array, "B Y"]:
    """Return ids `<SOS> symbols <EOS> <PAD> ...`, where row b has lengths[b] symbols."""
    place = jnp.arange(symbols.shape[1] + 2, dtype=jnp.int32)[None]
    ids = jnp.pad(symbols + len(SPECIAL), ((0, 0), (1, 1)))
    ids = jnp.where(place == 0, SOS, jnp.where(place <= lengths[:, None], ids, PAD))
    return jnp.where(place == lengths[:, None] + 1, EOS, ids)


@dataclass(frozen=True)
class Task:
    """Rule that maps sequences of symbols to others."""

    symbols: str
    """Alphabet of sources: a character for each id after the special ones."""
    target_symbols: str
    """Alphabet of targets, for the same ids."""
    weights: tuple[int, ...]
    """Relative frequency of each symbol."""
    shortest: int
    """Fewest symbols of a source."""
    longest: int
    """Most symbols of a source."""
    rewrite: Callable[[Int[Array, "B X"], Int[Array, " B"]], tuple[Int[Array, "B Z"], Int[Array, " B"]]]
    """Function of sources and their lengths that returns targets and their lengths, in symbols counted from 0."""

    @property
    def vocab_size(self) -> int:
        """Number V of ids."""
        return len(SPECIAL) + len(self.symbols)

    def draw(self, key: PRNGKeyArray, batch: int) -> Pairs:
        """Draw `batch` random pairs."""
        length_key, symbol_key = jax.random.split(key)
        lengths = jax.random.randint(length_key, (batch,), self.shortest, self.longest + 1, jnp.int32)
        chances = jnp.log(jnp.asarray(self.weights, jnp.float32))
        symbols = jax.random.categorical(symbol_key, chances, shape=(batch, self.longest)).astype(jnp.int32)
        return Pairs(frame(symbols, lengths), frame(*self.rewrite(symbols, lengths)))

    def encode(self, text: str) -> np.ndarray:
        """Return the int32 ids of a source; InputError names the first unknown character, or an excessive length."""
        for place, character in enumerate(text):
            if character not in self.symbols:
                raise InputError(f"prompt: character {character!r} (position {place}) is not one of {self.symbols}")
        if len(text) > self.longest:
            raise InputError(
                f"prompt: {len(text)} symbols; give at most {self.longest}, the longest that the model was trained on"
            )
        return np.array([SOS, *(len(SPECIAL) + self.symbols.index(character) for character in text), EOS], np.int32)

    def encode_target(self, text: str) -> np.ndarray:
        """Return the int32 ids of a target's text, as `decode` writes it."""
        words = [*SPECIAL, *self.target_symbols]
        return np.array([words.index(word) for word in re.findall(f"{'|'.join(SPECIAL)}|.", text)], np.int32)

    def decode(self, ids: Ids) -> str:
        """Return a target's text, up to its end."""
        return self._written(ids, self.target_symbols)

    def decode_source(self, ids: Ids) -> str:
        """Return a source's text, up to its end."""
        return self._written(ids, self.symbols)

    def _written(self, ids: Ids, symbols: str) -> str:
        words = [*SPECIAL, *symbols]
        text = [words[int(i)] for i in ids if i != SOS]
        return "".join(text[: text.index(SPECIAL[EOS])] if SPECIAL[EOS] in text else text)


def reverse(symbols: Int[Array, "B X"], lengths: Int[Array, " B"]) -> tuple[Int[Array, "B Z"], Int[Array, " B"]]:
    """Replace each digit d by 9 - d, double the last symbol, and reverse the order."""
    place = jnp.arange(symbols.shape[1] + 1, dtype=jnp.int32)[None]
    from_end = jnp.clip(jnp.minimum(lengths[:, None] - place, lengths[:, None] - 1), 0)
    mirrored = jnp.where(symbols < 10, 9 - symbols, symbols)
    return jnp.take_along_axis(mirrored, from_end, 1), lengths + 1


def copy(symbols: Int[Array, "B X"], lengths: Int[Array, " B"]) -> tuple[Int[Array, "B Z"], Int[Array, " B"]]:
    """Return the symbols unchanged."""
    return symbols, lengths


DIGITS, LETTERS = "0123456789", "qwertyuiopasdfghjklzxcvbnm"

REVERSE = Task(
    symbols=DIGITS + LETTERS,
    target_symbols=DIGITS + LETTERS.upper(),
    weights=(*range(1, 11), *range(1, 27)),
    shortest=30,
    longest=48,
    rewrite=reverse,
)
"""Reversal: `123456qwer` -> `RREWQ345678`; letters are in the order of a keyboard."""

COPY = Task(symbols=DIGITS, target_symbols=DIGITS, weights=(1,) * 10, shortest=5, longest=12, rewrite=copy)
"""Copying of a few digits."""

TASKS = {"reverse": REVERSE, "copy": COPY}
