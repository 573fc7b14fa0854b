"""Compare a PyTorch model with its port to JAX, and say where they part."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any, get_args

import jax
import numpy as np

from jaxformer.convert.layouts import same_numbers
from jaxformer.convert.rules import LISTED, Family, Part, Place, places, tensors_to_torch, to_jax
from jaxformer.errors import InputError, JaxformerError, ParityError
from jaxformer.parity.capture.attention_calls import is_attention
from jaxformer.parity.capture.call_sites import ATTENTION
from jaxformer.parity.capture.module_paths import last
from jaxformer.parity.capture.source_lines import line_of, whole
from jaxformer.parity.generation import compare_generation
from jaxformer.parity.judge.blame import resolved
from jaxformer.parity.judge.divided_work import with_open_borders
from jaxformer.parity.judge.low_precision import check_output16, check_output32
from jaxformer.parity.judge.module_table import table
from jaxformer.parity.judge.stages import (
    NOTHING_FINITE,
    activation_gradients_stage,
    forward_stage,
    gradients_stage,
    local_stage,
)
from jaxformer.parity.judge.trained_alone import blamed, trained_alone
from jaxformer.parity.match.one_sided import Side, told
from jaxformer.parity.match.tensors import NO_RULES, identify, identify_shapes
from jaxformer.parity.numerics.float32_tables import Tables, is_rounded, most_off, say_rounded
from jaxformer.parity.numerics.metrics import TOLERANCES, difference, same_bits
from jaxformer.parity.record.coverage import sensitivity
from jaxformer.parity.record.reference import Call, Reference, Tier, apply, run_torch, saying
from jaxformer.parity.record.rounding_error import measure_rounding
from jaxformer.parity.record.torch_state import TorchState, torch_state, without_ignored
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.report import Report
from jaxformer.parity.report.summarize import say_names
from jaxformer.parity.run.candidate import Candidate
from jaxformer.parity.run.trace import Traced, trace
from jaxformer.parity.run.unread_parameters import with_idle
from jaxformer.parity.run.unusual_orders import resolve
from jaxformer.parity.training.compare import compare_training
from jaxformer.parity.training.spec import TrainingSpec
from jaxformer.parity.validate import abstract, checked_jax, checked_sides, evaluating, filled
from jaxformer.pytree import named_weights
from jaxformer.validation.fields import check_choice

CHECKS = ("weights", "forward", "local", "gradients", "activation gradients", "sensitivity")
"""In float64, in the order in which they run."""
LOW_PRECISION = {"A": {}, "B": {"float32": check_output32}, "C": {"float32": check_output32, "bfloat16": check_output16}}
"""What else each tier judges."""

Found = Iterator[tuple[Stage, dict[str, Any]]]
"""Stage after stage, each with what it adds to the report."""


def compare(
    torch_model: Any,
    jax_model: Any,
    inputs: tuple[np.ndarray, ...],
    *,
    rules: Family | str | None = None,
    call_torch: Call = apply,
    call_jax: Call = apply,
    checks: tuple[str, ...] = CHECKS,
    tier: Tier = "B",
    training: TrainingSpec | None = None,
    generate: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
) -> Report:
    """A torch module against a JAX model on the same `inputs`.

    The JAX model is a Flax NNX module, or the parameters that `call_jax` gives to a Linen module or a plain function (see
    `tap`). `rules` say which tensors are the same; where none fits, those that hold the same values are (see `match`).
    `call_torch(model, *tensors)` and `call_jax(model, *arrays)` give one array each. Tier A decides in float64; B also judges
    the output in float32, and C in bfloat16, by torch's own rounding error.
    With `training`, copies of both are trained step beside step: loss, optimizer, schedule and all steps are compared. With
    `generate`, two functions `torch_generate(model)` and `jax_generate(model)` write ids (see `compare_generation`).
    Where the JAX model's weights differ, that is reported, and the rest runs on torch's. Nothing is raised for a difference:
    `report.exit_code` is 0 for equal, 1 for different, 2 where a side could not be run or matched.
    """

    family, arrays = checked_sides(torch_model, jax_model, inputs, rules, call_jax)

    def stages() -> Found:
        reference = cache(lambda: record_torch(torch_model, arrays, call_torch, tier=tier, checks=checks))
        loaded = yield from weights_stage(torch_state(torch_model), jax_model, family, call_jax, checks, tier, reference)
        not_covered: list[str] = []
        for stage, more in judge(reference(), loaded, checks, tier, later=training is not None):
            not_covered = more.get("not_covered", not_covered)
            yield stage, more
        if training is not None:
            course = compare_training(torch_model, loaded.like, training, loaded.family, Tables(loaded.tables), loaded.alone)
            more = {"steps": course.steps, "not_covered": [*not_covered, *course.not_covered]}
            yield from ((stage, more) for stage in course.stages)
        if generate is not None:
            yield compare_generation(torch_model, loaded.like, *generate, loaded.family), {}

    later = [name for name, wanted in (("train", training), ("generate", generate)) if wanted is not None]
    return _collected(stages(), checks, tier, later)


def record_torch(
    torch_model: Any, inputs: tuple[np.ndarray, ...], call: Call = apply, *, tier: Tier = "B", checks: tuple[str, ...] = CHECKS
) -> Reference:
    """All that the checks want to know of torch: the half of `compare` that needs it. ParityError where it cannot say."""
    with evaluating(torch_model):
        backward = any("gradients" in name for name in checks)
        reference = run_torch(torch_model, inputs, call, tier=tier, watch=True, gradients=backward)
        reference = replace(reference, rounding=measure_rounding(torch_model, reference, call))
        not_covered = tuple(sensitivity(torch_model, inputs, call)) if "sensitivity" in checks else None
    return replace(reference, not_covered=not_covered)


def check(
    reference: Reference,
    jax_model: Any,
    *,
    rules: Family | str | None = None,
    call_jax: Call = apply,
    checks: tuple[str, ...] = CHECKS,
    tier: Tier = "B",
) -> Report:
    """The same against what torch said before (see `dump`): torch is not needed."""

    family = checked_jax(jax_model, rules, call_jax)

    def stages() -> Found:
        held = TorchState(reference.weights, reference.buffers, reference.tied, reference.frozen)
        loaded = yield from weights_stage(held, jax_model, family, call_jax, checks, tier, lambda: reference)
        yield from judge(reference, loaded, checks, tier)

    return _collected(stages(), checks, tier)


def _collected(stages: Found, checks: tuple[str, ...], tier: Tier, later: Sequence[str] = ()) -> Report:
    """The report; the first stage that cannot be done is the last, under the name of what was next."""
    if not checks or isinstance(checks, str):
        raise InputError(f"checks is {repr(checks) if checks else 'empty'}; give a tuple of some of {', '.join(CHECKS)}")
    if set(checks) == {"sensitivity"} and tier == "A":
        raise InputError("checks = ('sensitivity',) compares nothing in tier A; add others, or leave checks out")
    for name in checks:
        check_choice("checks", name, CHECKS)
    check_choice("tier", tier, get_args(Tier))
    report = Report(tier=tier, tolerance=TOLERANCES["activation"][0], environment=environment())
    try:
        for stage, more in stages:
            report = replace(report, stages=[*report.stages, stage], **more)
    except Exception as error:
        done = {stage.name for stage in report.stages}
        planned = [*(name for name in CHECKS if name in checks), *LOW_PRECISION[tier], *later]
        name = next((name for name in planned if name not in done), planned[-1])
        says = str(error) if isinstance(error, JaxformerError) else f"{type(error).__name__}: {error}"
        at = f" (at {place})" if (place := line_of(error)) else ""
        failed = Stage(name, "failed", says.strip().split("\n")[0] + at)
        report = replace(report, stages=[*report.stages, failed], traceback=whole(error))
    return report


def weights_stage(
    held: TorchState,
    jax_model: Any,
    rules: Family | None,
    call: Call,
    checks: tuple[str, ...],
    tier: Tier,
    reference: Callable[[], Reference],
) -> Generator[tuple[Stage, dict[str, Any]], None, Candidate]:
    """Whether the JAX model holds torch's weights, bit for bit; returns it with torch's."""
    jax_model, rules = filled(jax_model), rules or NO_RULES
    held = without_ignored(held, rules)
    found = (identify_shapes if abstract(jax_model) else identify)(held, jax_model, rules)
    if not abstract(jax_model):
        found = resolve(found, rules, reference, call)
    found = with_idle(found, reference, call)
    loaded = to_jax(held.weights, found.model, found.family)
    alone = tier == "A" and set(checks) <= {"weights", "sensitivity"}
    stage = judged_weights(held, Candidate(jax_model, call, found.family), alone=alone)
    if stage.status != "failed":
        every: dict[Side, list[str]] = {"torch": list(held.weights), "jax": list(named_weights(jax_model))}
        stage = replace(stage, says="; ".join([stage.says, *told(found.alone, every), *found.notes]))
    if (found.wrong or not all(each.is_neutral for each in found.alone)) and stage.status == "equal":
        stage = replace(stage, status="different")
    if "weights" in checks:
        yield stage, {}
    return Candidate(loaded, call, found.family, found.tables, found.alone)


def judged_weights(held: TorchState, candidate: Candidate, *, alone: bool) -> Stage:
    """Bit for bit; `alone` if nothing else will be judged."""
    if abstract(candidate.like) and alone:
        return Stage("weights", "failed", "the JAX model has shapes alone; give one with weights, or check more than weights")
    weights = held.weights
    used = sum(candidate.family.why_ignored(name) is None for name in weights)
    if abstract(candidate.like):
        return Stage("weights", "equal", f"{used} tensors, each used once; the JAX model had none of its own")
    ours = tensors_to_torch(candidate.like, candidate.family)
    theirs = {name: weights[candidate.family.tied.get(name, name)] for name in ours}
    changed = [name for name, array in theirs.items() if not same_bits(ours[name], array)]
    still = {name for name in changed if name in held.frozen and is_rounded(ours[name], theirs[name])}
    changed = [name for name in changed if name not in still]
    if changed:
        own = places(candidate.like, candidate.family)
        said = ", ".join(how_off(name, own[name], ours[name], theirs) for name in changed[:LISTED])
        return Stage(
            "weights", "different", f"{len(changed)} of {len(ours)} tensors differ, first {said}; torch's are used below"
        )
    rounded = [f"frozen {name} {say_rounded(most_off(ours[name], theirs[name]))}; torch's is used below" for name in still]
    return Stage("weights", "equal", "; ".join((f"{used} of {len(weights)} tensors used once, bitwise equal", *rounded)))


def how_off(name: str, parts: Mapping[Part, Place], ours: np.ndarray, weights: Mapping[str, np.ndarray]) -> str:
    """A torch tensor, which JAX tensors are not what it is, by how much, and what the first of them is instead, where that is
    something of torch's."""
    cut = {part: [part.cut(side) for side in (ours, weights[name])] for part in sorted(parts)}
    wrong = [part for part, both in cut.items() if not same_bits(*both)]
    held = dict.fromkeys(parts[part].name for part in wrong)
    called = name if name in held else f"{name}, in JAX {' and '.join(held)}"
    mine, theirs = cut[wrong[0]]
    try:
        says = f"relL2 {difference(name, mine, theirs).relative:.1e}"
    except ParityError as error:
        return f"{called} ({str(error).removeprefix(f'{name}: ')})"
    if mine.ndim == 2 and same_bits(np.ascontiguousarray(mine), np.ascontiguousarray(theirs.T)):
        return f"{called} ({says}: JAX holds it transposed)"
    same = (other for other, array in weights.items() if array.size == mine.size and same_numbers(array, mine))
    if not (mine == mine.flat[0]).all() and (other := next(same, None)):
        what = "it with its axes in another order" if other == name else f"what torch has in {other}"
        return f"{called} ({says}: JAX holds {what})"
    return f"{called} ({says})"


def judge(reference: Reference, candidate: Candidate, checks: tuple[str, ...], tier: Tier, *, later: bool = False) -> Found:
    """Everything that needs the JAX model to run; it holds torch's weights. `later`: training says what is trained.

    The call is another function each time: JAX keeps the trace of one that it knows, whatever was redefined since.
    """
    call = candidate.call
    candidate = replace(candidate, call=wraps(call)(lambda *given: call(*given)))
    nulls: list[str] = []
    inconclusive: list[str] = []
    backward = [name for name in checks if "gradients" in name]
    if {"forward", "local", *backward} & set(checks):
        wanted = {"local": "local" in checks, "gradients": bool(backward)}
        traced = with_open_borders(trace(reference, candidate, **wanted))
        rows = resolved(traced, table(traced))
        alone = {} if later else trained_alone(reference, traced, candidate)
        more = {
            "modules": blamed(rows, candidate, alone),
            **unpaired(traced),
            "taps": lone_taps(traced),
            "environment": environment() | dict(reference.environment),
        }
        if "forward" in checks:
            stage, found = forward_stage(traced, rows)
            yield stage, more | {"not_covered": (inconclusive := found)}
        if "local" in checks:
            stage, found = local_stage(traced, rows)
            yield stage, more | {"not_covered": (inconclusive := [*inconclusive, *found])}
        if "gradients" in checks:
            stage, nulls, found = gradients_stage(traced, rows, list(alone.values()))
            yield stage, {"not_covered": [*nulls, *(inconclusive := [*inconclusive, *found])]}
        if "activation gradients" in checks:
            stage, found = activation_gradients_stage(traced, rows)
            inconclusive = [*inconclusive, *found]
            yield stage, more | {"not_covered": [*nulls, *inconclusive]}
    if "sensitivity" in checks and reference.not_covered is not None:
        says = (
            f"{len(reference.not_covered)} without influence, so not judged"
            if reference.not_covered
            else "everything has influence"
        )
        yield Stage("sensitivity", "equal", says), {"not_covered": [*reference.not_covered, *inconclusive]}
    for name, judged in LOW_PRECISION[tier].items():
        if name not in reference.low_precision:
            raise InputError(f"torch's output in {name} was not dumped; dump it with --tier {tier}, or check a lower tier")
        if not np.isfinite(reference.output).any():
            raise InputError(NOTHING_FINITE)
        try:
            with saying(f"jax in {name}"):
                ratio = judged(reference, candidate)
            yield Stage(name, "equal", f"{ratio:.2f} of what torch's own rounding allows"), {}
        except ParityError as error:
            if error.__cause__ is not None:
                raise  # it could not be run
            yield Stage(name, "different", str(error)), {}


def unpaired(traced: Traced) -> dict[str, list[str]]:
    """Calls that only one side has."""
    known = set(traced.pairs.values())
    return {
        "jax_only": [str(site) for site in traced.ours.outputs if site not in traced.pairs],
        "torch_only": [
            str(site) for site, record in traced.reference.calls.items() if site not in known and not is_attention(site, record)
        ],
    }


def lone_taps(traced: Traced) -> list[str]:
    """Taps without a pair, in words; where some are attention's, torch's softmaxes without one too."""
    known, taps = set(traced.pairs.values()), [site for site in traced.ours.taps if site not in traced.pairs]
    said = say_names([str(site) for site in taps], [str(site) for site in traced.ours.taps])
    if any(last(site.path) in ATTENTION for site in taps):
        shown = [str(site) for site, record in traced.reference.calls.items() if is_attention(site, record)]
        free = [str(site) for site in traced.reference.calls if str(site) in shown and site not in known]
        said.append(f"where torch has {', '.join(say_names(free, shown)) or 'no softmax'}")
    return said


def environment() -> dict[str, str]:
    """What the JAX side ran on."""
    precision = jax.config.values["jax_default_matmul_precision"] or "default"
    return {
        "jax": jax.__version__,
        "numpy": np.__version__,
        "device": f"{jax.devices()[0].platform} {jax.devices()[0].device_kind}",
        "jax matmul precision": f"highest in float64, {precision} below",
    }
