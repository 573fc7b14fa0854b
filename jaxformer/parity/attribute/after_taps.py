"""Why taps differ, and which of them only come behind another one.

What comes to a tap is not seen: code before the first, as of a residual stream, goes on to all of them. One that differs behind
another one of the same code may be right, so it is accused only of what is known to be its own.
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
"""Of each call, what its code makes otherwise, the largest difference first."""


class Blame:
    """Of calls whose values differ, in torch's order: the cause of each, and behind which one it comes."""

    def __init__(self, traced: Traced, wrong: Wrong):
        self.traced = traced
        self.causes: dict[Site, Diagnosis] = {}
        self.behind: dict[Site, Site] = {}
        self.looks: dict[Site, str] = {}
        """Of those without a cause."""
        self.found: dict[Site, Candidate] = {}
        """Mutations of torch's code."""
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
        """What gives another array each time has no cause in torch's code."""
        cause = sentence(unset(self.traced, site))
        if not cause and not unsteady(self.traced):
            cause = cause_of_all(self.traced, mismatches, near=near)
        self.causes[site] = cause
        if cause.first and cause.first.owner:
            self.found[site] = cause.first
        if not cause:
            self.looks[site] = drawn(self.traced) or looks_of(self.traced, mismatches[0], cause)

    def is_own(self, site: Site, code: Site) -> bool:
        """Whether the cause is in what is the tap's alone, and not in code that others go on with."""
        return site not in self.found or self.found[site].owner not in (CALL, Site("", 0), self.traced.pairs[code])

    def _take_what_serves_most(self, sites: list[Site]) -> None:
        """Of mutations of torch's code, each of which gives what some taps show; all that one gives are one difference."""
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
    """Whose code it mutates, and how."""
    return found.owner, found.mutation


def shared_code(traced: Traced, site: Site) -> Site | None:
    """Whose code makes what a tap shows, and goes on to others; a call with taps inside of it is its own. A running statistic
    goes nowhere."""
    pairs, buffers = traced.pairs, traced.reference.buffers
    taps = [each for each in traced.normal_run.taps if each in pairs and each not in traced.valid]
    taps = [each for each in taps if pairs[each].path not in buffers]
    if site in taps:
        return code_of(traced, site)
    return site if site in {code_of(traced, each) for each in taps} else None
