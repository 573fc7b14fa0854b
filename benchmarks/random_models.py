"""Random models: configurations with every option, drawn by a seed."""

from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np

from jaxformer.config.blocks import Activation, Norm, NormPosition, Projections, RematPolicy
from jaxformer.config.configuration import FixedTable
from jaxformer.config.experts import ExpertPath, GroupScore, Router
from jaxformer.config.latent import WITHOUT, LatentForm
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig, Positions
from jaxformer.errors import ConfigError

SIZES = {"vocab_size": 23, "context": 11, "d_model": 12}
"""Sizes of all models, equal so that they share compilations."""
KINDS_OF_POSITIONS = (*get_args(Positions), FixedTable(np.random.default_rng(0).standard_normal((15, SIZES["d_model"]))))
"""Kinds of positions, among them a fixed table that is long enough for every source."""
FLAGS = True, False
EXPERTS: dict[str, tuple[Any, ...]] = {"n_experts": (4,), "experts_per_token": (1, 2), "d_ff": (20,)}
LATENT: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in WITHOUT.items() if name != "output_projection"}
RARE: tuple[dict[str, tuple[Any, ...]], ...] = (
    {**EXPERTS, "router": get_args(Router), "router_bias": FLAGS, "router_scale": (1.0, 1.3), "experts": get_args(ExpertPath)},
    {**EXPERTS, "dense_layers": (1,), "dense_d_ff": (14,), "n_layers": (2, 3)},
    {**EXPERTS, "expert_norms": (True,), "shared_d_ff": (8,), "norm_position": ("sandwich",), "parallel_residual": (False,)},
    {"router_normalised": (True,)},
    {"router_correction": (True,)},
    {"expert_groups": (2,), "groups_per_token": (1, 2), "group_score": get_args(GroupScore)},
    {"shared_d_ff": (8,), "shared_gate": FLAGS},
    {"expert_scale": (True,)},
    {
        **LATENT,
        "kv_latent": (6,),
        "query_latent": (None, 7),
        "value_dim": (None, 4),
        "head_dim": (5,),
        "output_projection": (True,),
        "latent_norm_epsilon": (1e-6, 1e-3),
        "latent_form": get_args(LatentForm),
        "rotary": ("half", "interleaved"),
        "rotary_dim": (2,),
        "rotary_window_base": (None,),
        "layer_pattern": (None,),
    },
    {
        "full_head_dim": (None, 6),
        "full_kv_heads": (None, 1),
        "full_value_projection": (False, False, True),
        "rotary_dim": (None,),
        "window": (2,),
        "layer_pattern": (("full", "window"),),
        "n_layers": (2, 3),
        "projections": ("separate",),
    },
    {"shared_kv_layers": (1,), "shared_kv_d_ff": (None, 14), "n_layers": (3,), "projections": ("separate",)},
    {
        "relative_bias": ("disentangled",),
        "relative_norm": FLAGS,
        "relative_buckets": (4, 6),
        "relative_distance": (5, 9),
        "qk_norm": (False,),
        "clip_qkv": (None,),
        "n_kv_heads": (None,),
    },
    {"rotary_scaling": ("proportional",), "rotary_factor": (2.0,), "rotary_pairs": (1,)},
    {"first_attention_norm": (False,)},
    {"layer_embedding": (6,)},
    {"shared_layers": (True,)},
    {"head": ("masked_lm", "question_answering")},
    {"head": ("sequence_classification",), "head_pooling": ("cls", "mean"), "labels": (("a", "b", "c"),)},
    {"causal": (True,)},
    {"pooler_activation": ("gelu",)},
    {"head_transform": (True,), "head_activation": (None, "silu"), "head_dense_bias": FLAGS},
    {"key_bias": (False,)},
    {"value_projection": (False,)},
    {"value_norm": (True,)},
    {"qk_norm_kind": ("layer",), "qk_norm_bias": FLAGS},
    {"qk_norm_over": ("each", "all")},
    {"qk_norm_affine": (False,)},
    {"qk_norm_after_rotary": (True,)},
    {"rotary_reversed": (True,)},
    {"relative_per_layer": (True,)},
    {"gate_limit": (0.8,)},
    {"layer_scale": (0.3,)},
    {"output_scale": (True,)},
    {"embedding_bias": (False,)},
    {"positions_last": (True,)},
    {"source_embedding_scale": FLAGS},
    {"n_decoder_heads": (3,)},
)
"""Rare options with their values, those of one entry together: set where a configuration allows them."""


class Draws:
    """Random choices, determined by the seed."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def one(self, *options: Any) -> Any:
        """Draw one of the options."""
        return options[self.rng.integers(len(options))]

    def flip(self) -> bool:
        """Draw True or False."""
        return self.one(True, False)


def drawn(number: int) -> ModelConfig:
    """Draw a configuration with every option."""
    draws = Draws(number)
    one, flip = draws.one, draws.flip
    kind = one(GPTConfig, EncoderConfig, EncoderDecoderConfig)
    norm, heads, projected = one(*get_args(Norm)), one(2, 3, 4), flip()
    own = options_of(kind, draws)
    values = dict(
        **SIZES,
        n_layers=one(1, 2, 3),
        n_heads=heads,
        n_kv_heads=one(None, 1, *(k for k in (2, 3) if heads % k == 0)),
        d_ff=one(20, 20, 0),
        activation=one(*get_args(Activation)),
        gated=flip(),
        norm=norm,
        norm_position=one(*get_args(NormPosition)),
        norm_epsilon=one(1e-5, 1e-6, 1e-12),
        projections=one(*get_args(Projections)),
        qkv_bias=flip(),
        output_projection=projected,
        output_bias=projected and flip(),
        feed_forward_bias=flip(),
        layers=one("unrolled", "rolled"),
        remat=one(False, False, False, True),
        positions=one(*KINDS_OF_POSITIONS),
        position_offset=one(0, 2),
        embedding_scale=flip(),
        embedding_multiplier=one(1.0, 1.0, 1.7),
        embedding_norm=norm != "none" and flip(),
        padding_idx=one(None, None, 0),
        **own,
        head_dim=one(None, None, 5) if projected else None,
        stack_norm=one(None, None, True, False),
    )
    switches = switches_of(kind, values, draws)
    policy = one(*get_args(RematPolicy)) if values["remat"] else "nothing"
    return varied(kind(**values, **switches, remat_policy=policy), draws)


def varied(config: ModelConfig, draws: Draws) -> ModelConfig:
    """Set some rare options, as far as the configuration has them and allows them."""
    names = {field.name for field in fields(config)}
    for options in RARE:
        if names.issuperset(options) and draws.one(True, False, False):
            with suppress(ConfigError):
                config = replace(config, **{name: draws.one(*values) for name, values in options.items()})
    return config


def switches_of(kind: type[ModelConfig], given: dict[str, Any], draws: Draws) -> dict[str, Any]:
    """Draw switches of positions, scores and norms that are compatible with the given options."""
    one, flip = draws.one, draws.flip
    rotary, window, relative = one("none", "half", "interleaved"), one(None, 2, 4), one("none", "t5", "alibi")
    tables = [given.get(name) for name in ("positions", "source_positions")]
    free = not any(isinstance(table, FixedTable) for table in tables)
    affine, parallel = given["norm"] == "none" or one(True, True, True, False), flip()
    beside = given["norm_position"] == "pre" and given["d_ff"] > 0 and kind is not EncoderDecoderConfig
    return {
        "norm_affine": affine,
        "norm_bias": not affine or flip(),
        "norm_unit_offset": given["norm"] != "none" and affine and flip(),
        "parallel_residual": beside and parallel,
        "shared_norm": beside and parallel and flip(),
        "residual_multiplier": one(1.0, 1.0, 0.7),
        "clip_qkv": one(None, None, 0.9),
        "embedding_width": one(None, 10) if free else None,
        "attention_scale": one(None, 0.4),
        "attention_softcap": one(None, 3.0),
        "qk_norm": flip(),
        "sinks": flip(),
        "window": window,
        "layer_pattern": one(None, ("full", "window")) if window else None,
        "rotary": rotary,
        "relative_bias": relative,
        **({"relative_buckets": one(4, 6, 8), "relative_distance": one(5, 9)} if relative == "t5" else {}),
        **({} if rotary == "none" else rotations_of(kind, given, window, draws)),
    }


def rotations_of(kind: type[ModelConfig], given: dict[str, Any], window: int | None, draws: Draws) -> dict[str, Any]:
    """Draw the numbers of rotary positions and of their scaling. Dynamic scaling changes all rates but the first."""
    one, flip = draws.one, draws.flip
    has_rates = (given["head_dim"] or SIZES["d_model"] // given["n_heads"]) >= 4
    by_length = () if kind is EncoderDecoderConfig else ("longrope", "dynamic")[: 1 + has_rates]
    scaling = one("none", "linear", "llama3", "yarn", *by_length)
    factor = {"rotary_factor": one(2.0, 4.0)}
    longer = {**factor, "rotary_original_context": one(4, 16)}
    numbers = {
        "none": {},
        "linear": factor,
        "dynamic": {**longer, "rotary_dim": 4},
        "longrope": {**longer, "rotary_short_factors": (one(1.0, 1.5),), "rotary_long_factors": (one(2.0, 3.0),)},
        "llama3": {**longer, "rotary_low_frequency_factor": one(0.5, 1.0), "rotary_high_frequency_factor": one(2.0, 4.0)},
        "yarn": {
            **longer,
            "rotary_beta_fast": one(32.0, 2.0),
            "rotary_beta_slow": one(1.0, 0.1),
            "rotary_truncate": flip(),
            "rotary_attention_factor": one(None, 1.3),
        },
    }
    bases = {"rotary_base": one(1e4, 50.0), "rotary_window_base": one(None, 20.0) if window else None}
    pattern = one(None, None, (True, False))
    return {"rotary_dim": 2, "rotary_pattern": pattern, "rotary_scaling": scaling, **bases, **numbers[scaling]}


def options_of(kind: type[ModelConfig], draws: Draws) -> dict[str, Any]:
    """Draw the options that only one kind of model has."""
    one, flip = draws.one, draws.flip
    readout = {"tied": flip(), "head_bias": flip(), "logits_scale": one(1.0, 1.0, SIZES["d_model"] ** -0.5)}
    readout["logits_softcap"] = one(None, None, 2.0)
    options = {
        GPTConfig: readout,
        EncoderConfig: {"token_types": one(0, 2), "pooler": flip()},
        EncoderDecoderConfig: {
            "n_decoder_layers": one(None, 1, 2),
            "source_vocab_size": one(None, 19),
            "source_context": one(None, 9, 13),
            "source_positions": one(None, None, *KINDS_OF_POSITIONS),
            **readout,
        },
    }
    return options[kind]
