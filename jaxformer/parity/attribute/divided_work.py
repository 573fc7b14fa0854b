"""Work that both sides divide differently among their calls, such as scaling embeddings inside their module or after it.

On torch's values each of the two calls then differs, and both together do not. So boundaries between calls are tried open:
jax's array stays at the boundary, and torch's arrays are everywhere else. If another difference disappears and no new one
appears, the two cancel: it is one piece of work, divided differently. Bugs elsewhere are unaffected, since torch's values are
around them.

One scale may be applied inside a module on one side and after it on the other, with different numbers. The module itself is
then right, and jax's number is not torch's, for example a root that is rounded to bfloat16."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from jaxformer.parity.attribute.blame import noise_of, returned, wrong_gradients
from jaxformer.parity.diagnose.by_arrays.values import SMALLER, factor_between, round_number
from jaxformer.parity.diagnose.mutation import Free
from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.diagnose.solve import solved
from jaxformer.parity.numerics.metrics import EXPLAINED, over
from jaxformer.parity.runs.isolated import Isolated, Mismatch
from jaxformer.parity.runs.trace import Scale, Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site

NEAR = 2.0**-7
"""Largest relative difference of the two numbers: bfloat16's rounding error."""


def one_scale(wrong: Mapping[Site, list[Mismatch]]) -> dict[Site, Scale]:
    """Find the calls whose values differ only because the scale is applied elsewhere."""
    alone = {site: mismatches[0] for site, mismatches in wrong.items() if len(mismatches) == 1}
    given = {site: each for site, each in alone.items() if each.child is None and each.torch.dtype.kind == "f"}
    found = {}
    for site, inner in given.items():
        for behind, outer in alone.items():
            if behind != site and outer.torch.shape == inner.torch.shape and (says := scaled(str(site), inner, outer)):
                found[site] = Scale(behind, says)
    return found


def scaled(name: str, inner: Mismatch, outer: Mismatch) -> str:
    """Describe the scales of two mismatches, or return '' if there are none.

    Example: 'torch multiplies emb by 4.89897949 = sqrt(24); jax by 4.90625, that rounded to bfloat16'.
    """
    if not all(np.isfinite(array).all() for array in (inner.torch, inner.jax, outer.torch, outer.jax)):
        return ""
    both = [factor_between(array, inner.torch) for array in (inner.jax, outer.torch, outer.jax)]
    own, torchs, jaxs = (number for number, _ in both)
    if not own or not torchs or max(residual for _, residual in both) > EXPLAINED:
        return ""
    torchs, jaxs = round_number(torchs / own), round_number(jaxs)
    return said(name, torchs, jaxs) if EXPLAINED < abs(jaxs / torchs - 1) <= NEAR else ""


def said(name: str, torchs: float, jaxs: float) -> str:
    """Describe the two numbers, and the dtype to which torch's is rounded."""
    types = (np.dtype(kind).name for kind in SMALLER if float(np.asarray(torchs).astype(kind)) == jaxs)
    rounded = next((f", that rounded to {kind}" for kind in types), "")
    return f"torch multiplies {name} by {say(torchs)}; jax by {say(jaxs)}{rounded}"


def with_scale_behind_a_tap(traced: Traced) -> Traced:
    """Solve for a scale in jax's code after a tap, and judge the later taps without it.

    It applies to a tap that shows a multiple of torch's array, if later taps of the same code differ.
    """
    taps = {*traced.normal_run.taps}
    wrong = [each for found, each in traced.values if over(found, "activation") and each.place and each.place.site in taps]
    for i, inner in enumerate(wrong):
        behind = [each for each in wrong[i + 1 :] if each.reader == inner.reader]
        if behind and inner.child is None and (found := _solved(traced, inner, behind)):
            return found
    return traced


def _solved(traced: Traced, inner: Mismatch, behind: list[Mismatch]) -> Traced | None:
    own, residual = factor_between(inner.jax, inner.torch)
    if not own or residual > EXPLAINED or abs(own - 1) <= EXPLAINED:
        return None
    torchs, most = round_number(1 / own), max(behind, key=lambda each: traced.off(each).relative)

    def given(scale: float) -> Isolated:
        return traced.given({inner.place: inner.torch / scale} if inner.place else {})

    def run(scale: float) -> np.ndarray | None:
        return next(each.jax for each in given(scale).mismatches if each.place == most.place) if scale else None

    found = solved(run, Free(torchs, sure=True), most.jax, most.torch, EXPLAINED)
    if found is None or abs(found[0] / torchs - 1) <= EXPLAINED:
        return None
    isolated, first = given(found[0]), behind[0]
    left = {each.place for each in isolated.mismatches if over(traced.off(each), "activation")}
    if left & {first.place, most.place} or not left <= {each.place for _, each in traced.values}:
        return None
    kept = {each.place: each for each in (inner, first)}
    values = [kept.get(each.place, each) for each in isolated.mismatches]
    back = [each for each in isolated.gradient_mismatches if not each.place or each.place.site != inner.owner]
    scale = Scale(first.owner, said(str(inner.owner), torchs, found[0]))
    return replace(traced, isolated=replace(isolated, mismatches=values, gradient_mismatches=back), scales={inner.owner: scale})


MOST_ROUNDS = 16
"""Largest number of rounds of boundaries that are tried."""
FARTHEST = 4
"""Largest number of boundaries that a difference may pass before it disappears, such as a dropout or a reshape."""


def with_open_borders(traced: Traced) -> Traced:
    """Return the runs, module by module, with every boundary open at which differences cancel."""
    search = _BorderSearch(traced)
    if not search.seeds() or _is_harmless(traced):
        return traced
    search.run()
    if not search.opened:
        return traced
    return replace(traced, isolated=search.isolated, opened=frozenset(search.opened), divided=frozenset(search.owners) - {CALL})


def _is_harmless(traced: Traced) -> bool:
    """True if all outputs and gradients of the normal run are torch's."""
    noise = noise_of(traced.reference.calls)
    back = (returned(traced, site, noise) for site in traced.pairs)
    values = (each is not None and over(each, "activation") for each in traced.normal.values())
    return not any(values) and not wrong_gradients(traced)[1] and not any(each and over(each, "gradient") for each in back)


@dataclass
class _Trial:
    """Boundaries that are tried open together."""

    seeds: frozenset[ArrayKey]
    opened: set[ArrayKey]
    makers: set[Site]
    """Calls whose code makes the arrays that stay."""
    readers: set[Site]
    """Calls whose code reads these arrays."""
    gone: set[ArrayKey] = field(default_factory=set)
    """Places at which differences disappeared."""
    failed: bool = False

    def meets(self, other: "_Trial") -> bool:
        """True if the effects of the two trials cannot be told apart."""
        return not (self.readers | self.makers).isdisjoint(other.readers) or not self.readers.isdisjoint(other.makers)


class _BorderSearch:
    """Search for the boundaries to open."""

    def __init__(self, traced: Traced):
        self.traced = traced
        self.isolated = traced.isolated
        located = [(mismatch.place, mismatch) for mismatch in traced.isolated.mismatches if mismatch.place]
        self.places = [place for place, _ in located if place.site != CALL]
        self.around = {place.site: each.owner if each.child else each.reader for place, each in located}
        self.giving = {place.site for place, each in located if each.child is None}
        """Calls whose output is replaced by torch's."""
        self.wrong = {each.place: each for found, each in traced.values if each.place and over(found, "activation")}
        """Differences that are not explained yet, by place."""
        self.taps = {*traced.normal_run.taps}
        self.opened: set[ArrayKey] = set()
        self.owners: set[Site] = set()

    def seeds(self) -> list[ArrayKey]:
        """Places whose difference is followed by another one, in the code that reads the array or in code around it."""
        owners = [each.owner for each in self.wrong.values()]
        return [
            place
            for i, (place, each) in enumerate(self.wrong.items())
            if place.site != CALL and not (self._holders(each.reader) | self._taps_behind(each)).isdisjoint(owners[i + 1 :])
        ]

    def _holders(self, site: Site) -> set[Site]:
        """A call, and the calls around it."""
        found = {site}
        while (site := self.around.get(site, CALL)) not in found:
            found.add(site)
        return found

    def _behind(self, site: Site) -> set[Site]:
        """Calls whose code uses what a call reads: the call's own, and where jax's output stays, the call around it too."""
        found = {site}
        while site not in {*self.giving, CALL}:
            found.add(site := self.around.get(site, CALL))
        return found

    def _taps_behind(self, mismatch: Mismatch) -> set[Site]:
        """Calls whose code may use a tap's array: those of the later taps in the same call."""
        taps = [each for each in self.isolated.mismatches if each.place and each.place.site in self.taps]
        places = [each.place for each in taps]
        if mismatch.place not in places:
            return set()
        return {each.owner for each in taps[places.index(mismatch.place) + 1 :] if each.reader == mismatch.reader}

    def _readers(self, mismatches: Iterable[Mismatch]) -> set[Site]:
        both = ({*self._behind(each.reader), *self._taps_behind(each)} for each in mismatches)
        return {site for sites in both for site in sites}

    def run(self) -> None:
        """Try single boundaries first, then all boundaries that one call reads."""
        tried: set[frozenset[ArrayKey]] = set()
        for _ in range(MOST_ROUNDS):
            left = self.seeds()
            sets = [frozenset({place}) for place in left]
            readers = {self.wrong[place].reader for place in left}
            sets += [frozenset(place for place in left if self.wrong[place].reader == reader) for reader in readers]
            if not (sets := [each for each in sets if each not in tried]):
                break
            size = min(map(len, sets))
            tried |= set(self._try([each for each in sets if len(each) == size]))
        if self.opened:
            self.isolated = self.traced.again(self.opened, gradients=True)(dict.fromkeys(self.opened, True))

    def _try(self, sets: Iterable[frozenset[ArrayKey]]) -> list[frozenset[ArrayKey]]:
        """Try the sets that different calls read in one pass; accepted ones stay open. Returns the sets that were tried."""
        trials: list[_Trial] = []
        for each in sets:
            mismatches = [self.wrong[place] for place in each]
            trial = _Trial(each, set(each), {mismatch.owner for mismatch in mismatches}, self._readers(mismatches))
            if not any(map(trial.meets, trials)):
                trials.append(trial)
        tried = self._grow(trials)
        for trial in tried:
            if trial.gone and not trial.failed and (len(trial.seeds) == 1 or self._needs_all(trial)):
                self.opened |= trial.opened
                done = (trial.gone | trial.opened) & self.wrong.keys()
                self.owners |= {self.wrong.pop(place).owner for place in done}
        return [trial.seeds for trial in tried]

    def _grow(self, trials: list[_Trial]) -> list[_Trial]:
        """Open the boundaries at which new differences appear too, until none appears.

        Trials that do not end, like those at a bug, fail. If trials meet, the first goes on, and the others are not returned.
        """
        for step in range(FARTHEST + 1):
            found = self._differences(self.opened.union(*(trial.opened for trial in trials if not trial.failed)))
            going = False
            for trial in (trial for trial in trials if not trial.failed):
                own = {place: mismatch for place, mismatch in found.items() if mismatch.owner in trial.readers}
                new = {place for place in own if place not in self.wrong and place not in trial.opened | self.opened}
                trial.gone = {p for p, mismatch in self.wrong.items() if mismatch.owner in trial.readers and p not in found}
                trial.failed = bool(new) and (step == FARTHEST or any(place.site == CALL for place in new))
                trial.opened |= new
                trial.makers |= {own[place].owner for place in new}
                trial.readers |= self._readers(own[place] for place in new)
                going |= bool(new)
            alone: list[_Trial] = []
            for trial in trials:
                if trial.failed or not any(trial.meets(other) for other in alone if not other.failed):
                    alone.append(trial)
            going |= len(alone) < len(trials)
            trials = alone
            if not going:
                break
        return trials

    def _needs_all(self, trial: _Trial) -> bool:
        """True if some difference returns whenever one of the trial's seeds is closed."""
        return all(trial.gone & self._differences(self.opened | trial.opened - {place}).keys() for place in trial.seeds)

    def _differences(self, opened: set[ArrayKey]) -> dict[ArrayKey, Mismatch]:
        """Places where jax's arrays differ with these boundaries open."""
        isolated = self._pass({place: place in opened for place in self.places})
        found = ((self.traced.off(mismatch), mismatch) for mismatch in isolated.mismatches)
        return {mismatch.place: mismatch for error, mismatch in found if mismatch.place and over(error, "activation")}

    @cached_property
    def _pass(self) -> Callable[[Mapping[ArrayKey, bool]], Isolated]:
        """Pass of values only, compiled when it is first needed."""
        return self.traced.again(self.places, gradients=False)
