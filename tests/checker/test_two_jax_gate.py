"""The gate of Linen beside NNX, in short: a planted bug; pairs without one are in test_two_jax.py."""

import pytest

from benchmarks import two_jax
from benchmarks.field_outcome import outcome

pytestmark = pytest.mark.usefixtures("untyped")


@pytest.mark.slow
def test_a_fresh_pair_is_equal_both_ways():
    reports = dict(two_jax.both_ways("encoder", two_jax.pair("encoder", excited=False), tier="A"))
    assert [report.exit_code for report in reports.values()] == [0, 0]


def test_there_are_five_kinds_and_five_bugs_of_each():
    assert {name: sum(bug.port == name for bug in two_jax.BUGS) for name in two_jax.KINDS} == dict.fromkeys(two_jax.KINDS, 5)


@pytest.mark.slow
def test_a_planted_bug_is_noticed_and_placed():
    bug = next(bug for bug in two_jax.BUGS if bug.name == "mask inverted")
    found = outcome(bug, *two_jax.compared_with(bug))
    assert found.blamed == [bug.module]
    assert found.is_named
    assert not found.innocents
