"""Ports that others wrote: the Flax models of transformers 4.46 against their PyTorch originals.

transformers 5 has no Flax models any more, so this needs an environment of its own (once, about two minutes):

    python3 -m venv field-venv
    field-venv/bin/pip install jax==0.10.2 flax==0.12.8 torch==2.13.0 transformers==4.46.3 jaxtyping rich tyro
    field-venv/bin/pip install --no-deps -e .
    field-venv/bin/python -m benchmarks.field

Every model is tiny and random, with excited parameters; nothing is downloaded. transformers' own converter takes torch's
weights to Flax, and the comparison gets no rules. torch's `padding_idx` is switched off, since no Flax model has it. Each line
gives a verdict and its seconds; one that `benchmarks.field_kinds` does not expect is an error, exit code 2.
"""

import gc
import importlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from benchmarks.field_kinds import KINDS, VOCAB, Kind
from jaxformer.errors import InputError, ParityError
from jaxformer.flags import parse, run
from jaxformer.parity.compare import compare
from jaxformer.parity.judge.checks import CHECK_NAMES
from jaxformer.parity.probe.inputs import probe
from jaxformer.parity.probe.parameters import excite
from jaxformer.parity.report.report import Report

BATCH, LENGTH, TARGET = 5, 13, 11
RELEASE = "4.46"
HOW = "see the first lines of benchmarks/field.py for the environment that it needs"


@dataclass(frozen=True, kw_only=True)
class Field:
    """Compare the Flax models of transformers 4.46 with their PyTorch originals."""

    only: tuple[str, ...] = ()
    """Names, such as t5 and whisper; none: all."""
    tier: Literal["A", "B"] = "A"
    """A: float64; B: float32 too."""
    verbose: bool = False
    """Print the whole report of each that is not equal."""
    checks: tuple[str, ...] = field(default=CHECK_NAMES)
    """Which checks."""


def main(arguments: list[str]) -> None:
    """A line for each model; ParityError if a verdict is not the expected one."""
    flags = parse(Field, arguments, prog="python -m benchmarks.field")
    known = sorted({kind.name for kind in KINDS})
    for name in flags.only:
        if name not in known:
            raise InputError(f"only = {name} is not one of {', '.join(known)}")
    library = flax_release()
    wrong = []
    chosen = [kind for kind in KINDS if not flags.only or kind.name in flags.only]
    for kind in chosen:
        start = time.perf_counter()
        report = compared(kind, library, flags)
        seconds = time.perf_counter() - start
        expected = report.status == ("different" if kind.differs else "equal") and kind.differs in report.verdict
        wrong += [] if expected else [kind.model]
        print(f"{'ok   ' if expected else 'WRONG'}  {kind.model:34} {seconds:5.1f} s  {report.verdict}", flush=True)
        if flags.verbose and report.status != "equal":
            print(report, flush=True)
        gc.collect()
    print(f"{len(chosen) - len(wrong)}/{len(chosen)} as expected")
    if wrong:
        raise ParityError(f"unexpected verdicts: {', '.join(wrong)}")


def flax_release() -> Any:
    """transformers, if it is the release that has Flax models; InputError otherwise."""
    try:
        import transformers
    except ImportError:
        raise InputError(f"transformers is not installed; {HOW}") from None
    if not transformers.__version__.startswith(RELEASE):
        raise InputError(f"transformers is {transformers.__version__}, and its Flax models ended with {RELEASE}; {HOW}")
    as_of_old()
    return transformers


def as_of_old() -> None:
    """What these models use and newer releases of jax have no more."""
    clip = jnp.clip

    def named_clip(x: Any, low: Any = None, high: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
        return clip(x, low if a_min is None else a_min, high if a_max is None else a_max)

    lost: dict[Any, dict[str, Any]] = {jnp: {"clip": named_clip}}
    lost |= {kind: {"split": jnp.split} for kind in (type(jnp.zeros(())), Tracer)}
    for owner, functions in lost.items():
        for name, function in functions.items():
            setattr(owner, name, function)


def compared(kind: Kind, library: Any, flags: Field) -> Report:
    """One comparison."""
    torch_model, jax_model, params = models(kind, library)
    inputs, names = given(kind)
    return compare(
        torch_model,
        params,
        inputs,
        call_torch=partial(_call_torch, kind, names),
        call_jax=partial(_call_jax, kind, names, jax_model),
        checks=flags.checks,
        tier=flags.tier,
    )


def models(kind: Kind, library: Any) -> tuple[Any, Any, Any]:
    """torch's model with excited weights, Flax's, and its variables with the same weights."""
    from flax.traverse_util import flatten_dict, unflatten_dict

    to_flax = importlib.import_module("transformers.modeling_flax_pytorch_utils").convert_pytorch_state_dict_to_flax
    original = getattr(library, kind.model)
    config = original.config_class(**kind.sizes)
    config._attn_implementation = "eager"
    torch_model = excite(original(config).eval(), seed=0)
    for module in torch_model.modules():
        if "Embedding" in type(module).__name__ and hasattr(module, "weight"):
            module.padding_idx = None  # torch drops a gradient there and Flax does not, in every model alike
    jax_model = getattr(library, f"Flax{kind.model}")(config, seed=0)
    initial = flatten_dict(jax_model.params)
    converted = flatten_dict(to_flax(dict(torch_model.state_dict()), jax_model))
    return torch_model, jax_model, unflatten_dict({name: converted.get(name, leaf) for name, leaf in initial.items()})


def given(kind: Kind) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    """The inputs of a kind of model, and what both sides call them."""
    ids, valid = probe(VOCAB, BATCH, LENGTH, pad=1)
    target, _ = probe(VOCAB, BATCH, TARGET, seed=1, pad=1)
    noise = np.random.default_rng(2).standard_normal
    match kind.given:
        case "ids":
            return (ids,), ("input_ids",)
        case "masked ids":
            return (ids, valid.astype(np.int32)), ("input_ids", "attention_mask")
        case "pairs":
            return (ids, valid.astype(np.int32), target), ("input_ids", "attention_mask", "decoder_input_ids")
        case "pixels":
            return (noise((BATCH, 3, 24, 24)).astype(np.float32),), ("pixel_values",)
        case "waves":
            return (noise((BATCH, 260)).astype(np.float32),), ("input_values",)
        case "speech":
            return (noise((BATCH, 6, 28)).astype(np.float32), target), ("input_features", "decoder_input_ids")
        case "ids and pixels":
            return (ids, noise((BATCH, 3, 24, 24)).astype(np.float32)), ("input_ids", "pixel_values")


def _call_torch(kind: Kind, names: tuple[str, ...], model: Any, *tensors: Any) -> Any:
    given = (tensor if tensor.is_floating_point() else tensor.long() for tensor in tensors)
    return model(**dict(zip(names, given, strict=True)), return_dict=True)[kind.gives]


def _call_jax(kind: Kind, names: tuple[str, ...], jax_model: Any, params: Any, *arrays: Any) -> Any:
    return jax_model(**dict(zip(names, arrays, strict=True)), params=params, return_dict=True)[kind.gives]


if __name__ == "__main__":
    run(main)
