"""Train an encoder-decoder on pairs made by a rule, which need no data: a line reversed with changed symbols, or copied.

python -m train.reverse
python -m train.reverse --preset copy --steps 500 --out runs/copy
python -m train.reverse --help
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from rich.console import Console

from jaxformer.config.presets import COPY, REVERSE
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.data.tasks import PAD, TASKS, Pairs
from jaxformer.errors import quoted
from jaxformer.models import EncoderDecoder
from jaxformer.parallel.group import run_together
from jaxformer.parallel.mesh import on_mesh
from jaxformer.plots.of_run import plot_losses
from jaxformer.recipes.prepare import begin, begin_watch, check_vocabulary, read_recipe, run_path, saved_files, start_run
from jaxformer.recipes.settings import Reverse
from jaxformer.recipes.shown import EvaluationTable, draw_attention, layers, plain_console, print_headline, show_predictions
from jaxformer.runs.averaging import write_weights
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.lock import only_writer
from jaxformer.runtime.jit import jit
from jaxformer.training.loop import Plan, fit
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.pairs import pair_loss, pair_sums
from jaxformer.training.size import begin_training
from jaxformer.training.step import PRECISIONS, make_train_steps
from jaxformer.training.watch import watched_steps

GOAL = "accuracy", 1.0
HELD_OUT = 128
"""Number of held-out pairs: never trained on, and measured at each evaluation."""
WRITTEN = 64
"""Number of held-out pairs that are decoded at the end, token by token."""

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


def train(recipe: Reverse, held_out: Pairs, console: Console) -> tuple[RunFolder, EncoderDecoder]:
    """Train until every token of the held-out pairs is right, and return the run folder and the trained model."""
    seed, task = jax.random.key(recipe.seed), TASKS[recipe.task]
    optimizer = make_optimizer(recipe.optimizer, recipe.schedule)
    state = begin_training(recipe.model, optimizer, seed, tokens=recipe.batch * task.longest)  # model, moments, step 0
    folder, state = start_run(recipe, {}, state, goal=GOAL)  # or, with --resume, the state of the last checkpoint
    print_headline(console, state.model, f"{recipe.task} · {layers(recipe.model)}, batch {recipe.batch}", step=int(state.step))
    measures = {"held-out loss": ("val_loss", "14.4f"), "accuracy": ("accuracy", "9.4f")}
    table = EvaluationTable(console, measures, recipe.steps, GOAL)

    def loss(model: EncoderDecoder, batch: Pairs, key: jax.Array | None):
        return pair_loss(model, batch, key, pad=PAD, smoothing=recipe.smoothing)

    def evaluate(model: EncoderDecoder) -> dict[str, float]:
        return {name: float(value) for name, value in run_together(measure, model, held_out).items()}

    def on_evaluate(model: EncoderDecoder, line: Mapping[str, float]) -> None:
        write_weights(folder, folder.weights, model)
        table.print(line)

    # One compiled program draws a batch, takes a step, and repeats that n times: train_steps(state, data, seed, n).
    train_steps = make_train_steps(PRECISIONS[recipe.precision](loss), optimizer, lambda _, key: task.draw(key, recipe.batch))
    plan = Plan(
        steps=recipe.steps,
        evaluate_every=recipe.evaluate_every,
        save_every=recipe.save_every,
        tokens_per_step=recipe.batch * (held_out.target.shape[1] - 1),
        evaluate=evaluate,
        on_evaluate=on_evaluate,
        examine=partial(train_steps.examine, None, seed),  # the batch and gradients of a step that is not finite
        goal=GOAL,
        later=(partial(show_predictions, console, task, first_of(held_out), show=0), evaluate),
    )
    steps = watched_steps(train_steps, None, seed, begin_watch(recipe, folder, int(state.step), console))
    state = fit(state, plan, folder, steps, console)
    return folder, state.model


@jit
def measure(model: EncoderDecoder, batch: Pairs) -> dict[str, jax.Array]:
    """Return the mean loss of a target token, and the accuracy: how often the target token is the likeliest."""
    total, right, count = pair_sums(model, batch, pad=PAD)
    return {"val_loss": total / count, "accuracy": right / count}


def main(arguments: list[str]) -> None:
    """Read the flags, train, decode held-out pairs, and save."""
    start = time.perf_counter()
    recipe = begin(read_recipe(PRESETS, arguments, prog="jaxformer train reverse"))
    task, out = TASKS[recipe.task], run_path(recipe, recipe.task)
    check_vocabulary(arguments, task.vocab_size, "vocab-size", "source-vocab-size")
    source_vocab_size = None if recipe.model.source_vocab_size is None else task.vocab_size
    model = replace(recipe.model, vocab_size=task.vocab_size, source_vocab_size=source_vocab_size)
    recipe = replace(recipe, out=out, model=model)

    console = plain_console()
    held_out = jax.tree.map(np.asarray, jit(task.draw, static_argnums=1)(held_out_key(recipe.seed), HELD_OUT))
    with on_mesh(recipe.layout), only_writer(out):
        folder, model = train(recipe, held_out, console)
        exact = show_predictions(console, task, first_of(held_out), model, show=recipe.show)
        plot_losses(folder)
        draw_attention(folder, task, model, held_out)
    console.print(f"{exact} of {WRITTEN} exact · {time.perf_counter() - start:.1f} s · {saved_files(folder)}")
    console.print(f"next: jaxformer generate {quoted(out)} --prompt {task.decode_source(held_out.source[-1])}")


def first_of(held_out: Pairs) -> Pairs:
    """Return the held-out pairs that are decoded at the end."""
    return Pairs(held_out.source[:WRITTEN], held_out.target[:WRITTEN])


def held_out_key(seed: int) -> jax.Array:
    """Random key of the held-out pairs: a stream apart from the one that training steps draw from."""
    return jax.random.fold_in(jax.random.key(seed), 2**32 - 1)


if __name__ == "__main__":
    from jaxformer.cli.main import main as command

    command("train", "reverse")
