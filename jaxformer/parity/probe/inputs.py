"""Adversarial inputs: padding, repeated ids, a large mean."""

from typing import Any

import numpy as np

from jaxformer.errors import InputError, type_of
from jaxformer.parity.probe.reach import limits_of, settings, table_of
from jaxformer.validation.fields import check_seed, check_size

SHIFT = 50.0
"""The mean of one row of hidden states: a variance that is computed as E[x^2] - E[x]^2 loses its digits there."""


BEYOND = 9
"""So many tokens further than the longest window."""


def probe(
    vocab: int | None = None, batch: int = 5, length: int = 66, seed: int = 0, pad: int = 0, *, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Adversarial inputs `B T`, and which of their positions are real: `ids, valid = probe(vocab=50257)`.

    Row 1 is padded on the right, row 2 on the left, the last one everywhere. With `vocab`, int32 ids below it; the id `pad`
    is where padding is and inside the text too, and ids are repeated. With `width`, float32 hidden states `B T width`, those
    of the first row with a mean of 50; padding is noise, on which no output may depend. Feed `valid` to a model that takes a
    mask, and leave it out of the inputs of one that does not. InputError or ConfigError for sizes or ids that do not fit.
    """
    if (vocab is None) == (width is None):
        raise InputError(f"probe has vocab = {vocab} and width = {width}; give one of them: vocab for ids, width for states")
    check_size("batch", batch, least=4)
    check_size("length", length, least=4)
    check_seed(seed)
    rng = np.random.default_rng(seed)
    valid = np.ones((batch, length), bool)
    valid[1, -(length // 4) :] = False
    valid[2, : length // 4] = False
    valid[-1] = False
    if vocab is None:
        check_size("width", width)
        states = rng.standard_normal((batch, length, width or 0))
        states[0] += SHIFT
        return states.astype(np.float32), valid
    check_size("vocab", vocab, least=2)
    check_size("pad", pad, least=0, most=vocab - 1)
    ids = rng.integers(0, vocab, (batch, length)).astype(np.int32)
    ids[:, length // 2] = pad
    ids[:, length // 2 + 1] = ids[:, length // 2 - 1]
    return np.where(valid, ids, pad).astype(np.int32), valid


def probe_config(config: Any, batch: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The `probe` of a model with this configuration, a mapping or an object: `ids, valid = probe_config(model.config)`.

    Its ids are below `vocab_size`, the padding is `pad_token_id`, and its rows are longer than the windows and the context
    before a rotary scaling; a learned table of positions is used to its end. InputError where there is no `vocab_size`.
    """
    held = dict(settings(config))
    if (vocab := held.get("vocab_size")) is None:
        raise InputError(f"the configuration, {type_of(config)}, has no vocab_size; give one that has, or call probe(vocab)")
    table, limits = table_of(config), limits_of(config)
    length = max([66, *(limit + BEYOND for limit in limits.values())])
    pad = held.get("pad_token_id")
    pad = pad if isinstance(pad, int) and 0 <= pad < vocab else 0
    return probe(vocab, batch, length if table is None else table, seed, pad)
