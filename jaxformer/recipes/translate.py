"""Translation: train a tokenizer and an encoder-decoder on sentence pairs, and measure BLEU."""

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from rich.console import Console

from jaxformer.checkpoints.translator import Translator
from jaxformer.cli.flags import peek
from jaxformer.config.mesh import check_model
from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.presets import BASE, TRANSLATION
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.convert.safetensors import load_weights
from jaxformer.data.batches import Buckets
from jaxformer.data.corpora import UNPACKED, located
from jaxformer.data.parallel import Parallel, Splits, encode_pairs, read_splits
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError, quoted
from jaxformer.models import EncoderDecoder
from jaxformer.parallel.group import from_first, is_first, run_together
from jaxformer.parallel.mesh import devices_in_use, on_mesh
from jaxformer.parallel.placement import put, put_batch
from jaxformer.pytree import count_parameters
from jaxformer.recipes.prepare import check_vocabulary, plain_console, read_recipe, saved_files, start_run
from jaxformer.recipes.recipe import Recipe
from jaxformer.recipes.test_set import can_score, table_of, translate_test_set
from jaxformer.recipes.tokenizer import tokenizer_of
from jaxformer.runs.averaging import average_weights, best_step, keep_weights, kept_steps, weights_of, write_weights
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder, free_folder
from jaxformer.runs.lock import only_writer
from jaxformer.runs.metrics import clock
from jaxformer.runs.plots import plot_losses
from jaxformer.runtime.compilation_cache import use_cache
from jaxformer.runtime.memory import keep_freed_memory
from jaxformer.training.loop import Plan, fit
from jaxformer.training.mixed_precision import PRECISIONS
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.pairs import measure_pairs, pair_loss
from jaxformer.training.size import begin_training
from jaxformer.training.step import make_shaped_train_steps
from jaxformer.validation.fields import check_number, check_size

EVALUATION_SHAPES = 4
"""Maximum number of batch shapes of the held-out pairs."""


@dataclass(frozen=True, kw_only=True)
class Translate(Recipe):
    """Train an encoder-decoder on sentence pairs, average its best weights, and measure BLEU."""

    preset: Literal["smoke", "small", "base"]
    """smoke: one minute, to see that it works; small: 40 minutes on two cores; base: the paper's model, on an accelerator."""
    data: tuple[str, ...] = ("multi30k-de-en",)
    """A corpus by name, a source and a target file, or one file with a tab in each line; each may be packed as .gz."""
    validation: tuple[str, ...] = ()
    """Pairs that choose the best weights. Left out: the corpus's own, or the end of the training pairs."""
    test: tuple[str, ...] = ()
    """Pairs that BLEU is measured on. Left out: the corpus's own, or the validation pairs."""
    unpacked: int = UNPACKED
    """Maximum size, in MiB, of an unpacked .gz file."""
    tokenizer: Path | None = None
    """A tokenizer.json, or BERT's uncased vocab.txt. None: byte-level BPE of model.vocab-size tokens, trained on both sides."""
    batch: int
    """Maximum number of tokens per step, in both languages and with padding."""
    parts: int = 1
    """Split each batch into this many parts and add up their gradients, for less memory (gradient accumulation)."""
    shapes: int = 10
    """Maximum number of batch shapes. Each is compiled once; more shapes need less padding."""
    longest: int = 100
    """Pairs with more tokens than this in one language are left out of training."""
    smoothing: float = 0.1
    """Probability that is spread over all tokens but the target (label smoothing)."""
    averaged: int = 5
    """Number of newest evaluated weights to average at the end."""
    show: int = 3
    """Translations to show at each evaluation and at the end."""
    tested: int | None = None
    """Test pairs to translate. None: all."""
    model: EncoderDecoderConfig
    """The model. Its vocabulary is always the tokenizer's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("data", "validation", "test"):
            object.__setattr__(self, name, tuple(map(located, getattr(self, name))))
        object.__setattr__(self, "tokenizer", self.tokenizer and self.tokenizer.absolute())
        for name in ("unpacked", "parts", "shapes", "longest", "averaged"):
            check_size(name, getattr(self, name))
        check_size("show", self.show, least=0)
        if self.tested is not None:
            check_size("tested", self.tested)
        check_number("smoothing", self.smoothing, 0, below=1)
        check_model(self.model, self.layout)
        if not self.data:
            raise InputError("data is empty; give a corpus by name, or files")
        for name, most in (("context", self.model.context), ("source_context", self.model.source.context)):
            if self.longest > most:
                raise InputError(f"longest = {self.longest} is more than model.{name} = {most}; give at most that")


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
        batch=2048,
        shapes=4,
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


def main(arguments: list[str]) -> None:
    """Read the flags and the pairs, train, average, translate the test set, and save."""
    start = time.perf_counter()
    recipe = read_recipe(PRESETS, arguments, prog="jaxformer train translate")
    use_cache(recipe.cache)
    keep_freed_memory()
    out = recipe.out or Path(from_first(lambda: str(free_folder(Path("runs"), f"translate-{recipe.preset}"))))
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


def facts_of(tokenizer: Tokenizer, pairs: Buckets, splits: Splits) -> dict[str, str]:
    """Return checksums of the data that a run is bound to: tokenizer, training pairs, validation and test set."""
    held_out = {"validation_sha256": splits.validation, "test_sha256": splits.test}
    measured = {name: sha256(repr(texts).encode()).hexdigest() for name, texts in held_out.items()}
    return {"tokenizer_sha256": tokenizer.sha256, "sha256": digest([pairs.sources, pairs.targets]), **measured}


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
    start_step = int(state.step)
    console.print(headline(recipe, state.model, pairs) + (f" · resumed at step {start_step:,}" if start_step else ""))

    loss = PRECISIONS[recipe.precision](partial(pair_loss, pad=held_out.pad, smoothing=recipe.smoothing))
    train_steps = make_shaped_train_steps(loss, optimizer, partial(pairs.batch, recipe.seed), parts=recipe.parts)
    evaluate, shown = partial(measure, pairs=held_out), splits.validation.sources[: recipe.show]

    def on_evaluate(model: EncoderDecoder, line: Mapping[str, float]) -> None:
        save_evaluated(folder, model, line, recipe.averaged)
        show_line(console, line, first=line["step"] - recipe.evaluate_every <= start_step)
        for source, translation in zip(shown, Translator(model, tokenizer).greedy(shown), strict=True):
            console.print(f"        {source} -> {translation}")

    state = fit(
        state,
        Plan(
            steps=recipe.steps,
            evaluate_every=recipe.evaluate_every,
            save_every=recipe.save_every,
            tokens_per_step=round(pairs.tokens / pairs.steps),
            evaluate=evaluate,
            on_evaluate=on_evaluate,
            examine=partial(train_steps.examine, None, seed),
            is_followed=True,
        ),
        folder,
        lambda state, n: train_steps(state, None, seed, n),
        console,
    )
    return folder, choose_weights(folder, state.model, recipe.averaged, evaluate, console)


def save_evaluated(folder: RunFolder, model: EncoderDecoder, line: Mapping[str, float], averaged: int) -> None:
    """Keep weights among the newest, to be averaged at the end, and as the run's weights if they are the best so far.

    Earlier translations of the test set are deleted.
    """
    if is_first():
        table_of(folder.path).unlink(missing_ok=True)
    keep_weights(folder, int(line["step"]), model, averaged, line)
    if line["step"] == from_first(lambda: best_step(folder, line)[0]):
        write_weights(folder, folder.weights, model)


def make_buckets(recipe: Translate, tokenizer: Tokenizer, splits: Splits) -> tuple[Buckets, Buckets]:
    """Encode the training and the held-out pairs, and sort them into batches."""
    train, held_out = (encode_pairs(tokenizer, pairs, recipe.longest) for pairs in (splits.train, splits.validation))
    sizes = {"pad": tokenizer.frame.pad, "budget": recipe.batch, "multiple": recipe.row_parts}
    return (
        Buckets(*train, shapes=recipe.shapes, parts=recipe.parts, **sizes),
        Buckets(*held_out, shapes=min(EVALUATION_SHAPES, recipe.shapes), **sizes),
    )


def measure(model: EncoderDecoder, pairs: Buckets) -> dict[str, float]:
    """Return the mean loss of a target token, its exponential (perplexity), and how often the target is the likeliest token."""
    sums = [run_together(measure_pairs, model, put_batch(batch), pad=pairs.pad) for batch in pairs.epoch()]
    total, right, count = np.asarray(jax.device_get(sums), np.float64).sum(0)
    return {"val_loss": total / count, "perplexity": math.exp(min(total / count, 700)), "accuracy": right / count}


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


def headline(recipe: Translate, model: EncoderDecoder, pairs: Buckets) -> str:
    """Format the first line of a run: the model, the data and the devices."""
    config = recipe.model
    return (
        f"translate · encoder-decoder {config.n_layers}+{config.decoder.n_layers}, d_model {config.d_model}, "
        f"{config.n_heads} heads, vocabulary {config.vocab_size:,} · {count_parameters(model):,} parameters, "
        f"{count_parameters(model, embeddings=False):,} without embeddings · {len(pairs.sources):,} pairs, "
        f"{pairs.steps} batches an epoch, {100 * pairs.padding:.1f} % padding · {devices_in_use()}"
    )


def show_line(console: Console, line: Mapping[str, float], *, first: bool) -> None:
    """Print a line of the table of evaluations, after the table's header if it is the first."""
    if first:
        console.print(
            f"{'step':>7} {'batch loss':>11} {'val loss':>9} {'perplexity':>11} {'accuracy':>9} {'tokens/s':>9} {'left':>7}"
        )
    console.print(
        f"{line['step']:7,} {line['loss']:11.4f} {line['val_loss']:9.4f} {line['perplexity']:11.2f} "
        f"{line['accuracy']:9.4f} {line['tokens_per_second']:9,.0f} {clock(line['seconds_left']):>7}"
    )
