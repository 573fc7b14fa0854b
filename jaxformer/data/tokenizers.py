"""Text <-> token ids."""

from dataclasses import dataclass

import numpy as np

from jaxformer.errors import InputError


@dataclass(frozen=True)
class CharacterTokenizer:
    """One id a character, in the order of `characters`."""

    characters: str

    @classmethod
    def of(cls, text: str) -> "CharacterTokenizer":
        """The distinct characters of a text, sorted."""
        return cls("".join(sorted(set(text))))

    @property
    def vocab_size(self) -> int:
        """Number V of ids."""
        return len(self.characters)

    @property
    def start(self) -> str:
        """What a text begins after: a line break, or the first character where there is none."""
        return "\n" if "\n" in self.characters else self.characters[0]

    def encode(self, text: str, *, name: str = "text") -> np.ndarray:
        """int32 ids; InputError names the first character that has none."""
        ids = {character: i for i, character in enumerate(self.characters)}
        for place, character in enumerate(text):
            if character not in ids:
                raise InputError(
                    f"{name}: character {character!r} (position {place}) is not in this model's vocabulary of "
                    f"{self.vocab_size} characters"
                )
        return np.array([ids[character] for character in text], np.int32)

    def decode(self, ids: np.ndarray) -> str:
        """The text of these ids."""
        return "".join(self.characters[i] for i in ids)
