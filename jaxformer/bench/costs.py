"""What the work costs at least: multiplications and additions of the model, and bytes that have to move."""

from typing import NamedTuple

from jaxformer.bench.problems import Training, Writing
from jaxformer.config.models import BlockConfig, EncoderDecoderConfig, ModelConfig
from jaxformer.config.settings import BeamConfig

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
