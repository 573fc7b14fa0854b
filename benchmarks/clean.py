"""Check for false alarms: random models without a bug against their PyTorch twins; each has to be found equal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import jax
import numpy as np

import torch_ref.models
from jaxformer.cli.flags import parse, run
from jaxformer.config.blocks import Activation, Norm, NormPosition, Projections, RematPolicy
from jaxformer.config.configuration import FixedTable
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig, Positions
from jaxformer.convert.families.twin import TWIN
from jaxformer.errors import ParityError
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import abstract
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.validation.fields import check_size

BATCH, LENGTH = 5, 9
SIZES = {"vocab_size": 23, "context": 11, "d_model": 12}
"""Sizes of all models, equal so that they share compilations."""
KINDS_OF_POSITIONS = (*get_args(Positions), FixedTable(np.random.default_rng(0).standard_normal((15, SIZES["d_model"]))))
"""Kinds of positions, among them a fixed table that is long enough for every source."""
CHECKS = ("weights", "forward", "local", "gradients", "activation gradients")
"""All checks in float64."""


@dataclass(frozen=True, kw_only=True)
class Clean:
    """Compare random clean models with their PyTorch twins; each has to be equal, with no module named."""

    count: int = 200
    """Number of models."""
    first: int = 0
    """Number of the first model: the number is the seed of a model, its weights and its inputs."""


def main(arguments: list[str]) -> None:
    """Print the report of each model that is not equal, and count the others; ParityError if some are not equal."""
    flags = parse(Clean, arguments, prog="python -m benchmarks.clean")
    check_size("count", flags.count)
    start, equal = time.perf_counter(), 0
    for number in range(flags.first, flags.first + flags.count):
        report = compared(number)
        if report.status == "equal" and not report.diverging:
            equal += 1
        else:
            print(f"{number}: {drawn(number)}\n{report}", flush=True)
    counted = f"{equal}/{flags.count} equal"
    print(f"{time.perf_counter() - start:.0f} s")
    if equal < flags.count:
        raise ParityError(counted)
    print(counted)


def compared(number: int) -> Report:
    """Compare one model op by op; every second one without rules, so that weights are matched by values."""
    config = drawn(number)
    model = excite(abstract(config), number)
    twin = load_torch(torch_ref.models.build(config), model).eval()
    inputs = adversarial_inputs(config, BATCH, LENGTH, seed=number)
    rules = TWIN if number % 2 else None
    with jax.disable_jit(), strict():
        return compare(twin, model, inputs, rules=rules, call_torch=call_torch, call_jax=call_jax, checks=CHECKS, tier="A")


@contextmanager
def strict() -> Iterator[None]:
    """Run JAX with strict promotion: a dtype or rank that changes on the way is a bug."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


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
    return kind(**values, **switches, remat_policy=one(*get_args(RematPolicy)) if values["remat"] else "nothing")


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
        **({} if rotary == "none" else rotations_of(kind, window, draws)),
    }


def rotations_of(kind: type[ModelConfig], window: int | None, draws: Draws) -> dict[str, Any]:
    """Draw the numbers of rotary positions and of their scaling."""
    one, flip = draws.one, draws.flip
    by_length = () if kind is EncoderDecoderConfig else ("dynamic", "longrope")
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


if __name__ == "__main__":
    run(main)
