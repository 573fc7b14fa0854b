"""Patterns of causes: what is a pattern's, and what only sounds like it; those of both tables name changes that there are."""

import pkgutil
import shlex
from collections.abc import Iterator
from importlib import import_module

import pytest

from benchmarks.field_bugs import BUGS
from jaxformer.evaluation.mutants import MUTANTS
from jaxformer.evaluation.outcome import named, structure
from jaxformer.parity import diagnose
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis, plain
from jaxformer.parity.diagnose.mutation import Change, Mutation, Target
from jaxformer.parity.report.data import Cause


def cause(name: str, *targets: str, value: float | None = None, **args: object) -> Cause:
    mutation = Mutation(Change(name, "", torch=""), tuple(map(Target, targets)), tuple(args.items()), value)
    (found,) = Diagnosis((Candidate(mutation),)).causes()
    return found


BASE = cause("rotary.base", "rotary", own=10000.0, base=1000.0, by=0.0, empty="")
SUM = cause("sum.factors", input=(1.0, 0.0), wpe=(4.898979486, 1.0))
EPSILON = cause("pairs.epsilon", "`x[:, 0] + eps`", "`rsqrt(a | b)`", epsilon="1e-06", value=0.0100000004)


@pytest.mark.parametrize(
    ("pattern", "of"),
    [
        ("rotary.base own=10000 base=1000 by=0", BASE),
        ("rotary.base base=1000 *", BASE),
        ("rotary.base base=1000 * at=rot*", BASE),
        ("rotary.b* *", BASE),
        ("rotary.times | rotary.base base=1000 *", BASE),
        ("sum.factors 'input=1, 0' 'wpe=4.899, 1'", SUM),
        ("pairs.epsilon epsilon=1e-06 value=0.01", EPSILON),
        ("pairs.epsilon * 'at=`x[:, 0] + *' 'at=*(a | b)`'", EPSILON),
    ],
)
def test_a_pattern_fits(pattern, of):
    assert named(pattern, [of])
    assert named(pattern, [cause("masks.alone"), of])


@pytest.mark.parametrize(
    ("pattern", "of"),
    [
        ("rotary.base", BASE),  # it says more
        ("rotary.base base=1000", BASE),
        ("rotary.base base=100 *", BASE),
        ("rotary.base base=100? *", BASE),
        ("rotary.base base=1000 * at=q_proj", BASE),
        ("rotary.base base=1000 value=* *", BASE),  # of which it says nothing
        ("rotary base=1000 *", BASE),
        ("base=1000 *", cause("masks.alone", base=10)),
        ("sum.factors 'input=1, 0'", SUM),  # another sum is claimed too
        ("sum.factors 'wpe=4.899, 1' 'input=0, 1'", SUM),
        ("pairs.epsilon epsilon=1e-06 value=0.011", EPSILON),
        ("pairs.epsilon epsilon=1e-06 value=0.01 at=*eps*", EPSILON),  # it has one more place
        ("*", None),
    ],
)
def test_a_pattern_does_not_fit(pattern, of):
    assert not named(pattern, [of] if of else [])


def test_what_is_needed_together_is_there_together():
    both = "sum.factors 'input 1=0, 1' & sum.factors 'input 1=1, 0' at=*norm"
    output, inside = plain(SUMS, **{"input 1": (0.0, 1.0)}), plain(SUMS, **{"input 1": (1.0, 0.0)})
    found = Diagnosis(beside={"output": Diagnosis((output,)), "input of norm": Diagnosis((inside,))}).causes()
    assert named(both, found)
    assert not named(both, found[:1])
    assert not named(both, found[1:])
    assert not named(both, Diagnosis((output, inside)).causes())


SUMS = Change("sum.factors", "", torch="")


@pytest.mark.parametrize("of", [BASE, SUM, EPSILON])
def test_the_structure_of_a_cause_fits_it_alone(of):
    assert [named(structure(of), [other]) for other in (BASE, SUM, EPSILON)] == [other is of for other in (BASE, SUM, EPSILON)]


def changes(value: object) -> Iterator[str]:
    """The names of the changes in a module's variable."""
    if isinstance(value, Change):
        yield value.name
    elif isinstance(value, (dict, tuple, list)):
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from changes(each)


def test_patterns_name_changes_that_there_are():
    modules = [import_module(each.name) for each in pkgutil.walk_packages(diagnose.__path__, f"{diagnose.__name__}.")]
    known = {name for module in modules for value in vars(module).values() for name in changes(value)}
    tables = {bug.title: bug.cause for bug in BUGS} | {mutant.name: mutant.cause for mutant in MUTANTS if mutant.cause}
    words = {(where, word) for where, pattern in tables.items() for word in firsts(pattern)}
    assert {(where, name) for where, name in words if name not in known} == set()


def firsts(pattern: str) -> Iterator[str]:
    """The first word of each part of a pattern."""
    words = shlex.split(pattern)
    return (word for before, word in zip(["|", *words], words, strict=False) if before in ("|", "&"))
