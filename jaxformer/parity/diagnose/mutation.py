"""A mutation: one thing of torch's code that is otherwise, as data; what it does to a run, and what is said of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from string import Formatter
from typing import Any

from jaxformer.parity.diagnose.constants import say
from jaxformer.parity.report.data import Target

Edit = AbstractContextManager[Any]
"""Inside, torch runs with a mutation."""
Edits = Callable[..., Edit]
"""Without arguments, or of the number of a free parameter."""
Words = str | Mapping[str, str] | Callable[[dict[str, Any]], str]
"""A template with `{0}`, `{1}` for the targets or `{targets}` for all, `{value}` for the free parameter's number, and the
mutation's arguments by their names; such templates by the value of the argument `how`; or a function that gives one for the
arguments and `value`. Each is a verb phrase, which goes on after "torch" or "jax"."""
DELETES, USUAL, REPEATS = 0, 1, 2
"""How much a change supposes: nothing but that something is missing; anything else; that one thing is done twice."""


@dataclass(frozen=True)
class Change:
    """A kind of mutation, and the only place where it is put in words."""

    name: str
    """'axes.reduced': the operator that proposes it, and which of its changes it is."""
    jax: Words = field(compare=False)
    """What is done instead."""
    torch: Words = field(default="computes {0}", compare=False)
    """What torch does."""
    cost: int = field(default=USUAL, compare=False)
    subjects: int = field(default=1, compare=False)
    """How many of its targets, the first, torch's words are about."""
    reroutes: bool = field(default=False, compare=False)
    """Whether another array is taken: what is left out, or done with another number, may be told so once more."""

    @property
    def operator(self) -> str:
        """The operator's name."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Mutation:
    """One thing that is otherwise: equal mutations do the same in every run."""

    change: Change
    targets: tuple[Target, ...] = ()
    args: tuple[tuple[str, Any], ...] = ()
    """Plain values by their names."""
    value: float | None = None
    """Of its free parameter, once it is solved for; infinite where the parameter is left out."""

    @property
    def key(self) -> "Mutation":
        """The same without the number that was solved for."""
        return replace(self, value=None)

    @property
    def place(self) -> tuple[str, tuple[Target, ...]]:
        """What is mutated, an operation of the code whoever mutates it: of two that give the same there, one is told."""
        subjects = self.targets[: self.change.subjects]
        return "" if subjects and subjects[0].file else self.change.operator, subjects

    def words(self) -> tuple[str, str]:
        """What torch does, and what is done instead."""
        return self._said(self.change.torch), self._said(self.change.jax)

    def _said(self, words: Words) -> str:
        args = dict(self.args) | ({} if self.value is None else {"value": self.value})
        template = words(args) if callable(words) else words if isinstance(words, str) else words[args["how"]]
        labels = [target.label for target in self.targets]
        return FORMAT.vformat(template, labels, {"value": None, "targets": labels} | args)

    def __str__(self) -> str:
        return "torch {}; jax {}".format(*self.words())


class _Format(Formatter):
    """Numbers as code writes them; several values with commas, or as `and` and `axes` say."""

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
    """A number of a mutation that is solved for."""

    start: float
    """torch's."""
    sure: bool = False
    """Whether it is searched for even where a small change of it does not lead to jax's array."""
    seeds: tuple[float, ...] = ()
    """Where the search begins, if torch has no such number."""
    steps: tuple[float, ...] = ()
    """Where the number acts, as a threshold does at what it is compared with: anything between two of these is as much."""
    absent: bool = False
    """Whether None may stand for it, as infinity: that leaves it out, or is another number to the code that reads it."""


@dataclass(frozen=True)
class ByRow:
    """Ways among which each row of the array takes one."""

    ways: tuple[Callable[[], Edit], ...]
    """Each for all rows at once; the plain ones first."""
    chosen: "Callable[[tuple[int, ...]], Proposal]"
    """The mutation that each row's way makes together."""


@dataclass(frozen=True)
class Proposal:
    """A mutation to be tried, and what it does to a run."""

    mutation: Mutation
    edits: Edits
    free: Free | None = None
    near: tuple[Callable[[], Edit], ...] = ()
    """The same with numbers beside: where one gives as much, it acts in steps, as of what is rounded to whole numbers."""
    by_row: ByRow | None = None
    """What is solved for row by row; the mutation stands for whatever is found."""

    def edit(self) -> Edit:
        """Inside, torch is mutated; the number of a free parameter is known."""
        if self.free is None:
            return self.edits()
        value = self.mutation.value
        return self.edits(None if self.free.absent and value == float("inf") else value)

    def at(self, value: float) -> "Proposal":
        """With a number for its free parameter."""
        return replace(self, mutation=replace(self.mutation, value=value)) if self.free else self


def propose(
    change: Change,
    targets: str | Target | tuple[str | Target, ...],
    edits: Edits,
    free: Free | None = None,
    near: tuple[Callable[[], Edit], ...] = (),
    **args: Any,
) -> Proposal:
    """A change of these targets."""
    several = (targets,) if isinstance(targets, (str, Target)) else targets
    those = tuple(Target(each) if isinstance(each, str) else each for each in several)
    held = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in args.items())
    return Proposal(Mutation(change, those, held), edits, free, near)


@contextmanager
def together(*edits: Edit) -> Iterator[None]:
    """Inside, all of these apply."""
    with ExitStack() as stack:
        for each in edits:
            stack.enter_context(each)
        yield
