"""The gate: the comparison is green without a bug and red with any of them."""

import jax
import pytest

from jaxformer.nn import feedforward, norms
from jaxformer.parity.checks import CHECKS
from jaxformer.parity.injections import Mutant, instead, patch
from jaxformer.parity.mutants import MUTANTS
from jaxformer.parity.mutations import CASES, checks, first_red, subject, try_mutant, verdict

pytestmark = pytest.mark.optimizers


@pytest.mark.parametrize("case", CASES)
def test_without_a_bug_the_comparison_is_green(case):
    with jax.disable_jit():
        assert first_red(checks(case), subject(case)) is None


def test_every_mutant_is_killed(capsys):
    outcomes = [try_mutant(mutant) for mutant in MUTANTS]
    with capsys.disabled():
        print(f"\n{verdict(outcomes)}")
    assert [outcome.mutant.name for outcome in outcomes if not outcome.killed] == []


def test_mutants_have_distinct_names():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_that_changes_nothing_survives():
    outcome = try_mutant(Mutant("the same GELU", patch(feedforward.ACTIVATIONS, gelu=lambda original: original)))
    assert outcome.reached
    assert not outcome.killed


def test_a_mutant_that_never_runs_is_no_kill():
    outcome = try_mutant(Mutant("RMSNorm in a LayerNorm model", instead(norms.FUNCTIONS, rms=lambda x, epsilon: x)))
    assert not outcome.reached
    assert not outcome.killed


def test_the_verdict_names_survivors():
    mutant = Mutant("the same GELU", patch(feedforward.ACTIVATIONS, gelu=lambda original: original))
    assert verdict([try_mutant(mutant)]) == "0/1 mutants killed; survivors: the same GELU"


def test_only_conversion_notices_a_dropped_key_bias():
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "key bias dropped"]
    assert try_mutant(mutant).killed_by == next(iter(CHECKS))
