"""Limits of a measurement: least operations and bytes of a model, and the peak speed of the machine."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import numpy as np

from jaxformer.bench.problems import Training, Writing
from jaxformer.config.layer_kinds import Run, cached_numbers, runs_of
from jaxformer.config.models import EncoderDecoderConfig, ModelConfig
from jaxformer.config.settings import BeamConfig
from jaxformer.errors import InputError
from jaxformer.runtime.cores import cores
from jaxformer.runtime.environment import processor


class Sizes(NamedTuple):
    """Work whose speed is the peak."""

    side: int
    """Rows and columns of the matrices that are multiplied."""
    dtype: str
    mebibytes: int
    """Size of the array that is read, far more than a cache holds."""


SIZES = {"cpu": Sizes(1024, "float32", 256), "gpu": Sizes(8192, "bfloat16", 4096)}
REPEATS = 12
PACKAGES = ("jax", "flax", "torch", "transformers")


@dataclass(frozen=True)
class Peak:
    """Best speeds that were measured."""

    flops: float
    """Floating-point operations per second, in a matrix product."""
    bandwidth: float
    """Bytes per second, in reading memory."""
    accelerator: str = ""
    """Name of the accelerator; '' for the processor."""

    def part(self, flops: float, bytes_: float, seconds: float) -> float:
        """Ratio of the least time that the work can take to the time that it took."""
        return max(flops / self.flops, bytes_ / self.bandwidth) / seconds


def measure_peak(device: str) -> Peak:
    """Measure the peak: on the processor, the best of jax and, if installed, torch. InputError if there is no such device."""
    found = measure_jax(device)
    if device == "gpu" or not find_spec("torch"):
        return found
    other = measure_torch()
    return Peak(max(found.flops, other.flops), max(found.bandwidth, other.bandwidth))


def measure_jax(device: str) -> Peak:
    """Measure the peak by jax.numpy, on numbers of which no two are alike: a GPU multiplies zeros and ones faster."""
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != device:
        raise InputError(
            f"device = {device}: jax finds none here, but {jax.devices()[0].device_kind}; install jaxformer[cuda13]"
        )
    side, dtype, mebibytes = SIZES[device]
    a, read = jax.random.normal(jax.random.key(0), (side, side), dtype), jnp.ones((mebibytes * 256, 1024))
    product, total, times = jax.jit(jnp.matmul), jax.jit(jnp.sum), jax.jit(lambda x: x @ jnp.ones(1024))
    seconds = best(lambda: product(a, a).block_until_ready())
    reading = min(best(lambda f=f: f(read).block_until_ready()) for f in (total, times))
    return Peak(2 * side**3 / seconds, read.nbytes / reading, jax.devices()[0].device_kind if device == "gpu" else "")


def measure_torch() -> Peak:
    """Measure the processor's peak by torch, with all cores."""
    import torch

    torch.set_num_threads(cores())
    side, _, mebibytes = SIZES["cpu"]
    a, read, ones = torch.randn(side, side), torch.ones(mebibytes * 256, 1024), torch.ones(1024)
    reading = min(best(read.sum), best(lambda: read @ ones))
    return Peak(2 * side**3 / best(lambda: a @ a), read.nbytes / reading)


def device_memory() -> dict[str, int]:
    """Return the most memory that jax has held on an accelerator, in bytes, as {"memory": n}; {} on a CPU."""
    import jax

    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return {} if stats is None else {"memory": stats["peak_bytes_in_use"]}


def best(work: Callable[[], object]) -> float:
    """Time some work several times, and return the least seconds."""
    return min(times(work))


def times(work: Callable[[], object]) -> list[float]:
    """Time some work several times; seconds."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def pace() -> float:
    """Time a fixed piece of work, in seconds: it changes only as the machine does."""
    square = np.ones((512, 512), np.float32)
    return median(times(lambda: square @ square))


def load() -> float | None:
    """Average number of running or waiting processes in the last minute; None if the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def described() -> dict[str, str | int]:
    """Return the processor, the number of cores, and the versions of the packages that are measured."""
    releases = {package: version(package) for package in PACKAGES if find_spec(package)}
    return {"processor": processor(), "cores": cores(), "python": platform.python_version(), **releases}


FLOAT = 4
"""Bytes of a float32."""
STEP_PASSES = 10
"""Number of times that a step moves every parameter: weights read forwards and backwards, the gradient written and read, and
the parameter and two moments read and written by the optimizer.
"""


class Cost(NamedTuple):
    """Least cost of one unit of an item, and the number of tokens that are trained on or written in it."""

    flops: float
    bytes: float
    tokens: float


def cost_of(problem: Training | Writing) -> Cost:
    """Compute the cost of a step (mean over the ready batches), or of one generated text or translated sentence."""
    if isinstance(problem, Training):
        shapes = [shape_of(problem, batch) for batch in problem.batches]
        forward = sum(forward_flops(problem.model, *shape) for shape in shapes) / len(shapes)
        tokens = sum(rows * target for rows, _, target in shapes) / len(shapes)
        return Cost(3 * forward, STEP_PASSES * FLOAT * parameters(problem.model), tokens)
    return writing_cost(problem)


def shape_of(problem: Training, batch: tuple) -> tuple[int, int, int]:
    """Return the numbers of rows, source tokens and target tokens that the model reads."""
    (rows, width), target = batch[0].shape, batch[1].shape[1]
    return (rows, 0, width) if problem.pad is None else (rows, width, target - 1)


class Weights(NamedTuple):
    """Numbers of weights of a block, without biases and norms."""

    own: int
    """Number of queries' and outputs' weights."""
    read: int
    """Number of keys' and values' weights."""
    feed_forward: int
    """Number in the feed-forward layer, or in the router and the experts that one token is multiplied with."""
    experts_left: int
    """Number in the experts that one token is not multiplied with."""
    scores: int
    """Operations for each token that a token attends to."""


def weights_of(run: Run) -> Weights:
    """Count the weights of a block of a run of layers alike."""
    config = run.config
    d_model, heads, width = config.d_model, config.n_heads, config.head_width
    queries, read = d_model * heads * width, run.weights_of_keys * d_model * config.kv_heads * width
    mixed = heads * config.value_width
    if config.kv_latent is not None:
        _, held = config.cached_heads
        made = width - (held - config.kv_latent) + config.value_width
        read = d_model * held + config.kv_latent * heads * made
        queries = queries if config.query_latent is None else config.query_latent * (d_model + heads * width)
    own = queries + (d_model * mixed if config.output_projection else 0)
    feed_forward, left, layer = (2 + config.gated) * d_model * config.d_ff, 0, (2 + config.gated) * d_model
    beside = 3 * d_model * config.layer_embedding
    if config.n_experts:
        left = (config.n_experts - config.experts_per_token) * feed_forward
        shared = layer * config.shared_d_ff + d_model * config.shared_gate
        feed_forward = config.experts_per_token * feed_forward + d_model * config.n_experts + shared
    return Weights(own, read, feed_forward + beside, left, 2 * heads * width + 2 * mixed)


def forward_flops(config: ModelConfig, rows: int, source: int, target: int) -> float:
    """Count operations of a forward pass over `rows` sequences, without norms and activations: 2 N a token, 4 D T a token and
    layer (N weights, T tokens attended to). Of experts, those of a token count; latents are made into keys and values.
    """
    head = 2 * config.d_model * config.vocab_size
    if not isinstance(config, EncoderDecoderConfig):
        stacks = ((it.config.n_layers, weights_of(it)) for it in runs_of(config))
        layers = sum(n * (2 * (own + read + feed) + scores * target) for n, (own, read, feed, _, scores) in stacks)
        return rows * target * (layers + head)
    own, read, feed_forward, _, scores = weights_of(Run(config))
    block = own + read + feed_forward
    encoder = source * config.n_layers * (2 * block + scores * source)
    decoder = target * (2 * (block + own) + scores * (target + source)) + source * 2 * read
    return rows * (encoder + config.decoder.n_layers * decoder + target * head)


def matrices(config: ModelConfig) -> int:
    """Count the weights that a token is multiplied with."""
    stacks = [(it.config.n_layers, weights_of(it)) for it in runs_of(config)]
    if isinstance(config, EncoderDecoderConfig):
        stacks = [(config.decoder.n_layers, it._replace(own=2 * it.own)) for _, it in stacks]
    return sum(n * (it.own + it.read + it.feed_forward) for n, it in stacks) + config.d_model * config.vocab_size


def parameters(config: ModelConfig) -> int:
    """Count all parameters except biases and norms."""
    stacks = [(it.config.n_layers, weights_of(it)) for it in runs_of(config)]
    layers = sum(n * (it.own + it.read + it.feed_forward + it.experts_left) for n, it in stacks)
    if not isinstance(config, EncoderDecoderConfig):
        tables = 1 if getattr(config, "tied", False) else 2
        places = config.context if config.positions == "learned" else 0
        by_layer = config.vocab_size * config.n_layers * config.layer_embedding
        return layers + (tables * config.vocab_size + places) * config.d_model + by_layer
    tables = config.source_vocab_size or 0
    tables += config.vocab_size * (1 if config.tied else 2)
    ((_, it),) = stacks
    return layers + config.decoder.n_layers * (2 * (it.own + it.read) + it.feed_forward) + tables * config.d_model


def writing_cost(problem: Writing) -> Cost:
    """Compute the cost of writing: a token reads all weights once, for any number of rows, and the key-value cache once."""
    config, (rows, prompt), tokens = problem.model, problem.prompts.shape, problem.n_tokens
    kept = cached_numbers(config)
    if problem.pad is None:
        lengths = tokens * (prompt + tokens / 2)
        flops = forward_flops(config, rows, 0, prompt + tokens)
        return Cost(flops, FLOAT * (tokens * matrices(config) + rows * kept * lengths), rows * tokens)
    beams = BeamConfig().width
    flops = forward_flops(config, 1, prompt, tokens) + (beams - 1) * forward_flops(config, 1, 0, tokens)
    bytes_ = FLOAT * (tokens * matrices(config) / rows + beams * kept * tokens * (prompt + tokens / 2))
    return Cost(flops, bytes_, tokens)
