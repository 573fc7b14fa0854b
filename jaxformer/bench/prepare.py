"""Prepare the weights and inputs of an item, once, in a process of its own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from jaxformer.bench.items import Item
from jaxformer.bench.problems import GPT2, WEIGHTS, Problem, Training, Writing, save_problem
from jaxformer.config.models import GPTConfig, ModelConfig
from jaxformer.config.presets import preset
from jaxformer.config.settings import ScheduleConfig
from jaxformer.convert.registry import find_family
from jaxformer.convert.rules import to_torch
from jaxformer.convert.safetensors import save_weights
from jaxformer.models import abstract, build
from jaxformer.parity.probe import excite
from jaxformer.pytree import map_named
from jaxformer.recipes import reverse, shakespeare, translate  # pyright: ignore[reportAttributeAccessIssue]  # train/*.py

READY = 64
"""Number of batches that are made before anything is timed."""
SENTENCE_BATCHES = 32
"""Number of ready batches of sentence pairs, which include every frequent shape."""
PROMPT, NEW_TOKENS, SENTENCE_TOKENS, FIRST_TOKENS = 16, 200, 32, 20
DROPOUTS = ("attention_dropout", "residual_dropout", "feed_forward_dropout", "embedding_dropout")
SMALL_TABLE = 0.05
DEFAULTS = {"short": False, "data": None, "dropout": None, "sentences": 32, "precision": "float32"}
SMALL = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32}
"""Sizes of the model in the short form of an item."""


def prepare(item: Item, folder: Path, options: dict[str, Any]) -> Problem:
    """Make the problem of an item, and save it in the folder.

    `options`: short (a tiny model), data (a file in place of the corpus), dropout (on or off), sentences. None: the item's own.
    """
    given = {name: value for name, value in options.items() if value is not None}
    problem = replace(BUILDS[item.build](folder, DEFAULTS | item.settings | given), device=item.device)
    save_problem(folder, problem)
    return problem


def text(folder: Path, settings: dict[str, Any]) -> Training:
    """Make the training of a GPT on the characters of a text."""
    from jaxformer.data.corpora import read_corpus
    from jaxformer.data.tokenizers import Tokenizer

    recipe = shakespeare.PRESETS[settings["preset"]]
    corpus = read_corpus(settings["data"] or recipe.data)
    tokenizer = Tokenizer.characters(corpus)
    model = replace(sized(recipe.model, settings), vocab_size=tokenizer.vocab_size)
    made = on_text(folder, model, replace(recipe, batch=settings.get("batch", recipe.batch)), tokenizer.encode(corpus))
    return replace(made, precision=settings["precision"])


def gpt2(folder: Path, settings: dict[str, Any]) -> Training:
    """Make the training of GPT-2 small on random ids, with windows shorter than its context."""
    recipe = replace(shakespeare.PRESETS["gpu"], batch=settings.get("batch", 1), schedule=ScheduleConfig())
    model = sized(preset("gpt2_small"), settings | {"dropout": bool(settings["dropout"])})
    ids = np.random.default_rng(0).integers(model.vocab_size, size=40_000).astype(np.int32)
    made = on_text(folder, model, recipe, ids, 16 if settings["short"] else settings["tokens"])
    return replace(made, precision=settings["precision"])


def on_text(folder: Path, model: GPTConfig, recipe: Any, ids: np.ndarray, window: int | None = None) -> Training:
    """Make the training of a GPT on windows of a text."""
    from jaxformer.data.batches import cover, draw_windows, split

    training, validation = split(ids, window := window or model.context)
    save_weights(folder / WEIGHTS, drawn(model))
    made, keys = jnp.asarray(training), jax.random.split(jax.random.key(7), READY)
    draws = jax.vmap(lambda key: draw_windows(made, key, recipe.batch, window))(keys)
    return Training(
        model=model,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        batches=list(zip(*as_numpy(draws), strict=True)),
        held_out=list(zip(*cover(validation, recipe.batch, window), strict=True)),
        draws="windows",
        text=training,
    )


def pairs(folder: Path, settings: dict[str, Any]) -> Training:
    """Make the training of an encoder-decoder on pairs made by a rule."""
    from jaxformer.data.tasks import PAD, TASKS

    recipe = reverse.PRESETS[settings["preset"]]
    model, task = sized(recipe.model, settings, ids=False), TASKS[recipe.task]
    save_weights(folder / WEIGHTS, drawn(model))
    draws = jax.vmap(lambda key: task.draw(key, recipe.batch))(jax.random.split(jax.random.key(7), READY))
    return Training(
        model=model,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        batches=list(zip(*as_numpy(draws), strict=True)),
        held_out=[as_numpy(task.draw(reverse.held_out_key(0), reverse.HELD_OUT))],
        draws="task",
        task=recipe.task,
        pad=PAD,
        smoothing=recipe.smoothing,
    )


def sentences(folder: Path, settings: dict[str, Any]) -> Training:
    """Make the training of an encoder-decoder on sentence pairs of several shapes."""
    from jaxformer.data.parallel import read_splits
    from jaxformer.recipes.sentences import make_buckets, read_tokenizer

    recipe = translate.PRESETS[settings["preset"]]
    if settings["short"]:
        recipe = replace(recipe, batch=256, shapes=2, model=replace(recipe.model, vocab_size=300))
    splits = read_splits(recipe.data if settings["data"] is None else (settings["data"],))
    tokenizer = read_tokenizer(recipe, splits.train)
    recipe = replace(recipe, model=replace(sized(recipe.model, settings, ids=False), vocab_size=tokenizer.vocab_size))
    buckets, held_out = make_buckets(recipe, tokenizer, splits)
    n_batches = 1 if settings["short"] else settings.get("n_batches", SENTENCE_BATCHES)
    ready = [as_numpy(buckets.batch(recipe.seed, step)) for step in range(n_batches)]
    save_weights(folder / WEIGHTS, drawn(recipe.model))
    return Training(
        model=recipe.model,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        batches=ready,
        held_out=[as_numpy(batch) for batch in held_out.epoch()],
        draws="ready",
        pad=held_out.pad,
        smoothing=recipe.smoothing,
        shapes=len(ready),
    )


def prompts(folder: Path, settings: dict[str, Any]) -> Writing:
    """Make random prompts for a GPT with excited weights, whose likeliest tokens are well separated."""
    model = sized(preset(settings["preset"]), settings, context=64)
    made = varied(excite(abstract(model), seed=0))
    save_weights(folder / WEIGHTS, made)
    save_gpt2(folder, made)
    n_tokens = settings.get("n_tokens", NEW_TOKENS)
    ids = np.random.default_rng(1).integers(model.vocab_size, size=(settings.get("batch", 1), PROMPT)).astype(np.int32)
    return Writing(model=model, prompts=ids, n_tokens=min(n_tokens, model.context - PROMPT))


def checkpoint(folder: Path, settings: dict[str, Any]) -> Writing:
    """Make prompts with fewer new tokens, for the time of a process to its first text."""
    return prompts(folder, settings | {"n_tokens": FIRST_TOKENS})


def save_gpt2(folder: Path, model: Any) -> None:
    """Save a GPT as a folder that transformers reads."""
    config = model.config
    weights = {name: np.ascontiguousarray(array) for name, array in to_torch(model, find_family("gpt2")).items()}
    weights.pop("lm_head.weight", None)  # tied to the embedding table
    safetensors.numpy.save_file(weights, folder / GPT2, metadata={"format": "pt"})
    described = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **gpt2_settings(config)}
    (folder / "config.json").write_text(json.dumps(described), "utf-8")


def gpt2_settings(config: GPTConfig) -> dict[str, Any]:
    """Return a configuration under the names of transformers' GPT2Config."""
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "activation_function": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.activation],
        "layer_norm_epsilon": config.norm_epsilon,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def sources(folder: Path, settings: dict[str, Any]) -> Writing:
    """Make random sources of 6 to 24 tokens for an encoder-decoder with excited weights."""
    model = sized(preset(settings["preset"]), settings, context=32)
    save_weights(folder / WEIGHTS, varied(excite(abstract(model), seed=0)))
    draw, pad = np.random.default_rng(1), 0
    ids = draw.integers(3, model.vocab_size, size=(settings["sentences"], 24)).astype(np.int32)
    ids[np.arange(24)[None] >= draw.integers(6, 25, size=(len(ids), 1))] = pad
    return Writing(model=model, prompts=ids, n_tokens=8 if settings["short"] else SENTENCE_TOKENS, pad=pad)


def varied(model: Any) -> Any:
    """Scale embeddings down: large ones, tied, make a model repeat its last token."""
    return map_named(lambda name, leaf: leaf * SMALL_TABLE if name.endswith("token.table") else leaf, model)


def recipe(folder: Path, settings: dict[str, Any]) -> Training:
    """Make a whole run of `translate`: one batch for each of its steps."""
    return sentences(folder, settings | {"n_batches": translate.PRESETS[settings["preset"]].steps})


def sized(model: Any, settings: dict[str, Any], *, ids: bool = True, context: int | None = None) -> Any:
    """Set a model's dropout as in the settings, and shrink it in the short form."""
    if settings["dropout"] is False:
        model = replace(model, **dict.fromkeys(DROPOUTS, 0.0))
    if not settings["short"]:
        return model
    longest = {"context": min(model.context, context)} if context else {}
    return replace(model, **SMALL, **longest, **({"vocab_size": 65} if ids else {}))


def drawn(model: ModelConfig) -> Any:
    """Build a new model with its own initializers."""
    return jax.jit(lambda key: build(model, rngs=key))(jax.random.key(0))


def as_numpy(batch: Any) -> tuple[np.ndarray, ...]:
    """Copy a batch's arrays to the host."""
    return tuple(np.asarray(array) for array in batch)


BUILDS = {build.__name__: build for build in (text, gpt2, pairs, sentences, prompts, checkpoint, sources, recipe)}
