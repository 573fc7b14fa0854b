"""Train a GPT on the characters of a text, and let it write. Losses are measured over whole splits.

python -m train.shakespeare
python -m train.shakespeare --preset cpu --data my.txt --out runs/mine
python -m train.shakespeare --help
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxformer.config.presets import CPU, GPU, TINY
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.data.batches import cover, draw_windows, split
from jaxformer.data.corpora import read_corpus
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding import generate
from jaxformer.errors import quoted, shown
from jaxformer.models import GPT
from jaxformer.parallel.mesh import on_mesh
from jaxformer.plots.of_run import plot_losses
from jaxformer.recipes.prepare import begin, begin_watch, check_vocabulary, read_recipe, run_path, saved_files, start_run
from jaxformer.recipes.settings import Shakespeare
from jaxformer.recipes.shown import EvaluationTable, plain_console, print_headline
from jaxformer.runs.averaging import write_weights
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.lock import only_writer
from jaxformer.training.chunked_loss import read_out_cross_entropy
from jaxformer.training.loop import Plan, fit
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.routing import has_router_loss, router_loss
from jaxformer.training.size import begin_training
from jaxformer.training.step import PRECISIONS, make_evaluate, make_train_steps
from jaxformer.training.watch import watched_steps

EVALUATION_TOKENS = 16384
"""Tokens per batch when a whole split is evaluated."""
LAST_SAMPLE = 500
"""Number of characters written at the end."""

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


def train(
    recipe: Shakespeare, tokenizer: Tokenizer, splits: tuple[np.ndarray, np.ndarray], console: Console
) -> tuple[RunFolder, GPT]:
    """Train, and return the run folder and the trained model."""
    seed, config = jax.random.key(recipe.seed), recipe.model
    optimizer = make_optimizer(recipe.optimizer, recipe.schedule)
    state = begin_training(config, optimizer, seed, tokens=recipe.batch * config.context)
    text = {"characters": tokenizer.alphabet, "sha256": digest(splits)}
    folder, state = start_run(recipe, text, state)
    size = f"{config.n_layers} blocks, d_model {config.d_model}, {config.n_heads} heads, context {config.context}"
    print_headline(console, state.model, f"shakespeare · GPT, {size}", step=int(state.step))
    table = EvaluationTable(console, {"train loss": ("train_loss", "11.4f"), "val loss": ("val_loss", "9.4f")}, recipe.steps)

    measure, rows = make_evaluate(loss), max(1, EVALUATION_TOKENS // config.context)
    whole = {f"{name}_loss": cover(ids, rows, config.context) for name, ids in zip(("train", "val"), splits, strict=True)}

    def evaluate(model: GPT) -> dict[str, float]:
        return {name: measure(model, batches) for name, batches in whole.items()}

    def on_evaluate(model: GPT, line: Mapping[str, float]) -> None:
        write_weights(folder, folder.weights, model)
        table.print(line)
        if recipe.sample and line["step"] < recipe.steps:
            console.print("        " + repr(sample_text(model, tokenizer, recipe.sample, recipe.seed)))

    draw = partial(draw_windows, batch=recipe.batch, context=config.context)
    train_steps, data = make_train_steps(PRECISIONS[recipe.precision](loss), optimizer, draw), jnp.asarray(splits[0])
    plan = Plan(
        steps=recipe.steps,
        evaluate_every=recipe.evaluate_every,
        save_every=recipe.save_every,
        tokens_per_step=recipe.batch * config.context,
        evaluate=evaluate,
        on_evaluate=on_evaluate,
        examine=partial(train_steps.examine, data, seed),
        later=(evaluate,),
    )
    steps = watched_steps(train_steps, data, seed, begin_watch(recipe, folder, int(state.step), console))
    state = fit(state, plan, folder, steps, console)
    return folder, state.model


def loss(model: GPT, batch, key):
    """Return the cross-entropy of the next character: its sum and its count; in training, with the loss of routers."""
    if key is None or not has_router_loss(model.config):
        states, _ = model.last_hidden_state(batch.inputs, None, key=key)
        return read_out_cross_entropy(model, states, batch.targets)
    states, logits = model.routed_hidden_state(batch.inputs, key=key)
    total, count = read_out_cross_entropy(model, states, batch.targets)
    return total + count * router_loss(logits, model.config), count


def sample_text(model: GPT, tokenizer: Tokenizer, characters: int, seed: int) -> str:
    """Sample text that continues the text's opening."""
    prompt = tokenizer.encode(tokenizer.opening)[None]
    return tokenizer.decode(generate(model, prompt, characters, key=jax.random.key(seed))[0])


def main(arguments: list[str]) -> None:
    """Read the flags and the text, train, save, and print a sample."""
    recipe = begin(read_recipe(PRESETS, arguments, prog="jaxformer train shakespeare"))
    text = read_corpus(recipe.data, recipe.unpacked)
    tokenizer = Tokenizer.characters(text)
    check_vocabulary(arguments, tokenizer.vocab_size, "vocab-size")
    splits = split(tokenizer.encode(text), recipe.model.context)
    out = run_path(recipe, f"shakespeare-{recipe.preset}")
    recipe = replace(recipe, out=out, model=replace(recipe.model, vocab_size=tokenizer.vocab_size))

    console = plain_console()
    with on_mesh(recipe.layout), only_writer(out):
        folder, model = train(recipe, tokenizer, splits, console)
        plot_losses(folder)
        written = sample_text(model, tokenizer, LAST_SAMPLE, recipe.seed)
    console.print(shown(written))
    console.print(f"validation loss {folder.metrics[-1]['val_loss']:.4f} · {saved_files(folder)}")
    console.print(f"next: jaxformer generate {quoted(out)} --tokens 200")


if __name__ == "__main__":
    from jaxformer.cli.main import main as command

    command("train", "shakespeare")
