"""Train a tokenizer and an encoder-decoder on sentence pairs, average the best weights, and measure BLEU.

python -m train.translate --preset smoke
python -m train.translate --data source.txt target.txt --out runs/mine
python -m train.translate --help
"""

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from jaxformer.checkpoints.translator import Translator
from jaxformer.cli.flags import peek
from jaxformer.config.presets import BASE, TRANSLATION
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.convert.safetensors import load_weights
from jaxformer.data.batches import Buckets
from jaxformer.data.parallel import Parallel, Splits, read_splits
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import quoted
from jaxformer.models import EncoderDecoder
from jaxformer.parallel.group import from_first, is_first, run_together
from jaxformer.parallel.mesh import on_mesh
from jaxformer.parallel.placement import put, put_batch
from jaxformer.plots.of_run import plot_losses
from jaxformer.recipes.prepare import begin, begin_watch, check_vocabulary, read_recipe, run_path, saved_files, start_run
from jaxformer.recipes.sentences import can_score, facts_of, make_buckets, table_of, tokenizer_of, translate_test_set
from jaxformer.recipes.settings import Translate
from jaxformer.recipes.shown import EvaluationTable, layers, plain_console, print_headline
from jaxformer.runs.averaging import average_weights, best_step, keep_weights, kept_steps, weights_of, write_weights
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.lock import only_writer
from jaxformer.runs.metrics import clock
from jaxformer.runtime.memory import keep_freed_memory
from jaxformer.training.loop import Plan, fit
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.pairs import measure_pairs, pair_loss
from jaxformer.training.size import begin_training
from jaxformer.training.step import PRECISIONS, make_shaped_train_steps
from jaxformer.training.watch import watched_steps

SMALL = Translate(
    preset="small",
    steps=3500,
    batch=4096,
    evaluate_every=250,
    save_every=500,
    model=TRANSLATION,
    optimizer=OptimizerConfig(name="adamw", learning_rate=1.5e-3, beta2=0.98, weight_decay=0.01, clip_norm=1.0),
    schedule=ScheduleConfig(name="cosine", warmup=800, last=3500, floor=0.01),
)
PRESETS = {
    "smoke": replace(
        SMALL,
        preset="smoke",
        steps=400,
        batch=2400,
        shapes=2,
        evaluate_every=200,
        save_every=200,
        averaged=2,
        tested=200,
        model=replace(TRANSLATION, vocab_size=3000, d_model=128, n_layers=1, n_heads=4, d_ff=256, embedding_std=128**-0.5),
        optimizer=replace(SMALL.optimizer, learning_rate=4e-3),
        schedule=ScheduleConfig(name="cosine", warmup=100, last=400, floor=0.01),
    ),
    "small": SMALL,
    "base": replace(
        SMALL,
        preset="base",
        steps=20_000,
        batch=50_000,
        evaluate_every=500,
        save_every=1000,
        model=replace(BASE, vocab_size=16_000, context=256),
        optimizer=OptimizerConfig(name="adam", learning_rate=1.0, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=4000, d_model=BASE.d_model),
    ),
}


def train(recipe: Translate, tokenizer: Tokenizer, splits: Splits, console: Console) -> tuple[RunFolder, EncoderDecoder]:
    """Train; return the run folder and the model of lowest validation loss: of one step, or the mean of the newest weights."""
    pairs, held_out = make_buckets(recipe, tokenizer, splits)
    seed, optimizer = jax.random.key(recipe.seed), make_optimizer(recipe.optimizer, recipe.schedule)
    state = begin_training(recipe.model, optimizer, seed, tokens=recipe.batch // recipe.parts)
    run = RunFolder(recipe.out or Path())
    is_whole = from_first(lambda: table_of(run.path).exists() and run.tokenizer.exists())
    folder, state = start_run(recipe, facts_of(tokenizer, pairs, splits), state, unfinished=not is_whole)
    if is_first() and not folder.tokenizer.exists():
        tokenizer.save(folder.tokenizer)
    model = f"translate · {layers(recipe.model)}, vocabulary {recipe.model.vocab_size:,}"
    data = f"{len(pairs.sources):,} pairs", f"{pairs.steps} batches an epoch, {100 * pairs.padding:.1f} % padding"
    print_headline(console, state.model, model, ", ".join(data), step=int(state.step))
    measures = {"val loss": ("val_loss", "9.4f"), "perplexity": ("perplexity", "11.2f"), "accuracy": ("accuracy", "9.4f")}
    table, shown = EvaluationTable(console, measures, recipe.steps), splits.validation.sources[: recipe.show]

    def on_evaluate(model: EncoderDecoder, line: Mapping[str, float]) -> None:
        save_evaluated(folder, model, line, recipe.averaged)
        table.print(line)
        for source, translation in zip(shown, Translator(model, tokenizer).greedy(shown), strict=True):
            console.print(f"        {source} -> {translation}")

    loss = PRECISIONS[recipe.precision](partial(pair_loss, pad=held_out.pad, smoothing=recipe.smoothing))
    train_steps = make_shaped_train_steps(loss, optimizer, partial(pairs.batch, recipe.seed), parts=recipe.parts)
    plan = Plan(
        steps=recipe.steps,
        evaluate_every=recipe.evaluate_every,
        save_every=recipe.save_every,
        tokens_per_step=round(pairs.tokens / pairs.steps),
        evaluate=partial(measure, pairs=held_out),
        on_evaluate=on_evaluate,
        examine=partial(train_steps.examine, None, seed),
        later=(partial(measure, pairs=held_out),),
        is_followed=True,
    )
    steps = watched_steps(train_steps, None, seed, begin_watch(recipe, folder, int(state.step), console))
    state = fit(state, plan, folder, steps, console)
    return folder, choose_weights(folder, state.model, recipe.averaged, plan.evaluate, console)


def measure(model: EncoderDecoder, pairs: Buckets) -> dict[str, float]:
    """Return the mean loss of a target token, its exponential (perplexity), and how often the target is the likeliest token."""
    sums = [run_together(measure_pairs, model, put_batch(batch), pad=pairs.pad) for batch in pairs.epoch()]
    total, right, count = np.asarray(jax.device_get(sums), np.float64).sum(0)
    return {"val_loss": total / count, "perplexity": math.exp(min(total / count, 700)), "accuracy": right / count}


def save_evaluated(folder: RunFolder, model: EncoderDecoder, line: Mapping[str, float], averaged: int) -> None:
    """Keep weights among the newest, to be averaged at the end, and as the run's weights if they are the best so far.

    Earlier translations of the test set are deleted.
    """
    if is_first():
        table_of(folder.path).unlink(missing_ok=True)
    keep_weights(folder, int(line["step"]), model, averaged, line)
    if line["step"] == from_first(lambda: best_step(folder, line)[0]):
        write_weights(folder, folder.weights, model)


def choose_weights(folder: RunFolder, model: EncoderDecoder, newest: int, evaluate: Any, console: Console) -> EncoderDecoder:
    """Choose the best single model or the mean of the newest, by validation loss, and write it as the run's weights."""
    folder.check_kept()
    best, single = from_first(lambda: best_step(folder))
    mean = put(average_weights(folder, model, newest))
    averaged, steps = evaluate(mean)["val_loss"], len(kept_steps(folder)[-newest:])
    console.print(f"validation loss {single:.4f} at best · {averaged:.4f} for the mean of the last {steps} evaluated weights")
    chosen = mean if averaged < single else put(load_weights(weights_of(folder, best), model))
    write_weights(folder, folder.weights, chosen)
    return chosen


def main(arguments: list[str]) -> None:
    """Read the flags and the pairs, train, average, translate the test set, and save."""
    start = time.perf_counter()
    recipe = begin(read_recipe(PRESETS, arguments, prog="jaxformer train translate"))
    keep_freed_memory()
    out = run_path(recipe, f"translate-{recipe.preset}")
    splits = read_splits(recipe.data, recipe.validation, recipe.test, unpacked=recipe.unpacked)
    tokenizer = tokenizer_of(recipe, out, splits.train, is_given=peek(arguments, "--tokenizer") is not None)
    check_vocabulary(arguments, tokenizer.vocab_size, "source-vocab-size", *["vocab-size"] * (recipe.tokenizer is not None))
    recipe = replace(recipe, out=out, model=replace(recipe.model, vocab_size=tokenizer.vocab_size))

    console = plain_console()
    if not can_score():
        console.print("BLEU will not be measured: it needs sacrebleu; pip install 'jaxformer[translate]'")
    with on_mesh(recipe.layout), only_writer(out):
        folder, model = train(recipe, tokenizer, splits, console)
        plot_losses(folder)
        tested = Parallel(*(side[: recipe.tested] for side in splits.test))
        translate_test_set(folder, Translator(model, tokenizer), tested, console, show=recipe.show)
    console.print(f"{clock(time.perf_counter() - start)} · {saved_files(folder)}")
    console.print(f"next: jaxformer translate {quoted(out)} -- {shlex.quote(splits.test.sources[0])}")


if __name__ == "__main__":
    from jaxformer.cli.main import main as command

    command("train", "translate")
