"""Sentence encoder of a folder of sentence-transformers: texts -> vectors."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from tokenizers.normalizers import Lowercase, Sequence

from jaxformer.checkpoints.opened import local_folder, open_folder
from jaxformer.checkpoints.sentence_folder import Texts, read_modules, read_texts, sentence_config
from jaxformer.checkpoints.texts import read_tokenizer
from jaxformer.config.sentences import SentenceConfig
from jaxformer.convert.family import Family, module_rules
from jaxformer.convert.rules import to_jax
from jaxformer.convert.state_files import open_folder_state
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import CheckpointError, ConfigError, ConversionError, InputError, first_line
from jaxformer.models import Encoder, SentenceModel
from jaxformer.models.init import Undrawn
from jaxformer.pytree import map_named, named_leaves
from jaxformer.runtime.jit import jit
from jaxformer.validation.fields import check_path, check_size
from jaxformer.validation.inputs import check_several, check_text

DENSE = Family("dense", {}, module_rules("", "linear"))
"""Family of the dense layer's file."""
SHORTEST = 16
"""Number of tokens that a short row is padded to."""
AT_ONCE = 4096
"""Number of texts that are sorted by length at once."""


class Rows(NamedTuple):
    """Texts of about the same length, padded to a number of tokens and of rows that are powers of two."""

    texts: np.ndarray
    """Index of each text."""
    ids: np.ndarray
    valid: np.ndarray


@dataclass(frozen=True, eq=False)
class SentenceEncoder:
    """Texts -> vectors, as sentence-transformers computes them.

        encoder = jf.load_sentence_encoder("folder")
        vectors = encoder.encode(["A man rides a bike.", "Ein Mann fährt Rad."])  # (2, d)

    `model` is the part that computes: `model(tokens, valid)` is a pure function of a pytree, to be trained as any other.
    """

    model: SentenceModel
    tokenizer: Tokenizer
    texts: Texts
    """Longest text, prompts, and lower case."""

    def encode(self, texts: Iterable[str], *, prompt: str | None = None, batch: int = 32) -> Float[np.ndarray, "n d"]:
        """Return a vector for each text, in the texts' order and the model's dtype.

        `prompt` names one of the folder's prompts, which then stands before every text; None: the folder's default. `batch` is
        the number of texts that are computed at once, those of about the same length together. Compiles once for each padded
        length. InputError for anything but texts, and for a text without a token.
        """
        check_several(texts, name="texts")
        check_size("batch", batch)
        before, texts = self._prompt(prompt), list(texts)
        for i, text in enumerate(texts):
            check_text(text, name=f"texts[{i}]")
        dtype = jax.tree.leaves(self.model)[0].dtype
        vectors = np.empty((len(texts), self.model.config.width), dtype)
        for rows in self._rows([before + text for text in texts], batch):
            vectors[rows.texts] = np.asarray(_vectors(self.model, rows.ids, rows.valid))[: len(rows.texts)]
        return vectors

    def _prompt(self, name: str | None) -> str:
        prompts = self.texts.prompts
        name = self.texts.default_prompt if name is None else name
        if name is not None and name not in prompts:
            raise InputError(f"prompt = {name!r:.40} is none of this folder's ({', '.join(prompts) or 'it has none'})")
        return "" if name is None else prompts[name]

    def _rows(self, texts: list[str], batch: int) -> Iterator[Rows]:
        """Yield the texts in batches, sorted by length."""
        for start in range(0, len(texts), AT_ONCE):
            some = texts[start : start + AT_ONCE]
            ids, valid, _ = self.tokenizer.batch(some, longest=self.texts.longest)
            lengths = valid.sum(1)
            if not lengths.all():
                raise InputError(f"texts[{start + int(lengths.argmin())}] has no token; leave it out")
            order = lengths.argsort(kind="stable")
            for first in range(0, len(some), batch):
                chosen = order[first : first + batch]
                shape = _padded(len(chosen), 1, batch), _padded(int(lengths[chosen[-1]]), SHORTEST, self.texts.longest)
                yield Rows(start + chosen, _fitted(ids[chosen], shape), _fitted(valid[chosen], shape))


@partial(jit, work="write")
def _vectors(model: SentenceModel, ids: Array, valid: Array) -> Array:
    return model(ids, valid)


def _padded(size: int, least: int, most: int) -> int:
    """Return the next power of two, from `least` on; at most `most`."""
    return min(max(1 << (size - 1).bit_length(), least), most)


def _fitted(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return the array in this shape, cut or filled with zeros."""
    found = np.zeros(shape, array.dtype)
    part = array[: shape[0], : shape[1]]
    found[: part.shape[0], : part.shape[1]] = part
    return found


def load_sentence_encoder(path: Path | str) -> SentenceEncoder:
    """Load a folder of sentence-transformers: encoder, pooling, dense layer, norm, and tokenizer.json.

    A path that does not exist is taken as a name on the Hugging Face hub. InputError if it is no such folder; CheckpointError
    if its files are corrupt, or ask for something that is not supported.
    """
    folder = local_folder(check_path("path", path))
    try:
        modules = read_modules(folder)
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    found = open_folder(modules["Transformer"])
    if not isinstance(found.model, Encoder):
        raise InputError(f"{folder} holds a {type(found.model).__name__}; sentences are encoded by an Encoder")
    tokenizer = read_tokenizer(found)
    try:
        texts = read_texts(folder, modules, found.model.config.context)
        model = _with_dense(found.model, sentence_config(modules, found.model.config), modules)
    except (ConfigError, ConversionError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder}: {first_line(error)}") from None
    if texts.lowercase:
        backend = tokenizer.backend
        backend.normalizer = Sequence([Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])])
    return SentenceEncoder(model, tokenizer, texts)


def _with_dense(encoder: Encoder, config: SentenceConfig, modules: Mapping[str, Path]) -> SentenceModel:
    """Return the sentence model of a loaded encoder, with the dense layer of its folder."""
    like = jax.eval_shape(lambda: SentenceModel(config, rngs=Undrawn()))
    held = {f"encoder.{name}": leaf for name, leaf in named_leaves(encoder).items()}
    if like.dense is not None:
        dense = to_jax(open_folder_state(modules["Dense"]), like.dense, DENSE)
        held |= {f"dense.{name}": leaf for name, leaf in named_leaves(dense).items()}
    return map_named(lambda name, _: held[name], like)
