"""Checks of the output in float32 and bfloat16, judged by torch's own rounding error in the same dtype.

R = |jax - float64| / |torch - float64|, in L2: the rounding error of jax's output relative to that of torch's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError, ParityError
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.attribute.rounding import KEPT, module_that_loses
from jaxformer.parity.attribute.values_and_gradients import NOTHING_FINITE
from jaxformer.parity.diagnose.by_arrays.norms import fast_variance
from jaxformer.parity.diagnose.evidence import evidence_of
from jaxformer.parity.diagnose.explainers import attempt
from jaxformer.parity.numerics.float64 import cast
from jaxformer.parity.numerics.metrics import (
    UNIT_ROUNDOFF,
    Noise,
    as_float64,
    check_bfloat16,
    check_float32,
    distance,
    host,
    over,
    rounding_ratio,
)
from jaxformer.parity.numerics.products import jax_product
from jaxformer.parity.report.data import Stage
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.load_weights import Candidate, joined, parted
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import apart, side_by_side
from jaxformer.parity.trace.programs import one_by_one, run_once
from jaxformer.parity.trace.reference import Reference, saying
from jaxformer.runtime.xla_options import NONE, Options

COMPILED = "compiled"
EVERY_ROUNDING = "with every rounding kept"
"""Label of the run with every rounding: XLA keeps float32 between operations that it fuses, while uncompiled code rounds after
each one."""
OWN_PRODUCTS = "with the device's own products"
NO_NOISE: Mapping[str, Noise] = MappingProxyType({})
Outputs = Callable[[Reference, Candidate], dict[str, Any]]
"""Function that returns the JAX model's output, by how the model was run."""


def float32(comparison: Comparison) -> Result:
    """Check the output in float32 (tier B). Products are in float32, whatever the device's default is."""
    reference = comparison.reference
    noise = {_label(reference.outputs[key.number]): each for key, each in reference.rounding.output.items()}
    return _judged("float32", check_float32, in_float32, comparison, noise)


def bfloat16(comparison: Comparison) -> Result:
    """Check the output in bfloat16 (tier C), and float32 with the device's own products if these are less exact than float32.

    A module whose own error is too large makes the result different, even if the whole output is within its tolerance.
    """
    result = _judged("bfloat16", check_bfloat16, in_bfloat16, comparison)
    if any(over(row.propagated, "activation") for row in comparison.rows) or comparison.in_training:
        return result
    model, inputs = in_bfloat16_model(comparison.reference, comparison.candidate)
    says = attempt("modules in bfloat16", module_that_loses, comparison.traced, model, inputs)
    if not says:
        return result
    stage = result.stage
    more = f"; {stage.says}" if stage.status == "different" else ""
    return replace(result, stage=replace(stage, status="different", says=f"{says}{more}"))


def _judged(
    name: str, check: Callable[..., float], outputs: Outputs, comparison: Comparison, noise: Mapping[str, Noise] = NO_NOISE
) -> Result:
    """Result of `check`; `noise` is the perturbation of torch's outputs by rounding, by output name."""
    reference = comparison.reference
    if name not in reference.low_precision:
        how = f"dump it with --tier {comparison.tier}, or check a lower tier"
        raise InputError(f"torch's output in {name} was not dumped; {how}")
    if not np.isfinite(reference.output).any():
        raise InputError(NOTHING_FINITE)
    with saying(f"jax in {name}"):
        found = outputs(reference, comparison.candidate)
    more = ""
    try:
        used = _used(name, check, found, reference, noise)
    except ParityError as error:
        if (alone := _one_by_one(name, check, outputs, comparison, noise)) is None:
            return Result(Stage(name, "different", f"{error}{_why(name, comparison)}"))
        used, found = alone
        more = f"; XLA, not the port: {error}, and by its operations one by one it is not"
    low = reference.low_precision[name]
    ratios = ", ".join(f"{rounding_ratio(output, low, reference.output):.2f} {how}" for how, output in found.items())
    tokens = next_tokens(found[COMPILED], reference, name)
    return Result(Stage(name, "equal", f"{used:.2f} of what torch's own rounding allows; R = {ratios}{tokens}{more}"))


def _used(
    name: str, check: Callable[..., float], found: dict[str, Any], reference: Reference, noise: Mapping[str, Noise]
) -> float:
    """Largest error in units of its tolerance; ParityError above 1."""
    return max(
        check(f"{what} in {name}, {how}", *sides, *([noise[what]] if what in noise else []))
        for how, output in found.items()
        for what, *sides in outputs_of(reference, name, output)
    )


def _one_by_one(
    name: str, check: Callable[..., float], outputs: Outputs, comparison: Comparison, noise: Mapping[str, Noise]
) -> tuple[float, dict[str, Any]] | None:
    """Repeat the check with operations that run one by one; None if that is no better, or if the model differs in float64
    too."""
    if name != "float32" or any(over(row.propagated, "activation") for row in comparison.rows):
        return None
    with one_by_one(), suppress(ParityError):
        found = outputs(comparison.reference, comparison.candidate)
        return _used(name, check, found, comparison.reference, noise), found
    return None


def outputs_of(reference: Reference, name: str, ours: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield the name of each array of an output in this dtype, with jax's array, torch's array and the true one.

    Among several outputs, integers are left out, since a choice between two close values, such as argmax, may change.
    """
    low, truth = reference.low_precision[name], reference.calls[CALL].output
    if host(ours).shape != low.shape:
        yield "output", ours, low, reference.output
        return
    for label, mine, theirs, array in zip(reference.outputs, apart(host(ours), truth), apart(low, truth), truth, strict=True):
        if len(truth) == 1 or array.dtype.kind in "fc":
            yield _label(label), mine, theirs, array


def _label(name: str) -> str:
    """Name of an output, such as 'output logits'."""
    return f"output {name}".strip()


def _why(name: str, comparison: Comparison) -> str:
    """Explain why the error is too large: the output differs in float64 too, integers overflow, or a module loses digits."""
    if any(over(row.propagated, "activation") for row in comparison.rows):
        return "; it is different in float64 too"
    if name != "float32":
        return ""
    return attempt("whole numbers", overflow, comparison.reference) or rounding_place(comparison.traced)


def overflow(reference: Reference) -> str:
    """Name the integers that do not fit in 32 bits; '' if all fit, or torch's model is not available."""
    if reference.source is None:
        return ""
    from jaxformer.parity.diagnose.operators.indices import whole_numbers_beyond  # imports torch

    return whole_numbers_beyond(reference)


def check_output32(reference: Reference, candidate: Candidate) -> float:
    """Check the output in float32 (tier B); returns the ratio of the error to its tolerance."""
    output = in_float32(reference, candidate)[COMPILED]
    return check_float32("output in float32", output, reference.low_precision["float32"], reference.output)


def in_float32(reference: Reference, candidate: Candidate) -> dict[str, Any]:
    """JAX model's output with products in float32."""
    with jax.default_matmul_precision("highest"):
        return {COMPILED: _run(candidate, candidate.model(reference), reference.inputs)}


def in_bfloat16(reference: Reference, candidate: Candidate) -> dict[str, Any]:
    """JAX model's output in bfloat16."""
    low = in_bfloat16_model(reference, candidate)
    found = {COMPILED: _run(candidate, *low), EVERY_ROUNDING: _run(candidate, *low, options=KEPT)}
    if not jax_product().is_float32:
        found[OWN_PRODUCTS] = _run(candidate, candidate.model(reference), reference.inputs)
    return found


def in_bfloat16_model(reference: Reference, candidate: Candidate) -> tuple[Any, tuple[Any, ...]]:
    """The JAX model and its inputs in bfloat16. Its constants stay in float32 if torch's buffers do."""
    kept = candidate.family.constants - {each.name for each in candidate.alone} if reference.keeps_buffers else ()
    weights, rest = parted(candidate.model(reference), kept)
    inputs = tuple(cast([*map(jnp.asarray, reference.inputs)], jnp.bfloat16))
    return joined(cast(weights, jnp.bfloat16), rest), inputs


def _run(candidate: Candidate, model: Any, inputs: Any, options: Options = NONE) -> Any:
    return side_by_side(run_once(candidate.call, model, *map(jnp.asarray, inputs), options=options)[0])


def next_tokens(output: Any, reference: Reference, name: str) -> str:
    """Message about the divergence of the next token's distribution, if the output is logits over the ids' vocabulary."""
    rows = [weight.shape[0] for weight in reference.weights.values() if weight.ndim == 2]
    has_ids = any(array.dtype.kind in "iu" for array in reference.inputs)
    for _, *both, truth in outputs_of(reference, name, output):
        if rows and has_ids and truth.ndim > 1 and truth.shape[-1] == max(rows):
            ours, theirs = (divergence(truth, logits) for logits in both)
            return f"; KL of the next token {ours:.1e}, torch's {theirs:.1e}"
    return ""


def divergence(truth: Any, logits: Any) -> float:
    """Mean Kullback-Leibler divergence, in nats, of the distributions over the last axis; 0 for equal ones."""
    pair = (as_float64(host(array)) for array in (truth, logits))
    log_p, log_q = (array - np.logaddexp.reduce(array, axis=-1, keepdims=True) for array in pair)
    with np.errstate(invalid="ignore"):
        return float(np.where(log_p > -np.inf, np.exp(log_p) * (log_p - log_q), 0).sum(-1).mean())


APART = 10.0
"""Ratio of a module's own error to the median error of all modules above which the module loses digits."""


def rounding_place(traced: Traced) -> str:
    """Name the module that loses digits, or '' if no module stands out.

    Example: '; digits are lost in norm, which is off by 269 times float32's rounding, half of the modules by at most 1'.
    """
    return attempt("where digits are lost", lambda: _said(traced, _alone(traced))) or ""


def _alone(traced: Traced) -> Iterable[Mismatch]:
    """Arrays that each module makes from torch's arrays, in float32."""
    isolation = replace(traced.isolation, load=lambda: traced.model, inputs=traced.reference.inputs, gradients=False)
    with jax.default_matmul_precision("highest"):
        found = isolation.run(traced.isolated.orders, corrected=False).mismatches
    return (each for each in found if each.torch.dtype.kind == "f" and each.owner not in traced.valid)


def _said(traced: Traced, alone: Iterable[Mismatch]) -> str:
    off: dict[str, tuple[float, Mismatch]] = {}
    for each in alone:
        roundings, owner = distance(each.jax, each.torch) / UNIT_ROUNDOFF, str(each.owner)
        if np.isfinite(roundings) and roundings >= off.get(owner, (0.0, each))[0]:
            off[owner] = roundings, each
    if not off:
        return ""
    half = float(np.median([roundings for roundings, _ in off.values()]))
    losing = {owner: pair for owner, pair in off.items() if pair[0] > APART * max(half, 1.0)}
    if not losing:
        return ""
    owner, (roundings, worst) = max(losing.items(), key=lambda item: item[1][0])
    more = f", as in {len(losing) - 1} more" if len(losing) > 1 else ""
    cause = fast_variance(evidence_of(traced, worst), worst.jax, worst.torch, UNIT_ROUNDOFF)
    said = f"digits are lost in {owner}{more}: it is off by {roundings:,.0f} times float32's rounding, half of the modules by"
    return f"; {said} at most {half:,.1f}" + f"; {cause}" * bool(cause)
