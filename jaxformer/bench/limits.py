"""Limits of a measurement: the least work of a model, in multiplications and bytes, and what the machine can do of it."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jaxformer.bench.problems import Training, Writing
from jaxformer.config.models import BlockConfig, EncoderDecoderConfig, ModelConfig
from jaxformer.config.settings import BeamConfig

SIDE = 1024
"""Rows and columns of the matrices that are multiplied."""
MEBIBYTES = 256
"""What is read once, far more than a cache holds."""
REPEATS = 12
PACKAGES = ("jax", "flax", "torch", "transformers")


@dataclass(frozen=True)
class Peak:
    """The best that was measured."""

    flops: float
    """Floating-point operations a second, of a float32 product."""
    bandwidth: float
    """Bytes of memory read in a second."""

    def part(self, flops: float, bytes_: float, seconds: float) -> float:
        """The least time that the work can take, over the time that it took."""
        return max(flops / self.flops, bytes_ / self.bandwidth) / seconds


def measure_peak() -> Peak:
    """The best of JAX and, where it is installed, of torch."""
    found = [measure_jax()] + ([measure_torch()] if find_spec("torch") else [])
    return Peak(max(peak.flops for peak in found), max(peak.bandwidth for peak in found))


def measure_jax() -> Peak:
    """By jax.numpy."""
    import jax
    import jax.numpy as jnp

    a, read = jnp.ones((SIDE, SIDE)), jnp.ones((MEBIBYTES * 256, 1024))
    product, total, times = jax.jit(jnp.matmul), jax.jit(jnp.sum), jax.jit(lambda x: x @ jnp.ones(1024))
    seconds = best(lambda: product(a, a).block_until_ready())
    reading = min(best(lambda f=f: f(read).block_until_ready()) for f in (total, times))
    return Peak(2 * SIDE**3 / seconds, read.nbytes / reading)


def measure_torch() -> Peak:
    """By torch, with all cores."""
    import torch

    torch.set_num_threads(cores())
    a, read, ones = torch.ones(SIDE, SIDE), torch.ones(MEBIBYTES * 256, 1024), torch.ones(1024)
    reading = min(best(read.sum), best(lambda: read @ ones))
    return Peak(2 * SIDE**3 / best(lambda: a @ a), read.nbytes / reading)


def best(work: Callable[[], object]) -> float:
    """Its seconds, the least of several times."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def load() -> float | None:
    """Processes that ran or waited in the last minute, on average; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def described() -> dict[str, str | int]:
    """The processor, the number of cores, and the releases of what was measured."""
    releases = {package: version(package) for package in PACKAGES if find_spec(package)}
    return {"processor": processor(), "cores": cores(), "python": platform.python_version(), **releases}


def processor() -> str:
    """Its name."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


FLOAT = 4
"""Bytes of a number."""
STEP_PASSES = 10
"""Times that a step moves every parameter: read forwards and backwards, its gradient written and read, and the parameter and
two moments read and written by the optimizer."""


class Cost(NamedTuple):
    """Of one unit of an item."""

    flops: float
    bytes: float


def cost_of(problem: Training | Writing) -> Cost:
    """Of a step, the mean over the batches that are ready; or of one call that writes, of a sentence for sources."""
    if isinstance(problem, Training):
        forward = sum(forward_flops(problem.model, *shape_of(problem, batch)) for batch in problem.batches) / len(
            problem.batches
        )
        return Cost(3 * forward, STEP_PASSES * FLOAT * parameters(problem.model))
    return writing_cost(problem)


def shape_of(problem: Training, batch: tuple) -> tuple[int, int, int]:
    """Rows, source tokens and target tokens that the model reads."""
    (rows, width), target = batch[0].shape, batch[1].shape[1]
    return (rows, 0, width) if problem.pad is None else (rows, width, target - 1)


def projections(config: BlockConfig) -> tuple[int, int, int]:
    """Numbers of weights: of queries and outputs, of keys and values, and of the feed-forward layer."""
    mixed = config.n_heads * config.head_width
    own = config.d_model * mixed * (2 if config.output_projection else 1)
    return own, 2 * config.d_model * config.kv_heads * config.head_width, (2 + config.gated) * config.d_model * config.d_ff


def forward_flops(config: ModelConfig, rows: int, source: int, target: int) -> float:
    """Of one pass over `rows` sequences, without norms and activations: 2 N a token, and 4 D T a token and layer."""
    own, read, feed_forward = projections(config)
    block, scores = own + read + feed_forward, 4 * config.n_heads * config.head_width
    head = 2 * config.d_model * config.vocab_size
    if not isinstance(config, EncoderDecoderConfig):
        return rows * target * (config.n_layers * (2 * block + scores * target) + head)
    encoder = source * config.n_layers * (2 * block + scores * source)
    decoder = target * (2 * (block + own) + scores * (target + source)) + source * 2 * read
    return rows * (encoder + config.decoder.n_layers * decoder + target * head)


def matrices(config: ModelConfig) -> int:
    """Weights that a token is multiplied with."""
    own, read, feed_forward = projections(config)
    layers, crossed = config.n_layers * (own + read + feed_forward), 0
    if isinstance(config, EncoderDecoderConfig):
        layers, crossed = config.decoder.n_layers * (own + read + feed_forward), config.decoder.n_layers * own
    return layers + crossed + config.d_model * config.vocab_size


def parameters(config: ModelConfig) -> int:
    """All of them, but for biases and norms."""
    own, read, feed_forward = projections(config)
    if not isinstance(config, EncoderDecoderConfig):
        tables = 1 if getattr(config, "tied", False) else 2
        return config.n_layers * (own + read + feed_forward) + (tables * config.vocab_size + config.context) * config.d_model
    tables = config.source_vocab_size or 0
    tables += config.vocab_size * (1 if config.tied else 2)
    layers = config.n_layers * (own + read + feed_forward) + config.decoder.n_layers * (2 * (own + read) + feed_forward)
    return layers + tables * config.d_model


def writing_cost(problem: Writing) -> Cost:
    """Every weight is read once for each token, whatever the number of rows, and the keys and values so far once."""
    config, (rows, prompt), tokens = problem.model, problem.prompts.shape, problem.n_tokens
    kept = 2 * config.kv_heads * config.head_width * config.n_layers
    if problem.pad is None:
        lengths = tokens * (prompt + tokens / 2)
        flops = forward_flops(config, rows, 0, prompt + tokens)
        return Cost(flops, FLOAT * (tokens * matrices(config) + rows * kept * lengths))
    beams = BeamConfig().width
    flops = forward_flops(config, 1, prompt, tokens) + (beams - 1) * forward_flops(config, 1, 0, tokens)
    return Cost(flops, FLOAT * (tokens * matrices(config) / rows + beams * kept * tokens * (prompt + tokens / 2)))
