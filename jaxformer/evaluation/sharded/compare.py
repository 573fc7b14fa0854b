"""Compare one train step on a mesh with the same step on one device, in float64: every activation, gradient and update. The
first array that differs is named, with the mesh axis and, if a formula explains it, the mistake.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import NoneType
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from jaxformer.config.mesh import MeshConfig, check_model
from jaxformer.config.models import ModelConfig
from jaxformer.errors import InputError
from jaxformer.evaluation.sharded.causes import STALE, Placed, explain, explained, shard_means
from jaxformer.evaluation.sharded.recorded_step import (
    OPTIMIZER,
    STAGES,
    STEP,
    Arrays,
    Recorded,
    Step,
    batch_of,
    check_rows,
    check_weights,
    decided_by_rounding,
    default_loss,
    excited,
    recorded_step,
    run,
    state_and_loss,
    traces,
    untraced,
    wide_state,
)
from jaxformer.parallel.mesh import on_mesh
from jaxformer.parallel.placement import AXES_OF, Table, put, put_batch, with_own, with_whole
from jaxformer.parity.attribute.comparison import environment
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, TOLERANCES, Error, Kind, error, over, rms
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.report import Report
from jaxformer.pytree import named_leaves, named_weights
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.step import Loss, TrainState
from jaxformer.validation.fields import check_function, check_kind

KINDS: dict[str, Kind] = {"activations": "activation", "loss": "loss", "gradients": "gradient", "updates": "parameter"}
INSIDE = ("activations", "gradients")
"""Stages that a user's own step does not show."""
HIDDEN = "; a factor of all gradients is not seen after clipping"
NO_TRACE = (
    "almost nothing of the gradients reaches the state on one device, so a wrong one would not be seen; "
    "give an optimizer that takes more of them"
)
NO_AXIS = "; on one device it differs too: no axis is at fault, but the step itself, as in how it accumulates parts of a batch"
NOT_TRIED = "; no other mesh could be tried, nor one device: make the step's shard_map inside of it, to be told which axis"
COUNTS = "health."
"""Prefix of leaves of a train state that jaxformer's runs keep beside the step."""
OnMesh = Callable[[], AbstractContextManager[Any]]
"""Context manager that only the step on the mesh runs in."""


@dataclass(frozen=True)
class Case:
    """Step, with its inputs."""

    state: TrainState
    """State of one device, on the host."""
    batch: Any
    key: PRNGKeyArray | None
    loss: Loss
    optimizer: optax.GradientTransformation
    step: Step | None = None
    """User's own step on the mesh: its state and loss are compared, but nothing inside of it."""
    rules: Table = field(default_factory=lambda: AXES_OF)
    """Sharding rules of the state."""

    def on_one_device(self) -> Recorded:
        """Run the step on one device; return numpy arrays."""
        return jax.tree.map(np.asarray, self._run())

    def on(self, mesh: MeshConfig, around: OnMesh = nullcontext) -> tuple[Recorded, Mesh]:
        """Run the step on a mesh; return arrays as the devices hold them, and the mesh."""
        with jax.enable_x64(True), on_mesh(mesh) as devices, around():
            assert devices is not None
            case = replace(self, state=put(self.state, self.rules), batch=put_batch(self.batch))
            return case._run() if self.step is None else case._run_own(self.step), devices

    def _run(self) -> Recorded:
        with jax_float64():
            step = partial(recorded_step, loss=self.loss, optimizer=self.optimizer, rules=self.rules)
            return run(step, self.state, self.batch, self.key)

    def _run_own(self, step: Step) -> Recorded:
        with jax_float64():
            state, value = state_and_loss(step(self.state, self.batch, self.key))
        leaves = {name: leaf for name, leaf in named_leaves(state).items() if not name.startswith(COUNTS)}
        return Recorded({}, {"loss": value}, {}, leaves)


def compare_sharded(
    model: Any,
    mesh: MeshConfig | str,
    batch: Any = None,
    *,
    loss: Loss | None = None,
    optimizer: optax.GradientTransformation | None = None,
    key: PRNGKeyArray | None = None,
    step: Step | None = None,
    rules: Table | None = None,
) -> Report:
    """Compare one step of a model, or of a configuration with excited parameters, on one device and on a mesh.

    `mesh` is `data=2,tensor=2` or a MeshConfig; this process needs as many devices. `loss(model, batch, key)` returns a sum and
    its divisor; the default is the recipes' loss, on a batch of random ids of unequal lengths, with dropout. `rules` shard
    parameters whose names are not jaxformer's, as {"fc1.kernel": "D F"}; moments that no rule fits stay whole. `step(state,
    batch, key) -> (state, loss)` is your own step for the surrounding mesh; the default is jaxformer's. A difference raises
    nothing: `report.exit_code` is 0 for equal, 1 for different. ConfigError or InputError if something does not fit the mesh.
    """
    mesh = mesh if isinstance(mesh, MeshConfig) else MeshConfig.read(mesh)
    for name, f, wanted in (("loss", loss, "loss(model, batch, key) -> (sum, count)"), ("step", step, STEP)):
        if f is not None:
            check_function(name, f, wanted)
    check_kind("optimizer", optimizer, (optax.GradientTransformation, optax.MultiSteps, NoneType), "one of optax's")
    check_kind("key", key, (jax.Array, NoneType), "jax.random.key(0)")
    config = model if isinstance(model, ModelConfig) else getattr(model, "config", None)
    if isinstance(config, ModelConfig):
        check_model(config, mesh)
    model = excited(model) if isinstance(model, ModelConfig) else model
    check_weights(model)
    loss = default_loss(model) if loss is None else loss
    batch = batch_of(model, mesh) if batch is None else batch
    check_rows(batch, mesh)
    optimizer = make_optimizer(*OPTIMIZER) if optimizer is None else optimizer
    state, key = wide_state(model, optimizer), jax.random.key(0) if key is None else key
    check_precision(loss, model, batch, key)
    case = Case(state, batch, key, loss, optimizer, step, with_whole(with_own(rules), state.moments))
    return judge(case, mesh, case.on_one_device())


def check_precision(loss: Loss, *given: Any) -> None:
    """Raise InputError if a loss computes in 16 bits: the rounding of partial sums then differs from mesh to mesh."""
    if "f16[" in str(jax.make_jaxpr(loss)(*given)):
        raise InputError("loss computes in bfloat16 or float16, whose rounding differs from mesh to mesh; give it in float32")


def judge(case: Case, mesh: MeshConfig, reference: Recorded, around: OnMesh = nullcontext) -> Report:
    """Report the comparison of a step on a mesh with the recorded step on one device."""
    found, devices = case.on(mesh, around)
    stages: list[Stage] = []
    alone: list[str] = []
    noisy = decided_by_rounding(case.state, case.optimizer, reference)
    found, reference = without(found, noisy), without(reference, noisy)
    for name in STAGES:
        ours, theirs = getattr(found, name), getattr(reference, name)
        if lacks := nothing_to_see(name, theirs, case.state):
            stages.append(Stage(name, "failed", lacks))
            break
        if not ours and name in INSIDE:
            stages.append(Stage(name, "n/a", f"your own step shows nothing of it{HIDDEN if name == 'gradients' else ''}"))
            continue
        wrong = first_difference(name, ours, theirs, devices)
        if wrong is None:
            said = f"{len(ours)} of {len(ours)}; {worst(name, ours, theirs)}"
            stages.append(equal_updates(case, reference, noisy, said) if name == "updates" else Stage(name, "equal", said))
            continue
        place, how_far, placed = wrong
        fit, cause = explain(placed, np.asarray(theirs[place])) if placed else ([], "")
        if not fit and name == "loss":
            fit, cause = unequal_mean(case, mesh, around)
        is_own = placed and case.step is not None and cause != STALE
        lone = different_alone(case, "data", 1, reference, around) if is_own else False
        if lone or (lone is None and not cause):
            why = NO_AXIS if lone else NOT_TRIED
            stages.append(Stage(name, "different", f"first {place.lstrip('0123456789 ')}: {how_far}{why}"))
            continue
        if placed and len(fit) != 1 and cause != STALE:
            alone = alone or list(axes_at_fault(case, mesh, reference, around))
            fit = [axis for axis in fit if axis in alone] or fit or alone
        axis = (" or " if cause and cause != STALE else ", ").join(fit)
        said = f"; axis {axis}{f': {cause}' if cause else ''}" if fit else ""
        stages.append(Stage(name, "different", f"first {place.lstrip('0123456789 ')}: {how_far}{said}"))
    facts = environment() | {"mesh": str(mesh), "devices": str(mesh.devices)}
    return Report(tier="A", tolerance=TOLERANCES["activation"][0], stages=stages, environment=facts)


def nothing_to_see(stage: str, theirs: Arrays, before: TrainState) -> str:
    """Return why the step on one device would not show a mistake, so that equal arrays say nothing; '' if it would."""
    if stage in ("loss", "gradients"):
        for name, array in theirs.items():
            if not np.isfinite(array).all():
                what = "the loss is" if stage == "loss" else f"the gradient of {name} is"
                return f"{what} not finite on one device: NaN, infinite, or divided by a count of 0; give another loss or batch"
        if stage == "gradients" and not any(map(np.any, theirs.values())):
            return "all of them are 0 on one device; give a loss that depends on the parameters"
    if stage == "updates" and all(np.array_equal(leaf, theirs[name]) for name, leaf in named_weights(before).items()):
        return "the step on one device changes no weight and no moment; give an optimizer whose rate is not 0"
    return ""


def equal_updates(case: Case, reference: Recorded, noisy: Collection[str], said: str) -> Stage:
    """Return the stage of equal updates, with what it does not show; failed if it shows nothing."""
    seen = traces(case.state, case.optimizer, reference)
    if not seen:
        return Stage("updates", "failed", NO_TRACE)
    if noisy:
        said += f"; not compared: {', '.join(noisy)}, for rounding alone decides"
    if hidden := untraced(seen, reference):
        said += f"; almost nothing of their gradients reaches {', '.join(hidden)}"
    return Stage("updates", "equal", said)


def first_difference(stage: str, ours: Arrays, theirs: Arrays, mesh: Mesh) -> tuple[str, str, Placed | None] | None:
    """Return the first array that differs, has differing copies or is missing on one side: name, description, array."""
    null = null_gradients(stage, theirs)
    for name in theirs:
        if name not in ours and not name.startswith(COUNTS):
            return name, "the mesh does not give it", None
    for name, array in ours.items():
        if name not in theirs:
            return name, "one device does not give it", None
        placed = Placed(array, mesh)
        found = error_of(stage, placed.whole, theirs[name], null)
        if over(found, KINDS[stage]):
            return name, say(stage, found), placed
        if axes := placed.differing():
            return name, f"copies of it differ along {', '.join(axes)}", placed
    return None


def error_of(stage: str, ours: np.ndarray, theirs: np.ndarray, null: float) -> Error:
    """Error between two arrays of a stage; for unequal integers it is infinite."""
    return error(ours, theirs, noise=null)


def say(stage: str, found: Error) -> str:
    """Format the error and the tolerance of a stage."""
    relative, peak = TOLERANCES[KINDS[stage]]
    if relative == np.inf:
        return f"max/rms {found.peak:.1e}, tolerance {peak:.0e}"
    return f"relL2 {found.relative:.1e}, tolerance {relative:.0e}"


def worst(stage: str, ours: Arrays, theirs: Arrays) -> str:
    """Format the largest error of an equal stage."""
    null = null_gradients(stage, theirs)
    errors = [error_of(stage, np.asarray(ours[name]), theirs[name], null) for name in ours]
    return "at most " + say(stage, max(errors, key=lambda each: each.off(KINDS[stage])))


def without(recorded: Recorded, leaves: Collection[str]) -> Recorded:
    """Return a recorded step whose updated state lacks these leaves."""
    return recorded._replace(updates={name: leaf for name, leaf in recorded.updates.items() if name not in leaves})


def null_gradients(stage: str, theirs: Arrays) -> float:
    """Size up to which a gradient is rounding noise around zero."""
    return NULL_GRADIENT * rms(theirs.values()) if stage == "gradients" else 0.0


def unequal_mean(case: Case, mesh: MeshConfig, around: OnMesh) -> tuple[list[str], str]:
    """Return axes and cause if the loss, without dropout, is a mean of the shards' means; [] and '' if not."""
    quiet = replace(case, key=None)
    found = np.asarray(quiet.on(mesh, around)[0].loss["loss"])
    with jax_float64():
        for axes, parts in ((["data"], mesh.data), (["fsdp"], mesh.fsdp), (["data, fsdp"], mesh.rows)):
            if parts > 1 and explained(found, np.asarray(shard_means(case.loss, case.state.model, case.batch, parts))):
                return axes, "a mean of the shards' means, whose counts differ"
    return [], ""


def axes_at_fault(case: Case, mesh: MeshConfig, reference: Recorded, around: OnMesh) -> Iterator[str]:
    """Yield the axes that differ from one device on a mesh of their own; if none does, all axes that shard something."""
    axes = [axis for axis, size in mesh.sizes.items() if size > 1]
    alone = [axis for axis in axes if len(axes) == 1 or different_alone(case, axis, mesh.sizes[axis], reference, around)]
    yield from alone or axes


def different_alone(case: Case, axis: str, size: int, reference: Recorded, around: OnMesh) -> bool | None:
    """True if a mesh of one axis differs in what is compared; None if the user's own step runs only on its own mesh."""
    try:
        found, devices = case.on(MeshConfig(**{axis: size}), around)
    except Exception:
        if case.step is None:
            raise
        return None
    found = without(found, found.updates.keys() - reference.updates.keys())
    pairs = ((name, getattr(found, name), getattr(reference, name)) for name in STAGES)
    return any(first_difference(name, ours, theirs, devices) for name, ours, theirs in pairs if ours or name not in INSIDE)
