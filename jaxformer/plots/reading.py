"""Attention of a saved model as it reads a text, or writes the target of a source."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxformer.checkpoints.opened import Opened, open_folder
from jaxformer.checkpoints.texts import read_tokenizer, translator_of
from jaxformer.checkpoints.translator import Translator
from jaxformer.data.tasks import EOS, SOS, Task
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding import translate
from jaxformer.errors import InputError
from jaxformer.models import GPT, Encoder, EncoderDecoder
from jaxformer.runtime.jit import jit

OWN, PARTS = "own", ("encoder", "decoder", "cross")
"""Names of the attention of a model of one stack, and of an encoder-decoder."""


class Map(NamedTuple):
    """Attention weights of every layer and head, with the tokens read (S) and those that read (T)."""

    weights: Float[np.ndarray, "L N T S"]
    keys: list[str]
    queries: list[str]


def attention_of(path: Path, text: str, part: str | None = None) -> Map:
    """Return the attention of the model in a folder on a text; an encoder-decoder writes the target of the text itself.

    `part` is one of PARTS, for an encoder-decoder alone; None: cross, or a single stack's own. InputError if the model cannot
    read the text, or has no such part.
    """
    maps = maps_of(open_folder(path), text)
    part = part or ("cross" if "cross" in maps else OWN)
    if part not in maps:
        raise InputError(f"part = {part!r} is of an encoder-decoder, and {path} holds a model of one stack; leave it out")
    return maps[part]


def alignment_of(path: Path, text: str) -> Map:
    """Return what an encoder-decoder reads of a source as it writes the target; InputError for another model."""
    found = open_folder(path)
    if not isinstance(reader_of(found), EncoderDecoder):
        raise InputError(f"{path} holds a model of one stack, and an alignment needs an encoder-decoder; see `plot attention`")
    return maps_of(found, text)["cross"]


def maps_of(found: Opened, text: str, target: str | None = None) -> dict[str, Map]:
    """Return every attention of a model on a text by the name of its part.

    `target` is what an encoder-decoder has written of the text greedily; None: it writes it here.
    """
    if not text:
        raise InputError("text is empty; give at least one token")
    model = reader_of(found)
    if isinstance(model, EncoderDecoder):
        if isinstance(words := found.words, Task):
            return of_task(model, words, text, target)
        return of_translation(Translator(model, words) if words is not None else translator_of(found), text, target)
    tokenizer = found.words if isinstance(found.words, Tokenizer) else read_tokenizer(found)
    return of_text(model, tokenizer, text, special=found.words is None)


def reader_of(found: Opened) -> GPT | Encoder | EncoderDecoder:
    """Return the model, which reads texts; InputError for one that reads images or sounds."""
    model = found.model
    if not isinstance(model, GPT | Encoder | EncoderDecoder) or getattr(model.config, "source_features", None) is not None:
        raise InputError(f"{found.place} holds a model of images or sounds; give a model that reads texts alone")
    return model


def of_text(model: GPT | Encoder, tokenizer: Tokenizer, text: str, *, special: bool) -> dict[str, Map]:
    """Return the attention of a model of one stack; of a longer text, of as many tokens as the model reads."""
    ids = tokenizer.encode(text, special=special, name="text")[: model.config.context]
    weights = np.asarray(jit(type(model).attention_weights)(model, ids[None]))[:, 0]
    tokens = [tokenizer.decode([int(i)]) or (tokenizer.backend.id_to_token(int(i)) or "") for i in ids]
    return {OWN: Map(weights, tokens, tokens)}


def of_task(model: EncoderDecoder, task: Task, text: str, target: str | None) -> dict[str, Map]:
    """Return the attention of a model of a task on a source and its target, which it writes greedily where there is none."""
    source = task.encode(text)
    if target is None:
        target = task.decode(translate(model, source[None], model.config.context, start=SOS, eos=EOS)[0])
    told = task.encode_target(target)
    ids = np.append(SOS, told).astype(np.int32)[: model.config.context]
    return named(
        model,
        source,
        ids,
        ["<SOS>", *text, "<EOS>"],
        [*(task.decode(told[i : i + 1]) for i in range(len(told))), "<EOS>"][: len(ids)],
    )


def of_translation(translator: Translator, text: str, target: str | None) -> dict[str, Map]:
    """Return the attention of a model that translates on a text and its translation, which it writes where there is none."""
    source, ids, read, told = translator.aligned(text, translator.greedy([text])[0] if target is None else target)
    return named(translator.model, source, ids, read, told)


def named(model: EncoderDecoder, source: np.ndarray, target: np.ndarray, read: list[str], told: list[str]) -> dict[str, Map]:
    """Return the three attentions: queries of the decoder are named by the token that they write."""
    maps = jit(EncoderDecoder.attention_weights)(model, source[None], target[None])
    every = (np.asarray(each)[:, 0] for each in (maps.encoder, maps.decoder, maps.cross))
    edges = (read, read), (["<s>", *told][: len(told)], told), (read, told)
    return {name: Map(weights, *each) for name, weights, each in zip(PARTS, every, edges, strict=True)}
