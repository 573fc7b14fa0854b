"""What is trained in a comparison of speed: the same model, batches of the same kind, and the same measure on both sides.

Nothing of torch is imported on the JAX side, and no JAX function runs while torch is timed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from jaxformer.checks import check_choice

PRE_DRAWN = 64
"""Batches of pairs that torch gets ready-made, in turn; JAX draws each of its own inside the step."""


@dataclass(frozen=True)
class Job:
    """A recipe, and what each side needs to run it."""

    recipe: Any
    data: np.ndarray | None
    """What the JAX side draws from."""
    draw: Callable[[Any, Any], Any]
    """draw(data, key) -> batch, in JAX."""
    loss: Callable[..., Any]
    """The loss in JAX."""
    evaluate: Callable[[Any], float]
    """The validation loss in JAX."""
    torch_draw: Callable[[Any], Callable[[], Any]]
    """torch_draw(generator)() -> batch."""
    torch_loss: Callable[..., Any]
    """The loss in torch."""
    torch_evaluate: Callable[[Any], float]
    """The validation loss in torch."""


def make_job(name: str, data: str, change: Callable[[Any], Any]) -> Job:
    """The job of a preset, whose recipe is changed first."""
    check_choice("preset", name, JOBS)
    return JOBS[name](data, change)


def shakespeare(preset: str, data: str, change: Callable[[Any], Any]) -> Job:
    """A GPT on the characters of a text."""
    from jaxformer.data.corpora import read_corpus
    from jaxformer.data.tokenizers import Tokenizer
    from jaxformer.data.windows import cover, draw_windows, split
    from jaxformer.training.step import make_evaluate
    from train.shakespeare import PRESETS, loss

    recipe, text = change(PRESETS[preset]), read_corpus(data)
    tokenizer = Tokenizer.characters(text)
    recipe = replace(recipe, model=replace(recipe.model, vocab_size=tokenizer.vocab_size))
    context = recipe.model.context
    training, validation = split(tokenizer.encode(text), context)
    whole = cover(validation, 256, context)

    def torch_draw(generator):
        import torch

        from torch_ref.training.loop import draw_windows

        return partial(draw_windows, torch.from_numpy(training).long(), recipe.batch, context, generator)

    def next_token_loss(model, batch):
        from torch_ref.training.loop import next_token_loss

        return next_token_loss(model, batch)

    def torch_evaluate(model):
        import torch

        from torch_ref.training.step import evaluate

        batches = zip(*(torch.from_numpy(array).long() for array in whole), strict=True)
        return evaluate(model, batches, loss=next_token_loss)

    return Job(
        recipe,
        training,
        partial(draw_windows, batch=recipe.batch, context=context),
        loss,
        lambda model: make_evaluate(loss)(model, whole),
        torch_draw,
        next_token_loss,
        torch_evaluate,
    )


def pairs(preset: str, data: str, change: Callable[[Any], Any]) -> Job:
    """An encoder-decoder on pairs by rule."""
    import jax

    from jaxformer.data.tasks import PAD, TASKS, Pairs
    from train.reverse import HELD_OUT, PRESETS, held_out_key, measure, pair_loss

    recipe = change(PRESETS[preset])
    task = TASKS[recipe.task]
    draws = jax.vmap(lambda key: task.draw(key, recipe.batch))(jax.random.split(jax.random.key(7), PRE_DRAWN))
    ready = jax.tree.map(np.asarray, draws)
    held_out = jax.tree.map(np.asarray, task.draw(held_out_key(recipe.seed), HELD_OUT))

    def torch_pairs(source, target):
        import torch

        return torch.from_numpy(source).long(), torch.from_numpy(target).long()

    def torch_draw(generator):
        batches = cycle([torch_pairs(source, target) for source, target in zip(*ready, strict=True)])
        return lambda: next(batches)

    def torch_loss(model, batch, smoothing=recipe.smoothing):
        from torch_ref.nn.masks import ids_to_valid, padding_mask
        from torch_ref.training.losses import cross_entropy

        source, target = batch
        logits = model(source, target[:, :-1], source_mask=padding_mask(ids_to_valid(source, PAD)))
        return cross_entropy(logits, target[:, 1:], ignore_index=PAD, smoothing=smoothing, spread="others_but_padding")

    def torch_evaluate(model):
        from torch_ref.training.step import evaluate

        return evaluate(model, [torch_pairs(*held_out)], loss=partial(torch_loss, smoothing=0.0))

    return Job(
        recipe,
        None,
        lambda _, key: task.draw(key, recipe.batch),
        partial(pair_loss, smoothing=recipe.smoothing),
        lambda model: float(measure(model, Pairs(*held_out))["val_loss"]),
        torch_draw,
        torch_loss,
        torch_evaluate,
    )


JOBS = {name: partial(shakespeare, name) for name in ("seed", "cpu", "gpu")}
JOBS |= {f"reverse.{name}": partial(pairs, name) for name in ("quick", "original")}
JOBS["copy"] = partial(pairs, "copy")
