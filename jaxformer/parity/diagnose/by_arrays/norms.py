"""Explain norms that lose digits by cancellation, running statistics with another momentum, and float32 constants."""

from collections.abc import Callable, Iterator
from itertools import compress
from typing import NamedTuple

import numpy as np

from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis, plain
from jaxformer.parity.diagnose.evidence import OLD, Difference, Evidence
from jaxformer.parity.diagnose.formulas.choices import CHOSEN
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.numerics.metrics import EXPLAINED, UNIT_ROUNDOFF, as_float64, distance
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced

SAYS = (
    "jax seems to compute the variance as E[x^2] - E[x]^2, which loses digits where the mean is large, "
    "as Flax's norms do by default: pass `use_fast_variance=False`"
)
SCALED = Change("norm.input_scaled", "multiplies it by {factor}", "takes its input as it is")
IN_ONE_PASS = Change("variance.in_one_pass", SAYS, torch="")
OTHER = 1 / 3
"""Largest share of the error that may have another cause."""
LEAST, SMALLEST, LARGEST = 20.0, 1e-2, 10.0
"""Least ratio of the squared mean to the variance; bounds of the largest factor, relative to what rounding may cause."""
Together = Callable[[np.ndarray], np.ndarray]
"""Function that reshapes an array to rows, each of which is normalised by itself."""


def explain_cancelled(difference: Difference) -> Candidate | None:
    """Explain a difference in float64 by a variance in one pass, if it is so small that any formula would explain it."""
    if distance(difference.jax, difference.torch) > EXPLAINED:
        return None
    return plain(IN_ONE_PASS) if fast_variance(difference.evidence, difference.jax, difference.torch, 2.0**-53) else None


def fast_variance(evidence: Evidence, jax: np.ndarray, torch: np.ndarray, roundoff: float) -> str:
    """Return `SAYS` if the error of a norm's output looks like that of a variance in one pass; else ''. `roundoff`: unit
    roundoff of jax's numbers."""
    x, bias = evidence.before.get("input"), evidence.parameters.get("bias", np.zeros(1))
    if x is None or x.shape != torch.shape != () or not np.isfinite(jax).all() or not np.isfinite(torch).all():
        return ""
    scaled = [torch - bias.reshape(-1, *[1] * behind) for behind in (0, torch.ndim - 2) if fits(bias, torch, behind)]
    return SAYS if any(is_cancelled(rows, x, jax - torch, y, roundoff) for rows in together(x) for y in scaled) else ""


def fits(bias: np.ndarray, y: np.ndarray, behind: int) -> bool:
    """True if a bias fits the axis that has `behind` axes after it."""
    return 0 <= behind < y.ndim and bias.size in (1, y.shape[-1 - behind])


def is_cancelled(rows: Together, x: np.ndarray, off: np.ndarray, scaled: np.ndarray, roundoff: float) -> bool:
    """True if the error is one factor for each row, of the size that cancellation causes."""
    x, off, scaled = (rows(array) for array in (x, off, scaled))
    size = np.square(scaled).sum(1)
    factors = (off * scaled).sum(1) / np.where(size, size, 1.0)
    variance = x.var(1)
    conditions = np.square(x.mean(1)) / np.where(variance, variance, np.inf)
    expected, largest = roundoff * conditions.max(), np.abs(factors).max()
    if conditions.max() < LEAST or not SMALLEST * expected <= largest <= LARGEST * expected:
        return False
    return distance(factors[:, None] * scaled, off) < OTHER


def together(x: np.ndarray) -> Iterator[Together]:
    """Yield the ways to group entries that are normalised together: layer norm over the last axes, group norm, and batch norm
    with channels first or last."""
    for axis in range(x.ndim - 1, 0, -1):
        yield lambda array, axis=axis: array.reshape(int(np.prod(array.shape[:axis])), -1)
    for groups in range(2, x.shape[1] // 2 + 1 if x.ndim > 2 else 0):
        if x.shape[1] % groups == 0:
            yield lambda array, groups=groups: array.reshape(len(array) * groups, -1)
    for axis in {1, x.ndim - 1}:
        if x.ndim > 1:
            yield lambda array, axis=axis: np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def explain_epsilon(difference: Difference) -> Diagnosis:
    """Explain a norm whose epsilon is no usual one, by solving (x - mean) / sqrt(variance + epsilon) gain + bias for it.

    Rows multiplied by a factor c give the same: their epsilon is divided by c^2.
    """
    jax, torch, own = difference.jax, difference.torch, difference.evidence.parameters
    for centered, variance, axis in normed(difference.evidence):
        shape = [-1 if each == axis else 1 for each in range(centered.ndim)]
        gain, bias = own.get("gain", np.ones(1)), own.get("bias", np.zeros(1))
        if centered.shape != torch.shape or not gain.all() or not {gain.size, bias.size} <= {1, centered.shape[axis]}:
            continue
        scaled = [(y - bias.reshape(shape)) / gain.reshape(shape) for y in (torch, jax)]
        torch_epsilon, jax_epsilon = (solved_epsilon(y, centered, variance) for y in scaled)
        if torch_epsilon is not None and jax_epsilon is not None and torch_epsilon != jax_epsilon:
            causes = [plain(CHOSEN, formula="norm", epsilon=(f"{torch_epsilon:g}", f"{jax_epsilon:g}"))]
            if variance.shape == (*centered.shape[:-1], 1) and min(torch_epsilon, jax_epsilon) > 0:
                causes.append(plain(SCALED, factor=(torch_epsilon / jax_epsilon) ** 0.5))
            return Diagnosis(tuple(causes))
    return Diagnosis()


def normed(evidence: Evidence) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield what a norm may divide, the variance of rows or the running one, and the axis of the gain."""
    for x in evidence.before.values():
        if x.ndim:
            for centered in (x - x.mean(-1, keepdims=True), x):
                yield centered, np.square(centered).mean(-1, keepdims=True), x.ndim - 1
        for mean, variance in (("running_mean", "running_var"), ("mean", "var")):
            if mean in evidence.statistics and variance in evidence.statistics:
                held = evidence.statistics[mean], evidence.statistics[variance]
                for axis in (axis for axis in range(1, x.ndim) if held[0].shape == x.shape[axis : axis + 1]):
                    shape = [-1 if each == axis else 1 for each in range(x.ndim)]
                    yield x - held[0].reshape(shape), held[1].reshape(shape), axis


def solved_epsilon(y: np.ndarray, centered: np.ndarray, variance: np.ndarray) -> float | None:
    """Return the number of fewest digits for which centered / sqrt(variance + epsilon) is y; None if there is none."""
    axes = tuple(axis for axis, size in enumerate(variance.shape) if size == 1)
    scale = (centered * y).sum(axes, keepdims=True) / np.square(centered).sum(axes, keepdims=True)
    epsilon = float((scale**-2.0 - variance).flat[np.argmin(variance)])
    rounded = (float(f"{epsilon:.{digits}g}") for digits in range(1, 9)) if np.isfinite(epsilon) and epsilon > 0 else ()
    return next((each for each in rounded if distance(centered / np.sqrt(variance + each), y) <= EXPLAINED), None)


SAME = 1e-9
LEFT = Change("running.left", "leaves it as it was", "updates the running statistic by momentum {momentum:.9g}")
UPDATED = Change("running.updated", "{jax}{more}", "{torch}")


class Update(NamedTuple):
    """Update rule that gives one side's new running statistic."""

    statistic: str
    """Name of the statistic of the batch's input."""
    momentum: float
    """Momentum as torch counts it: the share of the new statistic; flax's is 1 minus it."""
    residual: float


def explain_running(difference: Difference) -> Candidate | None:
    """Explain a running statistic: 'torch momentum 0.1, variance unbiased; jax momentum 0.9, variance biased'."""
    old, x = difference.evidence.before[OLD], difference.evidence.before["input"]
    known = dict(statistics(x, len(old)))
    torch = next(updates(known, old, difference.torch), None)
    if torch is None:
        return None
    if np.array_equal(difference.jax, old):
        return plain(LEFT, momentum=torch.momentum)
    jax = sorted(updates(known, old, difference.jax), key=lambda each: each.statistic != torch.statistic)
    return apart(torch, jax[0]) if jax else None


def updates(known: dict[str, np.ndarray], old: np.ndarray, new: np.ndarray) -> Iterator[Update]:
    """Yield the update rules that give the new array; the momentum is solved for."""
    for name, statistic in known.items():
        step = statistic - old
        momentum = float((new - old) @ step / (step @ step)) if step.any() else 0.0
        residual = distance(old + momentum * step, new)
        if residual <= EXPLAINED:
            yield Update(name, momentum, residual)


def apart(torch: Update, jax: Update) -> Candidate | None:
    """Describe in what two update rules differ; None if they do not."""
    t, j = torch.momentum, jax.momentum
    differ = abs(t - j) > SAME, torch.statistic != jax.statistic
    if not any(differ):
        return None
    says = [", ".join(compress((f"momentum {each.momentum:.9g}", each.statistic), differ)) for each in (torch, jax)]
    how = ": flax's is 1 minus torch's" if abs(t + j - 1) < SAME else ": it updates twice a step"
    is_known = differ[0] and min(abs(t + j - 1), abs((1 - t) ** 2 - (1 - j))) < SAME
    return plain(UPDATED, max(torch.residual, jax.residual), torch=says[0], jax=says[1], more=how * is_known)


def statistics(x: np.ndarray, channels: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield statistics that the update may use, torch's own first: along axis 1 of the input, then other axes of that size."""
    for axis in (axis for axis in range(1, x.ndim) if x.shape[axis] == channels):
        where = "" if axis == 1 else f" along axis {axis}"
        flat = np.moveaxis(x, axis, -1).reshape(-1, channels)
        yield f"mean{where}", flat.mean(0)
        if len(flat) > 1:
            yield f"variance unbiased{where}", flat.var(0, ddof=1)
        yield f"variance biased{where}", flat.var(0)
        yield f"mean of squares{where}", np.square(flat).mean(0)
        yield f"standard deviation{where}", flat.std(0)
        rows = np.moveaxis(x, axis, -1).reshape(len(x), -1, channels)
        yield f"mean of the first row{where}", rows[0].mean(0)
        if rows.shape[1] > 1:
            yield f"variance of each row, averaged{where}", rows.var(1).mean(0)
            yield f"variance between rows{where}", rows.mean(1).var(0)
            yield f"mean of the first position{where}", rows[:, 0].mean(0)


OWN_FACTORS = 1e-2
"""Residual (relL2) below which a difference is one factor per row, and least relative spread of factors that are different."""


def may_be_float32(traced: Traced, mismatch: Mismatch) -> bool:
    """True if a constant that one side rounds to float32 may be the cause, whichever bias of the module is added after it."""
    own = traced.reference.by_all_names.items() if mismatch.child is None else ()
    path, width = traced.pairs[mismatch.owner].path, mismatch.torch.shape[-1:]
    biases = [as_float64(array) for name, array in own if name.rpartition(".")[0] == path and array.shape == width]
    return all(is_rounded_constant(mismatch.jax, mismatch.torch, bias) for bias in (0.0, *biases))


def is_rounded_constant(jax: np.ndarray, torch: np.ndarray, bias: np.ndarray | float = 0.0) -> bool:
    """True if the difference may be a constant that one side rounds to float32.

    No entry is off by more than that, and rows do not have factors of their own, as another epsilon gives them. `bias` is added
    after the constant.
    """
    if jax.shape != torch.shape or not torch.ndim or {jax.dtype.kind, torch.dtype.kind} != {"f"}:
        return False
    off, scaled = jax - torch, torch - bias
    largest = 2 * UNIT_ROUNDOFF * np.abs(torch).max(initial=0.0)
    if not np.isfinite(off).all() or not 0 < np.abs(off).max(initial=0.0) <= largest:
        return False
    size = np.square(scaled).sum(-1, keepdims=True)
    factors = (off * scaled).sum(-1, keepdims=True) / np.where(size, size, 1.0)
    own = distance(factors * scaled, off) < OWN_FACTORS
    return not (own and np.ptp(factors) > OWN_FACTORS * np.abs(factors).max())
