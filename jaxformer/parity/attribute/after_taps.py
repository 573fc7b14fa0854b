"""Causes of differences at taps, and which taps may differ only as a consequence of an earlier one.

The inputs of a tap are not seen: the code before the first tap, such as a residual stream's, also feeds all later ones. A tap
that differs after another one of the same code may be right, so it is only blamed for a cause known to be its own.
"""

from jaxformer.parity.attribute.notes import drawn, unset, unsteady
from jaxformer.parity.attribute.other_shapes import code_of
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis, sentence
from jaxformer.parity.diagnose.explainers import cause_of_all, looks_of, served_by
from jaxformer.parity.diagnose.mutation import Mutation
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, Site

Wrong = list[tuple[Site, list[Mismatch]]]
"""Calls with the mismatches that their code makes, the largest difference first."""


class Blame:
    """Cause of each call whose values differ, in torch's order, and the earlier call that it may follow from."""

    def __init__(self, traced: Traced, wrong: Wrong):
        self.traced = traced
        self.causes: dict[Site, Diagnosis] = {}
        self.behind: dict[Site, Site] = {}
        self.looks: dict[Site, str] = {}
        """Descriptions of the differences without a cause."""
        self.found: dict[Site, Candidate] = {}
        """Mutations of torch's code that explain a call."""
        self.mismatches = {site: mismatches[0] for site, mismatches in wrong}
        codes = {site: code for site, _ in wrong if (code := shared_code(traced, site)) is not None}
        first: dict[Site, Site] = {}
        for site, mismatches in wrong:
            before = first.get(codes.get(site, site))
            self._explain(site, mismatches, near=before is not None and not self.causes[before])
            if before is not None and not self.causes[site]:
                self.behind[site] = before
            elif site in codes and not (self.causes[site] and self.is_own(site, codes[site])):
                first.setdefault(codes[site], site)
        for code in dict.fromkeys(codes.values()):
            self._take_what_serves_most([site for site, other in codes.items() if other == code])

    def _explain(self, site: Site, mismatches: list[Mismatch], *, near: bool) -> None:
        """Search for the cause of a call's difference; an output that changes from run to run has no cause in torch's code."""
        cause = sentence(unset(self.traced, site))
        if not cause and not unsteady(self.traced):
            cause = cause_of_all(self.traced, mismatches, near=near)
        self.causes[site] = cause
        if cause.first and cause.first.owner:
            self.found[site] = cause.first
        if not cause:
            self.looks[site] = drawn(self.traced) or looks_of(self.traced, mismatches[0], cause)

    def is_own(self, site: Site, code: Site) -> bool:
        """True if the cause lies in code of the tap only, not in code that also feeds other taps."""
        return site not in self.found or self.found[site].owner not in (CALL, Site("", 0), self.traced.pairs[code])

    def _take_what_serves_most(self, sites: list[Site]) -> None:
        """Choose among mutations that each explain some taps: all taps that one mutation explains are one difference."""
        served: dict[tuple[Site | None, Mutation], dict[Site, Diagnosis]] = {}
        firsts = {of(found): found for site in sites if (found := self.found.get(site))}
        for key, found in firsts.items():
            own = {site: self.causes[site] for site in sites if site in self.found and of(self.found[site]) == key}
            others = (site for site in sites if site not in own and (site in self.found or not self.causes[site]))
            says = {site: served_by(self.traced, self.mismatches[site], found) for site in others}
            served[key] = own | {site: cause for site, cause in says.items() if cause}
        left = {*sites}
        for causes in sorted(served.values(), key=len, reverse=True):
            if not (served_here := [site for site in sites if site in causes and site in left]):
                continue
            first, *others = served_here
            self.causes |= {site: causes[site] for site in served_here}
            self.behind = {site: before for site, before in self.behind.items() if site != first}
            self.behind |= dict.fromkeys(others, first)
            self.looks.pop(first, None)
            left -= {*served_here}


def of(found: Candidate) -> tuple[Site | None, Mutation]:
    """Call whose code the candidate mutates, and the mutation."""
    return found.owner, found.mutation


def shared_code(traced: Traced, site: Site) -> Site | None:
    """Call whose code makes a tap's value and goes on to other taps; a call with taps inside is its own.

    None for other calls, and for a running statistic, which feeds nothing.
    """
    pairs, buffers = traced.pairs, traced.reference.buffers
    taps = [each for each in traced.normal_run.taps if each in pairs and each not in traced.valid]
    taps = [each for each in taps if pairs[each].path not in buffers]
    if site in taps:
        return code_of(traced, site)
    return site if site in {code_of(traced, each) for each in taps} else None
