"""Comparison of a PyTorch model with its JAX port, and attribution of the differences to modules."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from jaxformer.convert.rules import Family
from jaxformer.parity.attribute.checks import CHECK_NAMES, chosen_checks, needs_of, run_checks
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.collect import collected
from jaxformer.parity.decoding import compare_generation
from jaxformer.parity.diagnose.explainers import attempt
from jaxformer.parity.isolate import isolated
from jaxformer.parity.large import sparing
from jaxformer.parity.loss_cause import loss_cause
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.probe import never_passed
from jaxformer.parity.recorded import Keep, compare_recorded
from jaxformer.parity.recording import record_torch, selected
from jaxformer.parity.reduce.choose import ReduceTo, requested
from jaxformer.parity.report.report import Report
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.parity.runs.session import SECONDS
from jaxformer.parity.trace.outputs import Call, Outputs, shapes_in_jax
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import Reference, Tier, apply
from jaxformer.parity.trace.selection import Selection
from jaxformer.parity.trace.torch_hooks import one_if_small, torch_state
from jaxformer.parity.training.compare import compare_training
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.parity.validate import (
    Mode,
    check_inference,
    check_later,
    checked_jax,
    checked_seconds,
    checked_torch,
    is_jax,
)
from jaxformer.validation.fields import check_choice


@sparing
def compare(
    torch_model: Any,
    jax_model: Any,
    inputs: tuple[np.ndarray, ...],
    *,
    rules: Family | str | None = None,
    call_torch: Call = apply,
    call_jax: Call = apply,
    checks: tuple[str, ...] = CHECK_NAMES,
    tier: Tier = "B",
    mode: Mode = "eval",
    training: TrainingSpec | None = None,
    generate: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
    search_seconds: float = SECONDS,
    names: str = "*",
    every: int = 1,
    keep: Keep = "tensors",
    reduce_to: ReduceTo = None,
    isolate: bool = False,
) -> Report:
    """Compare a torch module with a JAX model on the same `inputs`.

    The first model may be a JAX model too, such as the port before a change, or in Linen. It then stands for torch wherever
    this text says torch, and the report calls the sides the reference and the port. Tiers A and B compare them in inference
    mode, without `training` and `generate`.

    The JAX model is a Flax NNX module, a pytree of modules such as Equinox's, or the parameters that `call_jax` gives to a
    Linen module or a plain function (see `tap`). `rules` tell which tensors correspond; tensors without a rule are matched by
    value.

    `call_torch(model, *tensors)` and `call_jax(model, *arrays)` return one array, or several in a dict, a tuple or a dataclass:
    arrays of the same name are compared, else arrays of the same shape, in order. Tier A compares in float64; B also judges the
    output in float32, and C in bfloat16, by torch's own rounding error.

    With `mode="train"` both models run in training mode: the same units are dropped, and running statistics are compared after
    the call. `call_jax` returns them after the output, like Linen's `apply` with `mutable`; an NNX module holds them.

    With `training`, copies of both are trained step beside step: loss, optimizer, schedule and all steps are compared. With
    `generate`, two functions `torch_generate(model)` and `jax_generate(model)` write ids, or yield the logits of each step with
    their caches (see `compare_generation`).

    Different weights of the JAX model are reported, and the rest runs on torch's. Differences raise nothing: `report.exit_code`
    is 0 for equal, 1 for different, 2 if a side could not be run or matched. The search for causes takes at most
    `search_seconds`; 0 leaves it out.

    `names`, a pattern of paths of torch's modules such as "decoder.layers.[0-3].*", and `every`, one in so many layers, select
    the modules that are compared by themselves. With `keep="statistics"` a few numbers stand for each of torch's arrays, JAX
    runs on its own weights, and the report names the first module that differs. A model that would not fit into memory
    otherwise is compared without gradients, one weight at a time in float64.

    With `reduce_to="failing.py"`, the first module whose own output differs becomes a test that runs without torch, and fails
    until the source is mended: `failing.py`, and `failing.safetensors` with torch's weights, inputs and output of that call.
    `reduce_to=("failing.py", make)` adds the function that makes the JAX model, or a tuple: the model and a function that calls
    it. It is needed where modules do not keep what they were made with.

    With `isolate`, everything runs in a process of its own, on a copy of both models: if the JAX program crashes that process,
    the report says where.
    """
    if isolate:
        calls, judged = {"call_torch": call_torch, "call_jax": call_jax}, {"rules": rules, "checks": checks, "tier": tier}
        later = {"mode": mode, "training": training, "generate": generate, "search_seconds": search_seconds}
        kept = {"names": names, "every": every, "keep": keep, "reduce_to": reduce_to}
        return isolated(compare, torch_model, jax_model, inputs, **calls, **judged, **later, **kept)
    selection = Selection(names, every)
    check_choice("keep", keep, get_args(Keep))
    if is_jax(torch_model) or keep == "statistics":
        check_inference(mode, training, generate)
        judged = {"rules": rules, "checks": checks, "tier": tier, "search_seconds": search_seconds, "reduce_to": reduce_to}
        return compare_recorded(torch_model, jax_model, inputs, (call_torch, call_jax), (selection, keep), **judged)
    opened = open_modules(jax_model)
    arrays, family = checked_torch(torch_model, inputs, call_torch), checked_jax(opened.tree, rules, call_jax)
    check_later(training, generate)
    check_choice("mode", mode, get_args(Mode))
    given, in_training, seconds = opened.given(call_jax), mode == "train", checked_seconds(search_seconds)
    outputs = Outputs(lambda: shapes_in_jax(given, opened.tree, arrays, in_training=in_training))
    reduction = requested(reduce_to, jax_model, call_jax, outputs)
    call_torch, call_jax = outputs.of_torch(call_torch), outputs.of_jax(given, in_training=in_training)
    if training is not None:
        training = replace(training, jax_loss=opened.given(training.jax_loss))
    if generate is not None:
        generate = generate[0], opened.given(generate[1])
    chosen = chosen_checks(checks, tier, in_training=in_training)

    def record_rows(rows: Any = ...) -> Reference:
        some = tuple(array[rows] for array in arrays)
        reference = record_torch(torch_model, some, call_torch, tier=tier, checks=checks, mode=mode)
        return selected(replace(reference, outputs=outputs.names), selection)

    def results() -> Iterator[Result]:
        state, needs = torch_state(torch_model), needs_of(chosen)
        options = {"trains": training is not None, "in_training": in_training, "record_rows": record_rows}
        options |= {"search_seconds": seconds, "reduction": reduction}
        comparison = Comparison(state, opened.tree, family, call_jax, record_rows, needs, tier, **options)
        yield from run_checks(comparison, chosen)
        if training is not None:
            yield from trained(torch_model, comparison.candidate, training, seconds)
        if generate is not None:
            candidate = comparison.candidate
            tables = Tables(candidate.tables)
            yield Result(compare_generation(torch_model, candidate.like, *generate, candidate.family, tables))

    later = [name for name, wanted in (("train", training), ("generate", generate)) if wanted is not None]
    with one_if_small(torch_model, arrays):
        report = collected(results(), tier, [*(check.name for check in chosen), *later])
    return replace(report, not_covered=[*report.not_covered, *outputs.left_out(), *never_passed(torch_model, arrays)])


def trained(torch_model: Any, candidate: Candidate, training: TrainingSpec, seconds: float) -> Iterator[Result]:
    """Yield the results of training both sides; where the first losses differ, with the cause in the losses' code."""
    tables = Tables(candidate.tables)
    found = compare_training(torch_model, candidate.like, training, candidate.family, tables, candidate.alone)
    first, *others = found.stages
    if first.status == "different":
        models = torch_model, candidate.like
        cause = attempt("a loss's code", loss_cause, *models, training, candidate.family, seconds)
        first = replace(first, says="; ".join(filter(None, (first.says, cause))))
    yield Result(first, inconclusive=found.not_covered, more={"steps": found.steps})
    yield from map(Result, others)
