"""Export a model as one file of StableHLO: its forward pass, or its decoding, for several platforms at once.

The PyTorch twin uses torch.export.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxformer.config.settings import SamplingConfig
from jaxformer.decoding import translation
from jaxformer.decoding.choose import Choice, Step, advance, begin, make_choice
from jaxformer.decoding.generate import read
from jaxformer.decoding.prepare import NEVER, check_id, check_length
from jaxformer.decoding.sampling import Ends
from jaxformer.errors import CheckpointError, InputError, type_of, why_unwritten
from jaxformer.io.atomic import refuse_existing, written_whole
from jaxformer.models import GPT, Encoder, EncoderDecoder, TextModel
from jaxformer.nn.masks import padding_mask
from jaxformer.validation.arrays import check_values
from jaxformer.validation.fields import check_choice, check_kind, check_path

PLATFORMS = ("cpu", "cuda", "tpu")
"""Platforms that a program can be made for, on any machine."""

Program = Callable[..., Array]
Begun = tuple[Step, Array, Any, Array]
"""Step, first token's logits, cache, and tokens read."""


def export(model: TextModel, path: Path | str, *, platforms: Sequence[str] = PLATFORMS) -> None:
    """Write a model's forward pass into a new file, which needs only jax and flatbuffers:

        program = jax.export.deserialize(Path(path).read_bytes())
        logits = program.call(tokens)

    The file holds the weights and is about as large as they are. The program takes any batch `b`, and any length up to the
    context: a longer one is a ValueError that names the variable `t_at_most_1024`. Ids are int32, `valid` is True for tokens
    that are not padding. There is no dropout.

        GPT               tokens (b, t)                                       -> logits (b, t, V)
        Encoder           tokens (b, t), valid (b, t), token_types (b, t) of an encoder that has them  -> what it returns
        EncoderDecoder    source (b, s), valid (b, s), target (b, t)          -> logits (b, t, V)

    Raises InputError for a file that exists and for a model without weights, ConfigError for an unknown platform, and
    CheckpointError if the file cannot be written.
    """
    _check_model(model)
    ids, flags, longest = jnp.int32, jnp.bool_, {"t": model.config.context}
    if isinstance(model, GPT):
        _write(model, lambda model, tokens: model(tokens), {"t": [ids]}, longest, path, platforms)
    elif isinstance(model, Encoder):
        more = [ids] if model.config.token_types else []

        def states(model: Encoder, tokens: Array, valid: Array, types: Array | None = None) -> Array:
            return model(tokens, mask=padding_mask(valid), token_types=types)

        _write(model, states, {"t": [ids, flags, *more]}, longest, path, platforms)
    else:

        def logits(model: EncoderDecoder, source: Array, valid: Array, target: Array) -> Array:
            return model(source, target, source_mask=padding_mask(valid))

        _write(model, logits, {"s": [ids, flags], "t": [ids]}, {"s": model.config.source.context} | longest, path, platforms)


def export_generate(
    model: TextModel,
    path: Path | str,
    n_tokens: int | np.integer,
    sampling: SamplingConfig | None = None,
    *,
    start: int | None = None,
    eos: Ends = None,
    pad: int | None = None,
    platforms: Sequence[str] = PLATFORMS,
) -> None:
    """Write a model's decoding into a new file, as `export` does: `generate` of a GPT, `translate` of an EncoderDecoder.

        program.call(text, valid) -> tokens      ids (b, t), not padding (b, t) -> the next ids (b, n_tokens)
        program.call(text, valid, seed)          with a uint32 too, if `sampling` draws at random

    Padding may stand anywhere. The text and the tokens of a GPT must fit its context together: no window slides. If logits are
    NaN, or rules leave a row no token, all ids are -1; so are those of a row that is all padding. `sampling`, `eos` and
    `pad` are as in `generate`, `start` as in `translate`.
    """
    _check_decoder(model, start)
    context, vocab_size = model.config.context, model.config.vocab_size
    n_tokens = check_length(n_tokens, context if start is not None else context - 1, least=1)
    check_kind("sampling", sampling, (SamplingConfig, type(None)), "a SamplingConfig")
    draws = sampling is not None and sampling.temperature > 0
    key = jax.random.key(0) if draws else None
    choice, ngram = make_choice(sampling, key, eos, pad, vocab_size=vocab_size, n_tokens=n_tokens, size=n_tokens)
    if isinstance(model, EncoderDecoder):
        check_id("start", start, vocab_size)

    def tokens(model: TextModel, text: Array, valid: Array, seed: Array | None = None) -> Array:
        chosen = choice if seed is None else choice._replace(key=jax.random.key(seed))
        if isinstance(model, EncoderDecoder):
            return _written(_source(model, text, valid, start, n_tokens), valid, n_tokens, chosen, ngram)
        return _written(_prompt(cast(GPT, model), text, valid, n_tokens), valid, n_tokens, chosen, ngram)

    longest = model.config.source.context if isinstance(model, EncoderDecoder) else context - n_tokens
    _write(model, tokens, {"t": [jnp.int32, jnp.bool_], "": [jnp.uint32] if draws else []}, {"t": longest}, path, platforms)


def _prompt(model: GPT, text: Array, valid: Array, n_tokens: int) -> Begun:
    """Begin decoding after a prompt, whose padding is moved to the left."""
    order = jnp.argsort(valid, axis=1, stable=True)
    text, length = jnp.take_along_axis(text, order, 1), text.shape[1]
    padding = (~valid).sum(1, dtype=jnp.int32)
    return read(model, text, jnp.asarray(length, jnp.int32), padding, [length + n_tokens], width=1)


def _source(model: EncoderDecoder, text: Array, valid: Array, start: int | None, n_tokens: int) -> Begun:
    """Begin decoding of a source, whose padding is moved to the right."""
    order = jnp.argsort(~valid, axis=1, stable=True)
    text, valid = jnp.take_along_axis(text, order, 1), jnp.take_along_axis(valid, order, 1)
    return translation.read(model, text, valid, jnp.asarray([start], jnp.int32), n_tokens, width=1)


def _written(begun: Begun, valid: Array, n_tokens: int, choice: Choice, ngram: int) -> Array:
    """Decode `n_tokens` tokens; -1 where there are none."""
    step, logits, cache, history = begun
    progress = begin(logits, cache, history, n_tokens, choice.rules)
    progress = advance(step, progress, jnp.int32(n_tokens), choice, ngram)
    fine = (progress.broken == NEVER) & (progress.stuck == NEVER)
    return jnp.where(fine & valid.any(1, keepdims=True), progress.tokens, jnp.full_like(progress.tokens, -1))


def _check_model(model: Any) -> None:
    if not isinstance(model, TextModel):
        raise InputError(f"{type_of(model)} cannot be exported; give a GPT, an Encoder or an EncoderDecoder")
    if isinstance(model, EncoderDecoder) and model.stem is not None:
        raise InputError("a model that reads frames of features cannot be exported; give one that reads ids")
    check_values(model)


def _check_decoder(model: Any, start: int | None) -> None:
    _check_model(model)
    if isinstance(model, Encoder) or isinstance(model, EncoderDecoder) == (start is None):
        raise InputError(f"{type_of(model)} with start = {start}; give a GPT without, or an EncoderDecoder with one")
    if model.config.rotary_scaling == "longrope":
        raise InputError(
            "rotary_scaling = 'longrope' has other angles for longer texts, which no exported cache has; use export"
        )


def _sizes(longest: dict[str, int]) -> dict[str, Any]:
    """Return the symbolic batch `b`, and each symbolic length, by name.

    jax exports a single bound that it checks when the program is called: a variable is at least 1. So a length `t` of at most 9
    is 10 - t_at_most_9, where the variable counts the free places plus one. A longer text is refused by that name.
    """
    left = {name: f"{name}_at_most_{most}" for name, most in longest.items()}
    lengths = [f"{most + 1} - {left[name]}" for name, most in longest.items()]
    bounds = [f"{left[name]} <= {most}" for name, most in longest.items()]
    return dict(zip(["b", *longest], jax.export.symbolic_shape(", ".join(["b", *lengths]), constraints=bounds), strict=True))


def _write(
    model: TextModel,
    program: Program,
    arguments: dict[str, list[Any]],
    longest: dict[str, int],
    path: Path | str,
    platforms: Sequence[str],
) -> None:
    """Lower a program for these platforms and write it.

    `arguments` are the dtypes of its arguments, by the name of their length: each has shape (b, length), or is a scalar if that
    is ''.
    """
    path = check_path("path", path)
    refuse_existing(path)
    check_kind("platforms", platforms, (tuple, list), f"some of {PLATFORMS}")
    for platform in platforms or [""]:
        check_choice("platform", platform, PLATFORMS, elsewhere={"gpu": "'cuda'"})
    sizes = _sizes(longest)
    shapes = ((kind, (sizes["b"], sizes[name]) if name else ()) for name, kinds in arguments.items() for kind in kinds)
    given = [jax.ShapeDtypeStruct(shape, kind) for kind, shape in shapes]

    def whole(*arguments: Array) -> Array:
        return program(jax.lax.optimization_barrier(model), *arguments)  # otherwise XLA folds the constants for minutes

    lowered = jax.export.export(jax.jit(whole), platforms=tuple(platforms))(*given)
    try:
        with written_whole(path) as unfinished:
            unfinished.write_bytes(lowered.serialize())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {why_unwritten(error)}") from None
