"""Compare a PyTorch model with its port to Flax, and say where they part."""

import copy
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_choice
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family, to_jax, to_torch
from jaxformer.errors import ConversionError, InputError, JaxformerError, ParityError
from jaxformer.parity.causes import Evidence, explain
from jaxformer.parity.checks import Reference, Subject, apply, check_output32, jax_gradients, run_torch, same_bits
from jaxformer.parity.inputs import widen
from jaxformer.parity.measure import LINES, check_gradients, difference, host
from jaxformer.parity.pairing import below, layer_arrays, pair_calls, pair_modules, parameter_pairs
from jaxformer.parity.report import Module, Report, Stage
from jaxformer.parity.trace import Gap, Record, Trace, local_gaps, trace_jax, trace_torch
from jaxformer.parity.watch import Site

STAGES = ("weights", "forward", "local", "gradients", "float32")
"""In the order in which they run."""


def compare(
    torch_model: Any,
    jax_model: Any,
    inputs: tuple[np.ndarray, ...],
    *,
    rules: Family = TWIN,
    call_torch: Callable[..., Any] = apply,
    call_jax: Callable[..., Any] = apply,
    checks: tuple[str, ...] = STAGES,
) -> Report:
    """A torch module against a Flax NNX module on the same `inputs`, in float64 (tier A) and float32 (tier B).

    `rules` say which tensors are the same; `call_torch(model, *tensors)` and `call_jax(model, *arrays)` give one array each.
    Where the JAX model's weights differ, that is reported, and the rest runs on torch's. Nothing is raised for a difference:
    `report.exit_code` is 0 for equal, 1 for different, 2 where a side could not be run or matched.
    """
    if not checks:
        raise InputError(f"checks is empty; give some of {', '.join(STAGES)}")
    for name in checks:
        check_choice("checks", name, STAGES)
    report = Report(tier="A", line=LINES["activation"][0], environment=environment())
    model = copy.deepcopy(torch_model).eval()
    try:
        weights = {name: host(tensor).copy() for name, tensor in model.named_parameters()}
        loaded = to_jax(weights, jax_model, rules)
    except ConversionError as error:
        return _with(report, Stage("weights", "failed", str(error)))
    if "weights" in checks:
        report = _with(report, weights_stage(weights, jax_model, rules))
    try:
        report = modules_stages(report, model, loaded, inputs, rules, call_torch, call_jax, checks)
        if {"gradients", "float32"} & set(checks):
            reference = run_torch(model, inputs, call_torch)
            reference = replace(reference, weights={name: reference.weights[name] for name in weights})
            report = whole_stages(report, reference, Subject(jax_model, call_jax, rules), checks)
    except Exception as error:
        says = f"{type(error).__name__}: {error}" if not isinstance(error, JaxformerError) else str(error)
        return _with(report, Stage(_next(report, checks), "failed", says.splitlines()[0]))
    return report


def weights_stage(weights: Mapping[str, np.ndarray], jax_model: Any, rules: Family) -> Stage:
    """Whether the JAX model holds torch's weights, bit for bit."""
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(jax_model)):
        return Stage("weights", "equal", f"{len(weights)} tensors, each used once; the JAX model had none of its own")
    held = to_torch(jax_model, rules)
    changed = [name for name, array in weights.items() if not same_bits(held[name], array)]
    if changed:
        first = changed[0]
        says = f"{len(changed)} of {len(weights)} tensors differ, first {first}"
        return Stage(
            "weights", "different", f"{says} ({difference(first, held[first], weights[first])}); torch's are used below"
        )
    return Stage("weights", "equal", f"{len(weights)} of {len(weights)} tensors used once, bitwise equal")


def modules_stages(
    report: Report,
    torch_model: Any,
    jax_model: Any,
    inputs: tuple[np.ndarray, ...],
    rules: Family,
    call_torch: Callable[..., Any],
    call_jax: Callable[..., Any],
    checks: tuple[str, ...],
) -> Report:
    """Every module in float64: along the normal run, and alone on torch's inputs."""
    import torch

    wide = [array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array for array in inputs]
    theirs = trace_torch(copy.deepcopy(torch_model).double(), call_torch, tuple(map(torch.from_numpy, wide)))
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        model, arrays = widen(jax_model), tuple(map(jnp.asarray, wide))
        ours = trace_jax(model, call_jax, arrays)
        paths = pair_modules({site.path for site in ours}, {site.path for site in theirs}, parameter_pairs(jax_model, rules))
        pairs = pair_calls(ours, theirs, paths)
        gaps = local_gaps(model, call_jax, arrays, theirs, pairs)
    loaded = layer_arrays(jax_model, rules)
    worst: dict[Site, tuple[float, Gap]] = {}
    for gap in gaps:
        found = _relative(gap.ours, gap.theirs)
        if gap.owner not in worst or found > worst[gap.owner][0]:
            worst[gap.owner] = found, gap
    order = {site: i for i, site in enumerate(theirs)}
    modules = []
    for site in sorted(pairs, key=lambda site: order[pairs[site]]):
        local, gap = worst.get(site, (0.0, None))
        guilty = local > report.line
        cause = explain(evidence(gap, theirs, pairs, loaded), gap.ours, gap.theirs) if guilty and gap else ""
        propagated = _apart(ours[site], theirs[pairs[site]])
        name = str(site) if site.path or site.call else ""
        modules.append(Module(name, str(pairs[site]), propagated, local, gap.what if gap else "", guilty, cause))
    report = replace(
        report,
        modules=modules,
        jax_only=[str(site) for site in ours if site not in pairs],
        torch_only=[str(site) for site in theirs if site not in set(pairs.values())],
    )
    if "forward" in checks:
        report = _with(report, forward_stage(report))
    if "local" in checks:
        says = f"{len(report.guilty)} of {len(modules)} modules guilty"
        report = _with(report, Stage("local", "different" if report.guilty else "equal", says))
    return report


def evidence(gap: Gap, theirs: Trace, pairs: Mapping[Site, Site], parameters: Mapping[str, np.ndarray]) -> Evidence:
    """What torch's module had at hand when it made the array in question; whatever passed it on unchanged is left out."""
    owner = pairs[gap.owner]
    until = pairs[gap.child] if gap.child else owner
    calls = list(theirs)[: list(theirs).index(until)]
    inside = [site for site in calls if site.path != owner.path and below(site.path, owner.path)]
    children = [site for site in inside if not any(other != site and below(site.path, other.path) for other in inside)]
    given = theirs[owner].inputs
    floats = [array for array in given if np.issubdtype(array.dtype, np.floating)]
    before = {f"input {i}" if i else "input": array for i, array in enumerate(floats)}
    for site in children:
        for array in theirs[site].output[:1]:
            if not any(np.array_equal(array, known) for known in before.values()):
                before[str(site).removeprefix(f"{owner.path}.")] = array
    before = {name: array for name, array in before.items() if not np.array_equal(array, gap.theirs)}
    masks = tuple(array for array in given if array.dtype == bool)
    return Evidence(before, masks, own_parameters(parameters, gap.owner.path), sibling_parameters(parameters, gap.owner.path))


def own_parameters(parameters: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Those of a module itself, by their last names."""
    prefix = f"{path}." if path else ""
    own = {name.removeprefix(prefix): array for name, array in parameters.items() if name.startswith(prefix)}
    return {name: array for name, array in own.items() if "." not in name}


def sibling_parameters(parameters: Mapping[str, np.ndarray], path: str) -> dict[str, dict[str, np.ndarray]]:
    """Those of the modules that lie beside it, by their names."""
    parent, _, last = path.rpartition(".")
    prefix = f"{parent}." if parent else ""
    names = {name.removeprefix(prefix).split(".")[0] for name in parameters if name.startswith(prefix)} - {last}
    return {name: own_parameters(parameters, prefix + name) for name in sorted(names)}


def forward_stage(report: Report) -> Stage:
    """The output, and where the first difference of the normal run is."""
    off = [module for module in report.modules if not module.propagated <= report.line]
    output = next((module for module in report.modules if not module.jax), None)
    if output is None:
        return Stage("forward", "failed", "the model itself was not called; call_jax and call_torch have to call it")
    if not off:
        return Stage("forward", "equal", f"relL2 {output.propagated:.1e} (line {report.line:.0e})")
    first = off[0]
    says = (
        f"output {output.propagated:.1e}; first at {first.jax or 'the model'} ({first.propagated:.1e}, line {report.line:.0e})"
    )
    return Stage("forward", "different", says)


def whole_stages(report: Report, reference: Reference, subject: Subject, checks: tuple[str, ...]) -> Report:
    """Gradients of every weight and float input in float64, and the output in float32."""
    if "gradients" in checks:
        try:
            nulls = check_gradients(jax_gradients(reference, subject), reference.gradients)
            report = replace(report, unnoticed=nulls)
            report = _with(report, Stage("gradients", "equal", f"{len(reference.gradients)} tensors, {len(nulls)} null"))
        except ParityError as error:
            report = _with(report, Stage("gradients", "different", str(error)))
    if "float32" in checks:
        try:
            ratio = check_output32(reference, subject)
            report = _with(report, Stage("float32", "equal", f"{ratio:.2f} of what torch's own rounding allows"))
        except ParityError as error:
            report = _with(report, Stage("float32", "different", str(error)))
    return report


def environment() -> dict[str, str]:
    """What the comparison ran on."""
    import torch

    precision = jax.config.values["jax_default_matmul_precision"] or "default"
    return {
        "jax": jax.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{jax.devices()[0].platform} {jax.devices()[0].device_kind}",
        "matmul precision": f"jax highest (default here: {precision}), torch {torch.get_float32_matmul_precision()}",
    }


def _with(report: Report, stage: Stage) -> Report:
    return replace(report, stages=[*report.stages, stage])


def _next(report: Report, checks: tuple[str, ...]) -> str:
    done = {stage.name for stage in report.stages}
    return next((name for name in STAGES if name in checks and name not in done), STAGES[-1])


def _apart(ours: Record, theirs: Record) -> float:
    """The largest difference of two calls' outputs."""
    return max((_relative(j, t) for j, t in zip(ours.output, theirs.output, strict=False)), default=0.0)


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """relL2; infinite where shapes or NaN do not agree."""
    try:
        return difference("", ours, theirs).relative
    except ParityError:
        return float("inf")
