"""Pairs that need no data: a source of random symbols and a target by rule, drawn on the device from a key alone."""

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
"""Ids 0 to 2; the symbols come after them."""


Ids = Int[Array, " X"] | np.ndarray


class Pairs(NamedTuple):
    """Sources and targets, both `<SOS> symbols <EOS>`, padded on the right."""

    source: Int[Array, "B S"] | np.ndarray
    target: Int[Array, "B U"] | np.ndarray


def frame(symbols: Int[Array, "B X"], lengths: Int[Array, " B"]) -> Int[Array, "B Y"]:
    """Ids of `<SOS> symbols <EOS> <PAD> ...`, of which row b has lengths[b] symbols."""
    place = jnp.arange(symbols.shape[1] + 2, dtype=jnp.int32)[None]
    ids = jnp.pad(symbols + len(SPECIAL), ((0, 0), (1, 1)))
    ids = jnp.where(place == 0, SOS, jnp.where(place <= lengths[:, None], ids, PAD))
    return jnp.where(place == lengths[:, None] + 1, EOS, ids)


@dataclass(frozen=True)
class Task:
    """A rule from sequences of symbols to others."""

    symbols: str
    """What sources are written in, a character for each id after the special ones."""
    target_symbols: str
    """What the same ids stand for in targets."""
    weights: tuple[int, ...]
    """How often each symbol is drawn, as a part of their sum."""
    shortest: int
    """Fewest symbols of a source."""
    longest: int
    """Most symbols of a source."""
    rewrite: Callable[[Int[Array, "B X"], Int[Array, " B"]], tuple[Int[Array, "B Z"], Int[Array, " B"]]]
    """Sources and their lengths -> targets and their lengths, in symbols counted from 0."""

    @property
    def vocab_size(self) -> int:
        """Number V of ids."""
        return len(SPECIAL) + len(self.symbols)

    def draw(self, key: PRNGKeyArray, batch: int) -> Pairs:
        """`batch` random pairs."""
        length_key, symbol_key = jax.random.split(key)
        lengths = jax.random.randint(length_key, (batch,), self.shortest, self.longest + 1, jnp.int32)
        chances = jnp.log(jnp.asarray(self.weights, jnp.float32))
        symbols = jax.random.categorical(symbol_key, chances, shape=(batch, self.longest)).astype(jnp.int32)
        return Pairs(frame(symbols, lengths), frame(*self.rewrite(symbols, lengths)))

    def encode(self, text: str) -> np.ndarray:
        """int32 ids of a source; InputError names the first character that has none, or a length too great."""
        for place, character in enumerate(text):
            if character not in self.symbols:
                raise InputError(f"prompt: character {character!r} (position {place}) is not one of {self.symbols}")
        if len(text) > self.longest:
            raise InputError(
                f"prompt: {len(text)} symbols; give at most {self.longest}, the longest that the model was trained on"
            )
        return np.array([SOS, *(len(SPECIAL) + self.symbols.index(character) for character in text), EOS], np.int32)

    def decode(self, ids: Ids) -> str:
        """A target's text, up to its end."""
        return self._written(ids, self.target_symbols)

    def decode_source(self, ids: Ids) -> str:
        """A source's text, up to its end."""
        return self._written(ids, self.symbols)

    def _written(self, ids: Ids, symbols: str) -> str:
        words = [*SPECIAL, *symbols]
        text = [words[int(i)] for i in ids if i != SOS]
        return "".join(text[: text.index(SPECIAL[EOS])] if SPECIAL[EOS] in text else text)


def reverse(symbols: Int[Array, "B X"], lengths: Int[Array, " B"]) -> tuple[Int[Array, "B Z"], Int[Array, " B"]]:
    """Each digit d as 9 - d, the last symbol doubled, and all of it backwards."""
    place = jnp.arange(symbols.shape[1] + 1, dtype=jnp.int32)[None]
    from_end = jnp.clip(jnp.minimum(lengths[:, None] - place, lengths[:, None] - 1), 0)
    mirrored = jnp.where(symbols < 10, 9 - symbols, symbols)
    return jnp.take_along_axis(mirrored, from_end, 1), lengths + 1


def copy(symbols: Int[Array, "B X"], lengths: Int[Array, " B"]) -> tuple[Int[Array, "B Z"], Int[Array, " B"]]:
    """The same again."""
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
"""`123456qwer` -> `RREWQ345678`, in the order of a keyboard."""

COPY = Task(symbols=DIGITS, target_symbols=DIGITS, weights=(1,) * 10, shortest=5, longest=12, rewrite=copy)
"""A few digits -> the same digits."""

TASKS = {"reverse": REVERSE, "copy": COPY}
