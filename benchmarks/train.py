"""Training speed and quality of a preset, JAX against the PyTorch twin.

Every run is a process of its own, the sides in turn, so that a machine whose speed drifts favours none. Both sides train
the same model on data of the same kind with the same schedule, and are measured on the same validation data.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.jobs import Job, make_job
from jaxformer.config.models import GPTConfig
from jaxformer.errors import InputError, JaxformerError
from jaxformer.flags import parse, run
from jaxformer.validation.fields import check_choice, check_size

SIDES = ("jax", *(f"torch-{how}{threads}" for how in ("", "best-", "compile-") for threads in (1, 2)))


@dataclass(frozen=True, kw_only=True)
class TrainBenchmark:
    """Train a preset on every side and compare."""

    preset: str = "tiny"
    """Of train.shakespeare: tiny, cpu or gpu; of train.reverse: reverse.quick, reverse.original or copy; of train.translate:
    translate.smoke, translate.small or translate.base."""
    data: str | None = None
    """A text file, or the name of a corpus; None: the preset's."""
    seeds: tuple[int, ...] = (3, 4, 5)
    """One round of all sides for each."""
    steps: int = 5000
    """Optimizer steps."""
    batch: int | None = None
    """Windows, pairs, or tokens of sentence pairs a step; None: the preset's."""
    sides: tuple[str, ...] = ("jax", "torch-1", "torch-2")
    """jax; torch-N: the twin on N threads; torch-best-N: with fused attention and a fused optimizer; torch-compile-N."""
    dropout: bool = True
    """Train with the preset's dropout; False: without any."""
    worker: str = ""
    """Run this one side here and print its figures as JSON."""

    def __post_init__(self) -> None:
        check_size("steps", self.steps, least=2)
        for side in (*self.sides, self.worker or "jax"):
            check_choice("sides", side, SIDES)


def main(arguments: list[str]) -> None:
    """The table, or one side of it."""
    flags = parse(TrainBenchmark, arguments, prog="python -m benchmarks.train")
    if flags.worker:
        print(json.dumps(measure(flags)))
        return
    rows: dict[str, list[dict]] = {side: [] for side in flags.sides}
    for seed in flags.seeds:
        for side in flags.sides:
            rows[side].append(spawn(arguments, side, seed))
            found = rows[side][-1]
            print(f"seed {seed} {side:16} {found['ms']:8.3f} ms a step, validation loss {found['val_loss']:.4f}", flush=True)
    print(f"\n{'side':16} {'ms a step':>10} {'whole run':>10} {'validation loss':>16}")
    for side, found in rows.items():
        ms, wall = (statistics.median(row[name] for row in found) for name in ("ms", "wall"))
        print(f"{side:16} {ms:10.3f} {wall:8.1f} s {statistics.mean(row['val_loss'] for row in found):16.4f}")
    for side in flags.sides[1:]:
        ratios = sorted(theirs["ms"] / ours["ms"] for ours, theirs in zip(rows[flags.sides[0]], rows[side], strict=True))
        print(
            f"{flags.sides[0]} is {statistics.median(ratios):.2f} times as fast as {side} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def spawn(arguments: list[str], side: str, seed: int) -> dict:
    """One side in its own process; its figures, with the process's whole wall time."""
    command = [sys.executable, "-m", "benchmarks.train", *arguments, "--worker", side, "--seeds", str(seed)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise JaxformerError(f"{side} failed: {done.stderr.strip().splitlines()[-1]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "wall": time.perf_counter() - start}


def measure(flags: TrainBenchmark) -> dict:
    """Train one side; ms a step after a warm-up, and the validation loss."""

    def change(recipe: Any) -> Any:
        recipe = replace(recipe, seed=flags.seeds[0], steps=flags.steps, batch=flags.batch or recipe.batch)
        if not flags.dropout:
            rates = dict.fromkeys(("attention_dropout", "residual_dropout", "feed_forward_dropout", "embedding_dropout"), 0.0)
            recipe = replace(recipe, model=replace(recipe.model, **rates))
        return recipe

    job = make_job(flags.preset, flags.data, change)
    if flags.steps <= job.warmup:
        raise InputError(f"steps = {flags.steps} are all warm-up; give more than {job.warmup}")
    kind, *settings = flags.worker.split("-")
    return jax_side(job) if kind == "jax" else torch_side(job, settings)


def jax_side(job: Job) -> dict:
    """The figures of JAX."""
    import jax
    import jax.numpy as jnp

    from jaxformer.models import build
    from jaxformer.pytree import count_parameters
    from jaxformer.training.optimizers import make_optimizer
    from jaxformer.training.step import train_state

    recipe = job.recipe
    optimizer = make_optimizer(recipe.optimizer, recipe.schedule)
    key = jax.random.key(recipe.seed)
    state = train_state(build(recipe.model, rngs=key), optimizer)
    train_steps, data = job.train_steps(optimizer), None if job.data is None else jnp.asarray(job.data)
    state, value = train_steps(state, data, key, job.warmup)
    value.block_until_ready()
    start = time.perf_counter()
    state, value = train_steps(state, data, key, recipe.steps - job.warmup)
    value.block_until_ready()
    ms = 1e3 * (time.perf_counter() - start) / (recipe.steps - job.warmup)
    return {"ms": ms, "val_loss": job.evaluate(state.model), "parameters": count_parameters(state.model)}


def torch_side(job: Job, settings: list[str]) -> dict:
    """The figures of torch: eager or compiled, with a number of threads."""
    import torch

    from torch_ref.models import build
    from torch_ref.training.loop import fit
    from torch_ref.training.optimizers import make_optimizer

    recipe = job.recipe
    torch.set_num_threads(int(settings[-1]))
    if "best" in settings:
        use_fused_kernels(causal=isinstance(recipe.model, GPTConfig))
    generator = torch.Generator().manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed)
    model = build(recipe.model, generator=generator)
    optimizer, scheduler = make_optimizer(model, recipe.optimizer, recipe.schedule)
    trained: Any = torch.compile(model) if "compile" in settings else model
    go = {
        "loss": job.torch_loss,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "clip_norm": recipe.optimizer.clip_norm,
    }
    draw = job.torch_draw(generator)
    fit(trained, draw, steps=job.warmup, **go)
    start = time.perf_counter()
    fit(trained, draw, steps=recipe.steps - job.warmup, **go)
    ms = 1e3 * (time.perf_counter() - start) / (recipe.steps - job.warmup)
    return {"ms": ms, "val_loss": job.torch_evaluate(model), "parameters": sum(p.numel() for p in model.parameters())}


def use_fused_kernels(*, causal: bool) -> None:
    """Attention by F.scaled_dot_product_attention, causal of itself where every mask is, and torch's fused Adam."""
    from functools import partial

    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from torch_ref.nn import attention

    def extend(self, x, cache, memory=None, mask=None, *, bias=None):
        q, k, v = (heads.transpose(1, 2) for heads in self.project(x, memory))
        rate = self.dropout.p if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, attn_mask=None if causal else mask, is_causal=causal, dropout_p=rate)
        y = attention.merge_heads(y.transpose(1, 2))
        return (y if self.out is None else self.out(y)), cache

    attention.MultiHeadAttention.extend = extend
    torch.optim.Adam, torch.optim.AdamW = (partial(kind, fused=True) for kind in (torch.optim.Adam, torch.optim.AdamW))


if __name__ == "__main__":
    run(main)
