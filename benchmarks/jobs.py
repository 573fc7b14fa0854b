"""What is trained in a comparison of speed: the same model, batches of the same kind, and the same measure on both sides.

Nothing of torch is imported on the JAX side, and no JAX function runs while torch is timed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from jaxformer.validation.fields import check_choice

PRE_DRAWN = 64
"""Batches of pairs that torch gets ready-made, in turn; JAX draws each of its own inside the step."""
SENTENCE_BATCHES = 32
"""Batches of sentence pairs that both sides get ready-made, in turn, of every shape that is frequent."""


@dataclass(frozen=True)
class Job:
    """A recipe, and what each side needs to run it."""

    recipe: Any
    data: np.ndarray | None
    """What the JAX side draws from."""
    train_steps: Callable[[Any], Callable[..., Any]]
    """train_steps(optimizer)(state, data, seed, n) -> (state, mean loss), in JAX."""
    evaluate: Callable[[Any], float]
    """The validation loss in JAX."""
    torch_draw: Callable[[Any], Callable[[], Any]]
    """torch_draw(generator)() -> batch."""
    torch_loss: Callable[..., Any]
    """The loss in torch."""
    torch_evaluate: Callable[[Any], float]
    """The validation loss in torch."""
    warmup: int = 1
    """Steps until every shape has been seen once."""


def make_job(name: str, data: str | None, change: Callable[[Any], Any]) -> Job:
    """The job of a preset, whose recipe is changed first."""
    check_choice("preset", name, JOBS)
    return JOBS[name](data, change)


def shakespeare(preset: str, data: str | None, change: Callable[[Any], Any]) -> Job:
    """A GPT on the characters of a text."""
    from jaxformer.data.corpora import read_corpus
    from jaxformer.data.tokenizers import Tokenizer
    from jaxformer.data.windows import cover, draw_windows, split
    from jaxformer.recipes.shakespeare import PRESETS, loss
    from jaxformer.training.step import make_evaluate, make_train_steps

    recipe = change(PRESETS[preset])
    text = read_corpus(data or recipe.data)
    tokenizer = Tokenizer.characters(text)
    recipe = replace(recipe, model=replace(recipe.model, vocab_size=tokenizer.vocab_size))
    context = recipe.model.context
    training, validation = split(tokenizer.encode(text), context)
    whole = cover(validation, 256, context)

    return Job(
        recipe,
        training,
        lambda optimizer: make_train_steps(loss, optimizer, partial(draw_windows, batch=recipe.batch, context=context)),
        lambda model: make_evaluate(loss)(model, whole),
        *torch_windows(training, whole, recipe),
    )


def torch_windows(training: np.ndarray, held_out: Any, recipe: Any) -> tuple[Any, Any, Any]:
    """What torch draws from a text, its loss, and its validation loss."""

    def torch_draw(generator):
        import torch

        from torch_ref.training.loop import draw_windows

        return partial(draw_windows, torch.from_numpy(training).long(), recipe.batch, recipe.model.context, generator)

    def next_token_loss(model, batch):
        from torch_ref.training.loop import next_token_loss

        return next_token_loss(model, batch)

    def torch_evaluate(model):
        import torch

        from torch_ref.training.step import evaluate

        batches = zip(*(torch.from_numpy(array).long() for array in held_out), strict=True)
        return evaluate(model, batches, loss=next_token_loss)

    return torch_draw, next_token_loss, torch_evaluate


def pairs(preset: str, data: str | None, change: Callable[[Any], Any]) -> Job:
    """An encoder-decoder on pairs by rule."""
    import jax

    from jaxformer.data.tasks import PAD, TASKS, Pairs
    from jaxformer.recipes.reverse import HELD_OUT, PRESETS, held_out_key, measure
    from jaxformer.training.pairs import pair_loss
    from jaxformer.training.step import make_train_steps

    recipe = change(PRESETS[preset])
    task, rules = TASKS[recipe.task], {"pad": PAD, "smoothing": recipe.smoothing}
    draws = jax.vmap(lambda key: task.draw(key, recipe.batch))(jax.random.split(jax.random.key(7), PRE_DRAWN))
    ready = [Pairs(*batch) for batch in zip(*jax.tree.map(np.asarray, draws), strict=True)]
    held_out = jax.tree.map(np.asarray, task.draw(held_out_key(recipe.seed), HELD_OUT))
    loss = partial(pair_loss, **rules)
    return Job(
        recipe,
        None,
        lambda optimizer: make_train_steps(loss, optimizer, lambda _, key: task.draw(key, recipe.batch)),
        lambda model: float(measure(model, Pairs(*held_out))["val_loss"]),
        *torch_pairs(ready, [held_out], rules),
    )


def sentences(preset: str, data: str | None, change: Callable[[Any], Any]) -> Job:
    """An encoder-decoder on sentence pairs, of several shapes."""
    from jaxformer.data.parallel import read_splits
    from jaxformer.recipes.translate import PRESETS, make_buckets, measure, read_tokenizer
    from jaxformer.training.pairs import pair_loss
    from jaxformer.training.step import make_shaped_train_steps

    recipe = change(PRESETS[preset])
    splits = read_splits(recipe.data if data is None else (data,))
    tokenizer = read_tokenizer(recipe, splits.train)
    recipe = replace(recipe, model=replace(recipe.model, vocab_size=tokenizer.vocab_size))
    batches, held_out = make_buckets(recipe, tokenizer, splits)
    ready, rules = list(islice(batches.epoch(), SENTENCE_BATCHES)), {"pad": held_out.pad, "smoothing": recipe.smoothing}
    loss = partial(pair_loss, **rules)
    return Job(
        recipe,
        None,
        lambda optimizer: make_shaped_train_steps(loss, optimizer, lambda step: ready[step % len(ready)], parts=recipe.parts),
        lambda model: measure(model, held_out)["val_loss"],
        *torch_pairs(ready, list(held_out.epoch()), rules),
        warmup=len(ready),
    )


def torch_pairs(ready: Sequence[Any], held_out: Sequence[Any], rules: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """What torch draws, its loss, and its validation loss."""

    def tensors(batch):
        import torch

        return tuple(torch.from_numpy(side).long() for side in batch)

    def torch_draw(generator):
        batches = cycle([tensors(batch) for batch in ready])
        return lambda: next(batches)

    def torch_loss(model, batch, **changes):
        from torch_ref.training.pairs import pair_loss

        return pair_loss(model, batch, **{**rules, **changes})

    def torch_evaluate(model):
        from torch_ref.training.step import evaluate

        return evaluate(model, [tensors(batch) for batch in held_out], loss=partial(torch_loss, smoothing=0.0))

    return torch_draw, torch_loss, torch_evaluate


JOBS = {name: partial(shakespeare, name) for name in ("tiny", "cpu", "gpu")}
JOBS |= {f"reverse.{name}": partial(pairs, name) for name in ("quick", "original")}
JOBS["copy"] = partial(pairs, "copy")
JOBS |= {f"translate.{name}": partial(sentences, name) for name in ("smoke", "small", "base")}
