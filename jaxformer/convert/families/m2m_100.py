"""M2M-100 and NLLB in transformers' format: BART's names, and fairseq's table of positions."""

import math
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from jaxformer.config.configuration import FixedTable
from jaxformer.convert.families.bart import (
    BART,
    BART_TYPE,
    SEQ2SEQ_KEYS,
    SINUSOIDS,
    decoder_heads,
    decoder_keys,
    older_keys,
)
from jaxformer.convert.model_type import ACTIVATIONS, Field

M2M_100 = replace(
    BART,
    name="m2m_100",
    ignored={f"{stack}.embed_positions.weights": "sinusoids, frozen" for stack in ("encoder", "decoder")} | SINUSOIDS,
)
"""Family for `EncoderDecoderConfig(norm_position="pre", positions=FixedTable(sinusoids of fairseq), position_offset=2,
tied=True)`."""


@cache
def fairseq_sinusoids(rows: int, d_model: int, padding_idx: int) -> FixedTable:
    """Return fairseq's table: sines, then cosines, of wave lengths up to 10000 at the last one; zeros for padding."""
    half = d_model // 2
    waves = np.exp(np.arange(half) * (-math.log(10000.0) / (half - 1)))
    angles = np.arange(rows)[:, None] * waves
    table = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((rows, d_model % 2))], 1)
    table[padding_idx] = 0
    return FixedTable(table)


def _fairseq(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set positions to fairseq's table, counted from the row after the padding's."""
    if found["padding_idx"] is None:
        raise TypeError("pad_token_id is null, and positions are counted from it")
    rows, offset = found["context"] + 2, found["padding_idx"] + 1
    table = fairseq_sinusoids(rows, found["d_model"], found["padding_idx"])
    return decoder_heads(found) | {"positions": table, "position_offset": offset, "context": rows - offset}


M2M_100_TYPE = replace(
    BART_TYPE,
    name="m2m_100",
    family=M2M_100,
    keys=SEQ2SEQ_KEYS
    | older_keys(True, False, True, True)
    | {
        "vocab_size": Field("vocab_size", 128112),
        "activation_function": Field("activation", "relu", ACTIVATIONS),
        "attention_dropout": Field("attention_dropout", 0.1),
        "scale_embedding": Field("embedding_scale", True),
    },
    fixed={"norm_position": "pre", "tied": True},
    model="M2M100ForConditionalGeneration",
    base="M2M100Model",
    derive=_fairseq,
    undo=lambda config: decoder_keys(config) | {"max_position_embeddings": config.context + config.position_offset - 2},
)
"""Model type of M2M-100 and NLLB.

In torch, a token that is `pad_token_id` has a position of its own, and is not counted in the positions of later tokens: pad on
the right.
"""
