"""Work that the two sides divide differently among their calls, as scaled embeddings: inside of their module, or after it.

On torch's values each of the two calls differs then, and both together do not. So a boundary between calls is tried open: jax's
array stays there, torch's are everywhere else. If another difference is gone with it, and none has come in its stead, the two
cancel: it is one piece of work, divided otherwise. Bugs elsewhere stay what they are, since torch's values are around them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jaxformer.parity.attribute.blame import wrong_gradients
from jaxformer.parity.attribute.module_table import noise_of, returned
from jaxformer.parity.numerics.metrics import over
from jaxformer.parity.runs.isolated import Isolated, Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site

MOST_ROUNDS = 16
"""So many rounds of boundaries are tried at most."""
FARTHEST = 4
"""A difference may go through so many boundaries before it is gone: a dropout, a reshape."""


def with_open_borders(traced: Traced) -> Traced:
    """The runs, module by module, with those boundaries open at which differences cancel."""
    search = _BorderSearch(traced)
    if not search.seeds() or _is_harmless(traced):
        return traced
    search.run()
    if not search.opened:
        return traced
    return replace(traced, isolated=search.isolated, opened=frozenset(search.opened), divided=frozenset(search.owners) - {CALL})


def _is_harmless(traced: Traced) -> bool:
    """Whether all that comes out in the normal run is torch's."""
    noise = noise_of(traced.reference.calls)
    back = (returned(traced, site, noise) for site in traced.pairs)
    values = (each is not None and over(each, "activation") for each in traced.normal.values())
    return not any(values) and not wrong_gradients(traced)[1] and not any(each and over(each, "gradient") for each in back)


@dataclass
class _Trial:
    """Borders that are tried open together."""

    seeds: frozenset[ArrayKey]
    opened: set[ArrayKey]
    makers: set[Site]
    """Whose code makes what stays."""
    readers: set[Site]
    """Whose code gets it."""
    gone: set[ArrayKey] = field(default_factory=set)
    """Where differences were."""
    failed: bool = False

    def meets(self, other: "_Trial") -> bool:
        """Whether what becomes of one may be the other's doing."""
        return not (self.readers | self.makers).isdisjoint(other.readers) or not self.readers.isdisjoint(other.makers)


class _BorderSearch:
    """Which boundaries to open."""

    def __init__(self, traced: Traced):
        self.traced = traced
        self.isolated = traced.isolated
        located = [(mismatch.place, mismatch) for mismatch in traced.isolated.mismatches if mismatch.place]
        self.places = [place for place, _ in located if place.site != CALL]
        self.around = {place.site: each.owner if each.child else each.reader for place, each in located}
        self.giving = {place.site for place, each in located if each.child is None}
        """Calls in the place of whose output torch's stands."""
        self.wrong = {each.place: each for found, each in traced.values if each.place and over(found, "activation")}
        """What is not explained."""
        self.taps = {*traced.normal_run.taps}
        self.opened: set[ArrayKey] = set()
        self.owners: set[Site] = set()

    def seeds(self) -> list[ArrayKey]:
        """Differences that another one follows, of the code that goes on with the first or of what is around it."""
        owners = [each.owner for each in self.wrong.values()]
        return [
            place
            for i, (place, each) in enumerate(self.wrong.items())
            if place.site != CALL and not (self._holders(each.reader) | self._taps_behind(each)).isdisjoint(owners[i + 1 :])
        ]

    def _holders(self, site: Site) -> set[Site]:
        """A call, and those around it."""
        found = {site}
        while (site := self.around.get(site, CALL)) not in found:
            found.add(site)
        return found

    def _behind(self, site: Site) -> set[Site]:
        """Whose code goes on with what a call reads: its own, and where jax's output stays, that of the call around it too."""
        found = {site}
        while site not in {*self.giving, CALL}:
            found.add(site := self.around.get(site, CALL))
        return found

    def _taps_behind(self, mismatch: Mismatch) -> set[Site]:
        """Of a tap's array, those whose code may go on with it: the later ones in the same call."""
        taps = [each for each in self.isolated.mismatches if each.place and each.place.site in self.taps]
        places = [each.place for each in taps]
        if mismatch.place not in places:
            return set()
        return {each.owner for each in taps[places.index(mismatch.place) + 1 :] if each.reader == mismatch.reader}

    def _readers(self, mismatches: Iterable[Mismatch]) -> set[Site]:
        both = ({*self._behind(each.reader), *self._taps_behind(each)} for each in mismatches)
        return {site for sites in both for site in sites}

    def run(self) -> None:
        """One boundary after the other, then all that one call reads."""
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
        """Those sets at once that different calls read; the accepted ones stay open. What was tried."""
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
        """Differences that come instead are opened too, until none comes; those that never end, as a bug's, have failed. Of
        trials that meet, the first goes on; the others are left out of what is given back."""
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
        """Whether what is gone comes back with each of the seeds closed."""
        return all(trial.gone & self._differences(self.opened | trial.opened - {place}).keys() for place in trial.seeds)

    def _differences(self, opened: set[ArrayKey]) -> dict[ArrayKey, Mismatch]:
        """Where jax's arrays differ with these boundaries open."""
        isolated = self._pass({place: place in opened for place in self.places})
        found = ((self.traced.off(mismatch), mismatch) for mismatch in isolated.mismatches)
        return {mismatch.place: mismatch for error, mismatch in found if mismatch.place and over(error, "activation")}

    @cached_property
    def _pass(self) -> Callable[[Mapping[ArrayKey, bool]], Isolated]:
        """Of values alone; compiled once it is needed."""
        return self.traced.again(self.places, gradients=False)
