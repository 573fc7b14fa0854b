"""Data that the checks judge: torch's recorded reference and the JAX model, each run once for all checks."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, wraps
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, to_jax
from jaxformer.parity.attribute.blame import resolved, with_trained_padding
from jaxformer.parity.attribute.divided_work import with_open_borders, with_scale_behind_a_tap
from jaxformer.parity.attribute.module_table import table
from jaxformer.parity.attribute.notes import unpaired_calls, unpaired_taps, with_draws, without_later, without_padding
from jaxformer.parity.attribute.permuted_rows import with_permuted_rows
from jaxformer.parity.attribute.trained_alone import blamed, trained_alone
from jaxformer.parity.numerics.products import jax_product
from jaxformer.parity.pairing.tensors import NO_RULES, Identified, identify, identify_shapes
from jaxformer.parity.reduce.choose import reduced
from jaxformer.parity.reduce.files import Reduction
from jaxformer.parity.report.data import Module, Reduced, Stage
from jaxformer.parity.runs.load_weights import Candidate, filled, has_shapes_alone, with_idle
from jaxformer.parity.runs.own_gradients import own_gradients
from jaxformer.parity.runs.session import SECONDS, Session
from jaxformer.parity.runs.trace import Traced, trace
from jaxformer.parity.runs.training_mode import JaxInTraining, with_training
from jaxformer.parity.runs.unusual_orders import resolve
from jaxformer.parity.trace.reference import Call, Reference, Tier
from jaxformer.parity.trace.torch_hooks import TorchState, without_ignored
from jaxformer.runtime.xla_options import exact

Need = Literal["forward", "isolated", "gradients", "coverage", "low precision"]
"""Data that a check needs: the JAX model's normal run; its modules on torch's values; both sides' gradients; which parameters
torch's output depends on; the output in float32 or bfloat16."""


@dataclass(frozen=True)
class Result:
    """Result of a check."""

    stage: Stage
    without_effect: list[str] | None = None
    """Parameters that no output or gradient depends on; None if the check does not tell. The last check that tells counts."""
    inconclusive: list[str] = field(default_factory=list)
    """Arrays that the check could not judge for other reasons."""
    more: dict[str, Any] = field(default_factory=dict)
    """Other fields of the report."""


@dataclass(frozen=True)
class Comparison:
    """Both sides of a comparison; every property is computed when the first check asks for it."""

    torch: TorchState
    jax_model: PyTree
    rules: Family | None
    call: Call
    record: Callable[[], Reference]
    """Function that returns the recorded reference."""
    needs: frozenset[Need]
    """Needs of all checks that will run."""
    tier: Tier = "B"
    trains: bool = False
    """True if training is compared too; that comparison then reports parameters that only one side trains."""
    search_seconds: float = SECONDS
    """Time limit in seconds for the search for causes."""
    in_training: bool = False
    """True if both sides run in training mode."""
    reduction: Reduction | None = None
    """Request for a file with the smallest call that differs."""
    record_rows: Callable[[np.ndarray], Reference] | None = None
    """Function that returns the reference on a subset of the inputs' rows, given as a boolean mask; None if torch cannot run
    again."""

    @cached_property
    def reference(self) -> Reference:
        """torch's recorded reference."""
        return self.record()

    @cached_property
    def finite_rows(self) -> np.ndarray:
        """Mask of the rows, along axis 0, in which torch's output is finite."""
        output = self.reference.output
        return np.asarray(np.isfinite(output).reshape(len(output) if output.ndim else 1, -1).all(1))

    @cached_property
    def on_finite_rows(self) -> "Comparison | None":
        """Comparison on the finite rows of the inputs; None if all or no rows are finite, or torch cannot run on them."""
        record, rows = self.record_rows, self.finite_rows
        if record is None or rows.all() or not rows.any() or any(len(array) != len(rows) for array in self.reference.inputs):
            return None
        return replace(self, record=lambda: record(rows), record_rows=None)

    @cached_property
    def state(self) -> TorchState:
        """torch's weights, without the ones that the rules ignore."""
        return without_ignored(self.torch, self.rules or NO_RULES)

    @cached_property
    def like(self) -> PyTree:
        """JAX model as it was given; its weights may be shapes only."""
        return filled(self.jax_model)

    @cached_property
    def matched(self) -> Identified:
        """JAX model with every tensor identified."""
        rules, shapes = self.rules or NO_RULES, has_shapes_alone(self.like)
        call = JaxInTraining(self.call) if self.in_training else self.call
        if shapes:
            found = identify_shapes(self.state, self.like, rules)
        else:
            asks = None if self.in_training else cache(lambda: own_gradients(self.like, call, self.reference))
            found = identify(self.state, self.like, rules, asks)
            found = resolve(found, rules, self.state.weights, lambda: self.reference, call)
        return with_idle(found, lambda: self.reference, call)

    @cached_property
    def candidate(self) -> Candidate:
        """JAX model with torch's weights.

        Its call is a new function each time, because JAX keeps the trace of a known function even if code was redefined since.
        """
        found, call = self.matched, self.call
        loaded = to_jax(self.state.weights, found.model, found.family, keep=True)
        candidate = Candidate(loaded, wraps(call)(lambda *given: call(*given)), found.family, found.tables, found.alone)
        return with_training(candidate, self.reference) if self.in_training else candidate

    @cached_property
    def traced(self) -> Traced:
        """Runs of the JAX model in float64."""
        wanted = {"local": "isolated" in self.needs, "gradients": "gradients" in self.needs}
        traced = replace(trace(self.reference, self.candidate, **wanted), session=Session(self.search_seconds))
        if not (self.trains or self.in_training):
            traced = with_trained_padding(traced)
        return with_scale_behind_a_tap(with_open_borders(with_permuted_rows(traced)))

    @cached_property
    def rows(self) -> list[Module]:
        """Table of modules."""
        rows = without_later(resolved(self.traced, table(self.traced)), self.traced)
        return rows if self.trains or self.in_training else without_padding(rows, self.traced)

    @cached_property
    def trained_alone(self) -> dict[str, str]:
        """Parameters that only one side trains, with a message about each."""
        return {} if self.trains else trained_alone(self.reference, self.traced, self.candidate)

    @cached_property
    def reduced(self) -> Reduced | None:
        """Smallest call that differs, written if it was requested."""
        return reduced(self.traced, self.rows, self.reference.weights, self.reduction) if self.reduction else None

    @cached_property
    def module_fields(self) -> dict[str, Any]:
        """Fields of the report about modules, and the environment of both sides."""
        return {
            "modules": with_draws(blamed(self.rows, self.candidate, self.trained_alone), self.candidate.draws),
            **unpaired_calls(self.traced),
            "taps": unpaired_taps(self.traced),
            "environment": environment() | dict(self.reference.environment),
            "reduced": self.reduced,
        }


def environment() -> dict[str, str]:
    """Environment of the JAX side."""
    precision = jax.config.values["jax_default_matmul_precision"] or "default"
    return {
        "jax": jax.__version__,
        "numpy": np.__version__,
        "device": f"{jax.devices()[0].platform} {jax.devices()[0].device_kind}",
        "jax matmul precision": f"highest in float64 and float32, {precision} below",
        "jax float32 product": str(jax_product()),
        "jax compiler": "without YNNPACK" if exact() else "as it is",
    }
