"""Truncations: why one side gives some ids no probability. The ids that are left tell k of top-k, and bounds of p of top-p and
min-p, at every place; a truncation is named if one number satisfies all of them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.parity.logprobs.distributions import log_mass, log_softmax
from jaxformer.parity.logprobs.evidence import Evidence, Fit, cause
from jaxformer.parity.logprobs.numbers import n_digits, plain, simplest
from jaxformer.parity.logprobs.report import LogprobCause

LEAST_PLACES = 3
"""Number of places, where an id was not read before, from which it counts as dropped at every place: a penalty of ids that were
read drops them, too."""
MOST_BEYOND = 300
"""Number of k beyond the largest number of ids kept that are tried before a top-p."""
SLACK = 1e-6
"""Share by which bounds of p are widened: a probability on the boundary may fall on either side."""


class Ranked(NamedTuple):
    """Ids by falling probability at N places."""

    logits: np.ndarray
    """Logits `N V` in that order, -inf for ids that the base drops."""
    mass: np.ndarray
    """Probability `N V` of the ids up to each."""
    n_kept: np.ndarray
    """Number N of ids that the target keeps."""
    n_base: np.ndarray
    """Number N of ids that the base keeps."""


def truncations(fit: Fit, evidence: Evidence, of_base: np.ndarray) -> list[tuple[LogprobCause, ...]]:
    """Return the causes, those of the fit among them, if truncations at one of its stages drop what the target drops."""
    steps = tuple(each.cause for each in fit.transforms)
    if not (of_base & ~evidence.kept).any():
        return [steps]
    found: dict[tuple, tuple[LogprobCause, ...]] = {}
    last = len(fit.stages) - 1
    for n in range(last, -1, -1):
        for each in _at_stage(fit.stages[n], evidence, of_base):
            same_at_any = all(one.name in ("top-k", "suppressed ids") for one in each)
            key = (*((one.name, one.args.get("k")) for one in each), None if same_at_any else n)
            told = (*each[:-1], _normalised(each[-1], fit.stages[n], evidence)) if n == last else each
            found.setdefault(key, (*steps[:n], *told, *steps[n:]))
    shortest = min(map(len, found.values()), default=0)
    return sorted((each for each in found.values() if len(each) == shortest), key=_digits)


def _digits(causes: Sequence[LogprobCause]) -> int:
    """Number of digits of the causes' p: plainer ones come first."""
    return sum(n_digits(each.args["p"]) for each in causes if "p" in each.args)


def _at_stage(logits: np.ndarray, evidence: Evidence, of_base: np.ndarray) -> list[tuple[LogprobCause, ...]]:
    """Return truncations of the logits, one or two, that leave the ids that the target keeps."""
    suppressed = _suppressed(evidence, of_base)
    if suppressed is not None:
        return [(suppressed,)]
    above = _above_kept(logits, evidence, of_base)
    barred = above.any(0)
    before: tuple[LogprobCause, ...] = ()
    if barred.any():
        unread = (above & (evidence.counts == 0)).sum(0)
        if (unread[barred] < LEAST_PLACES).any() or (evidence.kept & barred).any():
            return []
        before, of_base = (_never(np.flatnonzero(barred)),), of_base & ~barred
    ranked = _ranked(logits, evidence.kept, of_base)
    found = [*_single(ranked)] or [*_double(ranked)]
    return [(*before, *each) for each in found]


def _suppressed(evidence: Evidence, of_base: np.ndarray) -> LogprobCause | None:
    """Return the cause if the same ids are dropped at every place, fewer than are kept."""
    dropped = of_base & ~evidence.kept
    never = np.asarray(dropped.any(0))
    if len(dropped) >= LEAST_PLACES and 2 * never.sum() < len(never) and np.array_equal(dropped, of_base & never):
        return _never(np.flatnonzero(never))
    return None


def _never(tokens: np.ndarray) -> LogprobCause:
    more = f" and {len(tokens) - 8} more" if len(tokens) > 8 else ""
    shown = ", ".join(map(str, tokens[:8]))
    which = f"id{'s' * (len(tokens) > 1)} {shown}{more}"
    return cause(
        "suppressed ids", f"the {{sampler}} drops {which} at every place, as if by a bias", ids=[int(each) for each in tokens]
    )


def _above_kept(logits: np.ndarray, evidence: Evidence, of_base: np.ndarray) -> np.ndarray:
    """True for ids `N V` that are dropped at a place where a less likely one is kept."""
    least = np.where(evidence.kept, logits, np.inf).min(-1, keepdims=True)
    return of_base & ~evidence.kept & (logits > least + evidence.tolerance(logits)[:, None])


def _ranked(logits: np.ndarray, kept: np.ndarray, of_base: np.ndarray) -> Ranked:
    logits = np.where(of_base, logits, -np.inf)
    ordered = np.take_along_axis(logits, np.argsort(-logits, -1, kind="stable"), -1)
    mass = np.cumsum(np.exp(log_softmax(ordered)), -1)
    return Ranked(ordered, mass, kept.sum(-1), of_base.sum(-1))


def _at(values: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Value of each row at place n; 0 before the first."""
    found = np.take_along_axis(values, np.clip(n, 0, values.shape[1] - 1)[:, None], -1)[:, 0]
    return np.where(n < 0, 0.0, found)


def _single(ranked: Ranked) -> Iterator[tuple[LogprobCause, ...]]:
    """Yield single truncations."""
    yield from ((each,) for each in (_top_k(ranked), _top_p(ranked), _min_p(ranked)) if each)


def _top_k(ranked: Ranked) -> LogprobCause | None:
    """Top-k; ids as likely as the k-th may be kept or not."""
    last = _at(ranked.logits, ranked.n_kept - 1)[:, None]
    above = (ranked.logits > last).sum(-1)
    whole = ranked.n_kept == ranked.n_base
    low, high = int((above + 1).max()), int(np.where(whole, ranked.logits.shape[1], ranked.n_kept).min())
    if low > high or whole.all():
        return None
    k = int(ranked.n_kept[~whole].min())
    return _likeliest(k)


def _bounds(ranked: Ranked, *, beyond: bool) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of p at each place: the mass before and with the last id that is kept, or with it and the next one."""
    last = ranked.n_kept - 1 + beyond
    return _at(ranked.mass, last - 1), np.where(last >= ranked.n_base - (not beyond), 1.0, _at(ranked.mass, last))


def _top_p(ranked: Ranked, at: np.ndarray | None = None) -> LogprobCause | None:
    """Top-p: the id that reaches p is kept, as usual, or is not."""
    for beyond in (False, True):
        lows, highs = _bounds(ranked, beyond=beyond)
        if beyond:
            lows = np.where(ranked.n_kept == 1, 0.0, lows)  # at least one id is kept
        low, high = float(lows.max()), float((highs if at is None else highs[at]).min())
        if low <= high + SLACK * high and low < 1 - SLACK:
            p = plain(simplest(low, max(high, low)))
            more = ", without the id that reaches it" if beyond else ""
            said = f"the {{sampler}} keeps the likeliest ids up to a probability of {p:g} (top-p {p:g}{more})"
            return cause("top-p", said, p=p, above=low, at_most=high, reaches=not beyond)
    return None


def _min_p(ranked: Ranked, at: np.ndarray | None = None) -> LogprobCause | None:
    """Min-p: a share of the likeliest id's probability."""
    share = np.exp(ranked.logits - ranked.logits[:, :1])
    lows = np.where(ranked.n_kept < ranked.n_base, _at(share, ranked.n_kept), 0.0)
    low, high = float((lows if at is None else lows[at]).max()), float(_at(share, ranked.n_kept - 1).min())
    if low <= high * (1 + SLACK) and low > 0:
        p = plain(simplest(low, max(high, low)))
        said = f"the {{sampler}} keeps ids with at least {p:g} of the likeliest one's probability (min-p {p:g})"
        return cause("min-p", said, p=p, above=low, at_most=high)
    return None


def _double(ranked: Ranked) -> Iterator[tuple[LogprobCause, ...]]:
    """Yield top-k before or after top-p, and before min-p.

    Where k is the largest number of ids that are kept, places show it; a larger k shows only in the mass within it.
    """
    most, width = int(ranked.n_kept.max()), ranked.logits.shape[1]
    shown = (ranked.n_kept == most).sum() > 1
    if shown and (after := _min_p(_within(ranked, most))):
        yield _likeliest(most), after
    fewer = ranked.n_kept < np.minimum(most, ranked.n_base)
    if shown and fewer.any() and (before := _top_p(ranked, fewer)):
        yield before, _likeliest(most)
    fits = [(k, after) for k in range(most, min(width, most + MOST_BEYOND)) if (after := _top_p(_within(ranked, k)))]
    if fits:
        k, after = min(fits, key=lambda each: (n_digits(each[1].args["p"]), n_digits(each[0]), each[0]))
        yield _likeliest(k, [each for each, _ in fits]), after


def _likeliest(k: int, fits: Sequence[int] = ()) -> LogprobCause:
    more = f"; with another p, k from {fits[0]} to {fits[-1]} fits too" if len(fits) > 1 else ""
    return cause("top-k", f"the {{sampler}} keeps the {k} likeliest ids (top-k {k}{more})", k=k)


def _within(ranked: Ranked, k: int) -> Ranked:
    """Return the k likeliest ids alone."""
    inside = np.where(np.arange(ranked.logits.shape[1]) < k, ranked.logits, -np.inf)
    return Ranked(inside, np.cumsum(np.exp(log_softmax(inside)), -1), ranked.n_kept, np.minimum(k, ranked.n_base))


def _normalised(each: LogprobCause, logits: np.ndarray, evidence: Evidence) -> LogprobCause:
    """Add whether what is left was normalised anew; log-probabilities show it, logits do not."""
    target = np.where(evidence.kept, evidence.target, -np.inf)
    tolerance = evidence.tolerance(logits)
    if (np.abs(log_mass(target)) <= tolerance).all():
        return _with(each, True, "")
    whole = log_softmax(logits)
    if (np.abs(np.where(evidence.kept, target - whole, 0.0)) <= tolerance[:, None]).all():
        return _with(each, False, " without normalising what is left")
    return each


def _with(each: LogprobCause, renormalised: bool, words: str) -> LogprobCause:
    args = each.args | {"renormalised": renormalised}
    return LogprobCause(each.name, each.side, args, each.says + words)
