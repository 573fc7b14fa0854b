"""Mutations as data: one change of torch's code, the edit that applies it to a run, and the words that describe it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from string import Formatter
from typing import Any

from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.report.data import Target

Edit = AbstractContextManager[Any]
"""Context manager: torch runs with a mutation."""
Edits = Callable[..., Edit]
"""Function that makes an edit: called without arguments, or with the number of the free parameter."""
Words = str | Mapping[str, str] | Callable[[dict[str, Any]], str]
"""Template of a verb phrase that follows "torch" or "jax".

Its fields are `{0}`, `{1}` for the targets or `{targets}` for all of them, `{value}` for the number of the free parameter, and
the mutation's arguments by their names. Instead of one template: a mapping of templates by the value of the argument `how`, or
a function from the arguments and `value` to a template.
"""
NUMBERS = re.compile(r"\b\d+\b")
"""Numbers in a name, as that of a layer in `blocks.3.attention`."""
DELETES, USUAL, REPEATS, GIVEN = 0, 1, 2, 3
"""Costs of changes: something is missing, any other change, something is done twice or is added, what is given is another. Of
candidates that explain as much, the cheapest comes first."""


@dataclass(frozen=True)
class Change:
    """Kind of mutation, and the only place where it is put into words."""

    name: str
    """Name such as 'axes.reduced': the operator that proposes the change, and the change among those of the operator."""
    jax: Words = field(compare=False)
    """Words for the mutated code, as jax has it."""
    torch: Words = field(default="computes {0}", compare=False)
    """Words for torch's code as it is."""
    cost: int = field(default=USUAL, compare=False)
    subjects: int = field(default=1, compare=False)
    """Number of targets, counted from the first, that the words for torch are about."""
    reroutes: bool = field(default=False, compare=False)
    """True if the mutated code reads another array. Such a change often restates an omission or another number, so it is not
    listed beside one."""

    symptom: bool = field(default=False, compare=False)
    """True if the words say what is seen, so that another cause, which says why, is preferred."""

    @property
    def operator(self) -> str:
        """The operator's name."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Mutation:
    """One change of torch's code, as data; equal mutations have the same effect in every run."""

    change: Change
    targets: tuple[Target, ...] = ()
    args: tuple[tuple[str, Any], ...] = ()
    """Arguments of the change: names and plain values."""
    value: float | None = None
    """Number of the free parameter, once solved for; None before, infinite where the parameter is left out."""

    @property
    def key(self) -> "Mutation":
        """Mutation without the number that was solved for."""
        return replace(self, value=None)

    @property
    def in_any_layer(self) -> "Mutation":
        """Mutation without its number, and without the numbers of layers in the names of modules."""
        targets = tuple(each if each.file else replace(each, label=NUMBERS.sub("*", each.label)) for each in self.targets)
        args = tuple((name, NUMBERS.sub("*", value) if isinstance(value, str) else value) for name, value in self.args)
        return replace(self, targets=targets, args=args, value=None)

    @property
    def place(self) -> tuple[str, tuple[Target, ...]]:
        """Place that is mutated: operator and targets. All operators share the places of the code's operations (operator ''),
        since of several candidates at one place only one is reported."""
        subjects = self.targets[: self.change.subjects]
        return "" if subjects and subjects[0].file else self.change.operator, subjects

    def words(self) -> tuple[str, str]:
        """Words for torch's code, and for the mutated code."""
        return self._said(self.change.torch), self._said(self.change.jax)

    def _said(self, words: Words) -> str:
        args: dict[str, Any] = dict(self.args) | ({} if self.value is None else {"value": self.value})
        template = words(args) if callable(words) else words if isinstance(words, str) else words[args["how"]]
        labels = [target.label for target in self.targets]
        return FORMAT.vformat(template, labels, {"value": None, "targets": labels} | args)

    def __str__(self) -> str:
        return "torch {}; jax {}".format(*self.words())


class _Format(Formatter):
    """Formatter that writes numbers as code does, and several values with commas, or by the format `and` or `axes`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value == float("inf") and not format_spec:
            return "left out"
        if isinstance(value, (tuple, list)) and not format_spec:
            return ", ".join(map(str, value))
        if format_spec == "and":
            return " and ".join(map(str, value))
        if format_spec == "axes":
            return f"ax{'es' if len(value) > 1 else 'is'} {' and '.join(map(str, value))}"
        if isinstance(value, float) and not format_spec:
            return say(value)
        return super().format_field(value, format_spec)


FORMAT = _Format()


@dataclass(frozen=True)
class Free:
    """Free parameter of a mutation: a number that is solved for."""

    start: float
    """torch's number."""
    sure: bool = False
    """True to search for the number even if a small change of it does not lead towards jax's array."""
    seeds: tuple[float, ...] = ()
    """Numbers to start the search from, in place of multiples of torch's number."""
    steps: tuple[float, ...] = ()
    """Numbers at which the effect changes, as a threshold's does at the values that are compared with it. All numbers between
    two neighbours have the same effect."""
    absent: bool = False
    """True if the code may be given None instead, tried as infinity: the parameter is left out, or the code reads None as
    some other number."""


@dataclass(frozen=True)
class Proposal:
    """Mutation to be tried, and the edit that applies it to a run."""

    mutation: Mutation
    edits: Edits
    free: Free | None = None
    near: tuple[Callable[[], Edit], ...] = ()
    """Edits of the same mutation with neighbouring numbers. Where one of them gives jax's array too, the number acts in steps
    (it is rounded to an integer, say), and the candidate is ambiguous."""
    pushed: Edits | None = None
    """Edits of the same mutation with arrays pushed by float32's rounding, for arrays that jax's code may hold in float32."""
    parts: "tuple[Proposal, ...]" = ()
    """Proposals of the same mutation at single places, if it is one at several. Those that suffice are the cause."""
    merge: "Callable[[Sequence[Proposal]], Proposal]" = itemgetter(0)
    """merge(parts) -> the proposal of the mutation at all these places."""

    def edit(self) -> Edit:
        """Return the context manager in which torch is mutated; the number of a free parameter has to be known."""
        if self.free is None:
            return self.edits()
        value = self.mutation.value
        return self.edits(None if self.free.absent and value == float("inf") else value)

    def at(self, value: float) -> "Proposal":
        """Return the proposal with a number for its free parameter."""
        return replace(self, mutation=replace(self.mutation, value=value)) if self.free else self


def propose(
    change: Change,
    targets: str | Target | tuple[str | Target, ...],
    edits: Edits,
    free: Free | None = None,
    near: tuple[Callable[[], Edit], ...] = (),
    **args: Any,
) -> Proposal:
    """Build a proposal of a change of these targets; `args` are the mutation's arguments."""
    several = (targets,) if isinstance(targets, (str, Target)) else targets
    those = tuple(Target(each) if isinstance(each, str) else each for each in several)
    held = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in args.items())
    return Proposal(Mutation(change, those, held), edits, free, near)


def grouped(several: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Group by a key, in order."""
    found: dict[Any, list[Any]] = {}
    for each in several:
        found.setdefault(key(each), []).append(each)
    return found


def words_of(ways: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    """Words of each way in a table of words and functions."""
    return {how: words for how, (words, _) in ways.items()}


@contextmanager
def together(*edits: Edit) -> Iterator[None]:
    """Run torch with several edits at once."""
    with ExitStack() as stack:
        for each in edits:
            stack.enter_context(each)
        yield
