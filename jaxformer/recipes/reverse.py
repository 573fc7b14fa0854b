"""Train an encoder-decoder on pairs made by a rule, which need no data: a line reversed with changed symbols, or copied."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from rich.console import Console

from jaxformer.config.mesh import check_batch, check_model
from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.presets import COPY, REVERSE
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.data.tasks import EOS, PAD, SOS, TASKS, Pairs
from jaxformer.decoding import translate
from jaxformer.errors import InputError, quoted
from jaxformer.models import EncoderDecoder
from jaxformer.parallel.group import from_first, run_together
from jaxformer.parallel.mesh import devices_in_use, on_mesh
from jaxformer.parallel.placement import on_host
from jaxformer.pytree import count_parameters
from jaxformer.recipes.prepare import check_vocabulary, plain_console, read_recipe, saved_files, start_run
from jaxformer.recipes.recipe import Recipe
from jaxformer.runs.averaging import write_weights
from jaxformer.runs.folder import RunFolder, free_folder
from jaxformer.runs.lock import only_writer
from jaxformer.runs.metrics import clock
from jaxformer.runs.plots import can_plot, plot_attention, plot_losses
from jaxformer.runtime.compilation_cache import use_cache
from jaxformer.runtime.xla_options import jit
from jaxformer.training.loop import Plan, fit
from jaxformer.training.mixed_precision import PRECISIONS
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.pairs import pair_loss, pair_sums
from jaxformer.training.size import begin_training
from jaxformer.training.step import make_train_steps
from jaxformer.validation.fields import check_choice, check_number, check_size

GOAL = "accuracy", 1.0
HELD_OUT = 128
"""Number of held-out pairs: never trained on, and measured at each evaluation."""
WRITTEN = 64
"""Number of held-out pairs that are decoded at the end, token by token."""


@dataclass(frozen=True, kw_only=True)
class Reverse(Recipe):
    """Train an encoder-decoder on pairs made by a rule, until it predicts every token of the held-out pairs."""

    preset: Literal["quick", "original", "copy"]
    """quick: the reversal in the least time; original: a smaller batch and a stepped rate; copy: digits are copied."""
    task: str
    """The rule: reverse or copy."""
    show: int = 3
    """Pairs shown at the end."""
    smoothing: float = 0.0
    """Probability that is spread over all symbols but the target (label smoothing)."""
    model: EncoderDecoderConfig
    """The model. Its vocabularies are always those of the task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("task", self.task, TASKS)
        check_size("show", self.show, least=0)
        check_batch(self.batch, self.layout)
        check_model(self.model, self.layout)
        check_number("smoothing", self.smoothing, 0, below=1)
        longest = TASKS[self.task].longest + 2
        for name, most in (("context", self.model.context), ("source_context", self.model.source.context)):
            if most < longest:
                raise InputError(f"model.{name} = {most} is too short for {self.task}; give at least {longest}")


# 8 pairs per step; the rate warms up to 4e-3 and falls by a cosine; epsilon is 1e-5 against late spikes of the loss.
QUICK = Reverse(
    preset="quick",
    task="reverse",
    steps=5000,
    batch=8,
    evaluate_every=125,
    save_every=2500,
    model=replace(REVERSE, embedding_std=0.25, layers="rolled"),
    optimizer=OptimizerConfig(name="adam", learning_rate=4e-3, epsilon=1e-5),
    schedule=ScheduleConfig(name="cosine", warmup=100, last=2000, floor=0.05),
)

PRESETS = {
    "quick": QUICK,
    "original": replace(
        QUICK,
        preset="original",
        steps=10_000,
        batch=4,
        evaluate_every=500,
        model=REVERSE,
        optimizer=OptimizerConfig(name="adam", learning_rate=2e-3),
        schedule=ScheduleConfig(name="step", decay=0.5, decay_every=7500),
    ),
    "copy": replace(
        QUICK,
        preset="copy",
        task="copy",
        steps=4000,
        evaluate_every=100,
        smoothing=0.1,
        model=COPY,
        optimizer=OptimizerConfig(name="adam", learning_rate=1.0, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=400, d_model=COPY.d_model),
    ),
}


def main(arguments: list[str]) -> None:
    """Read the flags, train, decode held-out pairs, and save."""
    start = time.perf_counter()
    recipe = read_recipe(PRESETS, arguments, prog="jaxformer train reverse")
    use_cache(recipe.cache)
    task = TASKS[recipe.task]
    check_vocabulary(arguments, task.vocab_size, "vocab-size", "source-vocab-size")
    source_vocab_size = None if recipe.model.source_vocab_size is None else task.vocab_size
    model = replace(recipe.model, vocab_size=task.vocab_size, source_vocab_size=source_vocab_size)
    out = recipe.out or Path(from_first(lambda: str(free_folder(Path("runs"), recipe.task))))
    recipe = replace(recipe, out=out, model=model)

    console = plain_console()
    held_out = jax.tree.map(np.asarray, jit(task.draw, static_argnums=1)(held_out_key(recipe.seed), HELD_OUT))
    with on_mesh(recipe.layout), only_writer(out):
        folder, model = train(recipe, held_out, console)
        exact = show_predictions(recipe, model, Pairs(held_out.source[:WRITTEN], held_out.target[:WRITTEN]), console)
        plot_losses(folder)
        draw_attention(recipe, folder, model, held_out)
    console.print(f"{exact} of {WRITTEN} exact · {time.perf_counter() - start:.1f} s · {saved_files(folder)}")
    console.print(f"next: jaxformer generate {quoted(out)} --prompt {task.decode_source(held_out.source[-1])}")


def held_out_key(seed: int) -> jax.Array:
    """Random key of the held-out pairs: a stream apart from the one that training steps draw from."""
    return jax.random.fold_in(jax.random.key(seed), 2**32 - 1)


def train(recipe: Reverse, held_out: Pairs, console: Console) -> tuple[RunFolder, EncoderDecoder]:
    """Train, and return the run folder and the trained model."""
    seed, task = jax.random.key(recipe.seed), TASKS[recipe.task]
    optimizer = make_optimizer(recipe.optimizer, recipe.schedule)
    state = begin_training(recipe.model, optimizer, seed, tokens=recipe.batch * TASKS[recipe.task].longest)
    folder, state = start_run(recipe, {}, state, goal=GOAL)
    start_step = int(state.step)
    console.print(headline(recipe, state.model) + (f" · resumed at step {start_step:,}" if start_step else ""))

    def loss(model: EncoderDecoder, batch: Pairs, key: jax.Array | None):
        return pair_loss(model, batch, key, pad=PAD, smoothing=recipe.smoothing)

    def on_evaluate(model: EncoderDecoder, line: Mapping[str, float]) -> None:
        write_weights(folder, folder.weights, model)
        show_line(console, line, first=line["step"] - recipe.evaluate_every <= start_step)

    train_steps = make_train_steps(PRECISIONS[recipe.precision](loss), optimizer, lambda _, key: task.draw(key, recipe.batch))
    state = fit(
        state,
        Plan(
            steps=recipe.steps,
            evaluate_every=recipe.evaluate_every,
            save_every=recipe.save_every,
            tokens_per_step=recipe.batch * (held_out.target.shape[1] - 1),
            evaluate=lambda model: {name: float(value) for name, value in run_together(measure, model, held_out).items()},
            on_evaluate=on_evaluate,
            examine=partial(train_steps.examine, None, seed),
            goal=GOAL,
        ),
        folder,
        lambda state, n: train_steps(state, None, seed, n),
        console,
    )
    return folder, state.model


@jit
def measure(model: EncoderDecoder, batch: Pairs) -> dict[str, jax.Array]:
    """Return the mean loss of a target token, and the accuracy: how often the target token is the likeliest."""
    total, right, count = pair_sums(model, batch, pad=PAD)
    return {"val_loss": total / count, "accuracy": right / count}


def headline(recipe: Reverse, model: EncoderDecoder) -> str:
    """Format the first line of a run: the task, the model and the devices."""
    config = recipe.model
    return (
        f"{recipe.task} · encoder-decoder {config.n_layers}+{config.decoder.n_layers}, d_model {config.d_model}, "
        f"{config.n_heads} heads, batch {recipe.batch} · {count_parameters(model):,} parameters, "
        f"{count_parameters(model, embeddings=False):,} without embeddings · {devices_in_use()}"
    )


def show_line(console: Console, line: Mapping[str, float], *, first: bool) -> None:
    """Print a line of the table of evaluations, after the table's header if it is the first."""
    if first:
        console.print(f"{'step':>7} {'batch loss':>11} {'held-out loss':>14} {'accuracy':>9} {'tokens/s':>10} {'left':>7}")
    left = "done" if line["accuracy"] >= 1 else clock(line["seconds_left"])
    console.print(
        f"{line['step']:7,} {line['loss']:11.4f} {line['val_loss']:14.4f} {line['accuracy']:9.4f} "
        f"{line['tokens_per_second']:10,.0f} {left:>7}"
    )


def show_predictions(recipe: Reverse, model: EncoderDecoder, pairs: Pairs, console: Console) -> int:
    """Decode targets token by token, print some of them, and return how many are exact."""
    task = TASKS[recipe.task]
    source = np.asarray(pairs.source)
    ids = translate(model, source, pairs.target.shape[1] - 1, start=SOS, eos=EOS, valid=source != PAD)
    wanted, predicted = [task.decode(row) for row in pairs.target], [task.decode(row) for row in ids]
    for row in range(min(recipe.show, len(wanted))):
        console.print(f"\nsource     {task.decode_source(pairs.source[row])}")
        console.print(f"wanted     {wanted[row]}\npredicted  {predicted[row]}")
    console.print()
    return sum(map(str.__eq__, wanted, predicted))


def draw_attention(recipe: Reverse, folder: RunFolder, model: EncoderDecoder, pairs: Pairs) -> None:
    """Save a picture of one pair's cross-attention weights."""
    if not can_plot():
        return
    task = TASKS[recipe.task]
    source, target = task.decode_source(pairs.source[0]), task.decode(pairs.target[0])
    attention_weights = jit(EncoderDecoder.attention_weights)
    maps = attention_weights(model, pairs.source[:1, : len(source) + 2], pairs.target[:1, : len(target) + 1])
    plot_attention(folder, on_host(maps.cross)[:, 0], ["<SOS>", *source, "<EOS>"], [*target, "<EOS>"])
