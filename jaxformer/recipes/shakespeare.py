"""Train a GPT on the characters of a text. Losses are measured over whole splits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxformer.config.mesh import check_batch, check_model
from jaxformer.config.models import GPTConfig
from jaxformer.config.presets import CPU, GPU, TINY
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.data.batches import cover, draw_windows, split
from jaxformer.data.corpora import UNPACKED, located, read_corpus
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding import generate
from jaxformer.decoding.prepare import MOST_TOKENS
from jaxformer.errors import quoted, shown
from jaxformer.models import GPT
from jaxformer.parallel.group import from_first
from jaxformer.parallel.mesh import devices_in_use, on_mesh
from jaxformer.pytree import count_parameters
from jaxformer.recipes.prepare import check_vocabulary, plain_console, read_recipe, saved_files, start_run
from jaxformer.recipes.recipe import Recipe
from jaxformer.runs.averaging import write_weights
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder, free_folder
from jaxformer.runs.lock import only_writer
from jaxformer.runs.metrics import clock
from jaxformer.runs.plots import plot_losses
from jaxformer.runtime.compilation_cache import use_cache
from jaxformer.training.chunked_loss import read_out_cross_entropy
from jaxformer.training.loop import Plan, fit
from jaxformer.training.mixed_precision import PRECISIONS
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.size import begin_training
from jaxformer.training.step import make_evaluate, make_train_steps
from jaxformer.validation.fields import check_size

EVALUATION_TOKENS = 16384
"""Tokens per batch when a whole split is evaluated."""
LAST_SAMPLE = 500
"""Number of characters written at the end."""


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Recipe):
    """Train a GPT on the characters of a text, and let it write."""

    preset: Literal["tiny", "cpu", "gpu"]
    """The size of the model and its training; other flags change single values."""
    data: str = "tinyshakespeare"
    """A text file, packed as .gz or not, or a corpus by name."""
    unpacked: int = UNPACKED
    """Maximum size, in MiB, of an unpacked .gz file."""
    sample: int = 200
    """Characters written at each evaluation."""
    model: GPTConfig
    """The model. Its vocab_size is always the number of distinct characters in the text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "data", located(self.data))
        check_size("unpacked", self.unpacked)
        check_size("sample", self.sample, least=0, most=MOST_TOKENS)
        check_batch(self.batch, self.layout)
        check_model(self.model, self.layout)


NANOGPT = OptimizerConfig(name="adamw", learning_rate=1e-3, beta2=0.99, weight_decay=0.1, clip_norm=1.0)

PRESETS = {
    "tiny": Shakespeare(
        preset="tiny",
        steps=5000,
        batch=32,
        evaluate_every=500,
        save_every=1000,
        model=TINY,
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-3),
        schedule=ScheduleConfig(),
    ),
    "cpu": Shakespeare(
        preset="cpu",
        steps=2000,
        batch=12,
        evaluate_every=500,
        save_every=500,
        model=CPU,
        optimizer=NANOGPT,
        schedule=ScheduleConfig(name="cosine", warmup=100, last=2000, floor=0.1),
    ),
    "gpu": Shakespeare(
        preset="gpu",
        steps=5000,
        batch=64,
        evaluate_every=250,
        save_every=500,
        model=GPU,
        optimizer=NANOGPT,
        schedule=ScheduleConfig(name="cosine", warmup=100, last=5000, floor=0.1),
    ),
}


def main(arguments: list[str]) -> None:
    """Read the flags and the text, train, save, and print a sample."""
    recipe = read_recipe(PRESETS, arguments, prog="jaxformer train shakespeare")
    use_cache(recipe.cache)
    text = read_corpus(recipe.data, recipe.unpacked)
    tokenizer = Tokenizer.characters(text)
    check_vocabulary(arguments, tokenizer.vocab_size, "vocab-size")
    splits = split(tokenizer.encode(text), recipe.model.context)
    out = recipe.out or Path(from_first(lambda: str(free_folder(Path("runs"), f"shakespeare-{recipe.preset}"))))
    recipe = replace(recipe, out=out, model=replace(recipe.model, vocab_size=tokenizer.vocab_size))

    console = plain_console()
    with on_mesh(recipe.layout), only_writer(out):
        folder, model = train(recipe, tokenizer, splits, console)
        plot_losses(folder)
        written = sample_text(model, tokenizer, LAST_SAMPLE, recipe.seed)
    console.print(shown(written))
    console.print(f"validation loss {folder.metrics[-1]['val_loss']:.4f} · {saved_files(folder)}")
    console.print(f"next: jaxformer generate {quoted(out)} --tokens 200")


def train(
    recipe: Shakespeare, tokenizer: Tokenizer, splits: tuple[np.ndarray, np.ndarray], console: Console
) -> tuple[RunFolder, GPT]:
    """Train, and return the run folder and the trained model."""
    seed, context = jax.random.key(recipe.seed), recipe.model.context
    optimizer = make_optimizer(recipe.optimizer, recipe.schedule)
    state = begin_training(recipe.model, optimizer, seed, tokens=recipe.batch * context)
    text = {"characters": tokenizer.alphabet, "sha256": digest(splits)}
    folder, state = start_run(recipe, text, state)
    start_step = int(state.step)
    console.print(headline(recipe.model, state.model) + (f" · resumed at step {start_step:,}" if start_step else ""))

    evaluate, rows = make_evaluate(loss), max(1, EVALUATION_TOKENS // context)
    whole = {f"{name}_loss": cover(ids, rows, context) for name, ids in zip(("train", "val"), splits, strict=True)}

    def on_evaluate(model: GPT, line: Mapping[str, float]) -> None:
        write_weights(folder, folder.weights, model)
        show_line(console, line, first=line["step"] - recipe.evaluate_every <= start_step)
        if recipe.sample and line["step"] < recipe.steps:
            console.print("        " + repr(sample_text(model, tokenizer, recipe.sample, recipe.seed)))

    draw = partial(draw_windows, batch=recipe.batch, context=context)
    train_steps = make_train_steps(PRECISIONS[recipe.precision](loss), optimizer, draw)
    data = jnp.asarray(splits[0])
    state = fit(
        state,
        Plan(
            steps=recipe.steps,
            evaluate_every=recipe.evaluate_every,
            save_every=recipe.save_every,
            tokens_per_step=recipe.batch * context,
            evaluate=lambda model: {name: evaluate(model, batches) for name, batches in whole.items()},
            on_evaluate=on_evaluate,
            examine=partial(train_steps.examine, data, seed),
        ),
        folder,
        lambda state, n: train_steps(state, data, seed, n),
        console,
    )
    return folder, state.model


def loss(model: GPT, batch, key):
    """Return the cross-entropy of the next character: its sum and its count."""
    states, _ = model.last_hidden_state(batch.inputs, None, key=key)
    return read_out_cross_entropy(model, states, batch.targets)


def headline(config: GPTConfig, model: GPT) -> str:
    """Format the first line of a run: the model and the devices."""
    return (
        f"shakespeare · GPT, {config.n_layers} blocks, d_model {config.d_model}, {config.n_heads} heads, "
        f"context {config.context} · {count_parameters(model):,} parameters, "
        f"{count_parameters(model, embeddings=False):,} without embeddings · {devices_in_use()}"
    )


def show_line(console: Console, line: Mapping[str, float], *, first: bool) -> None:
    """Print a line of the table of evaluations, after the table's header if it is the first."""
    if first:
        console.print(f"{'step':>7} {'batch loss':>11} {'train loss':>11} {'val loss':>9} {'tokens/s':>10} {'left':>7}")
    console.print(
        f"{line['step']:7,} {line['loss']:11.4f} {line['train_loss']:11.4f} {line['val_loss']:9.4f} "
        f"{line['tokens_per_second']:10,.0f} {clock(line['seconds_left']):>7}"
    )


def sample_text(model: GPT, tokenizer: Tokenizer, characters: int, seed: int) -> str:
    """Sample text that continues the text's opening."""
    prompt = tokenizer.encode(tokenizer.opening)[None]
    return tokenizer.decode(generate(model, prompt, characters, key=jax.random.key(seed))[0])
