"""The gate's other half: bugs of training and decoding, which are compared as whole runs and name no module."""

import pytest

from jaxformer.evaluation.cases import DECODINGS, TRAININGS
from jaxformer.evaluation.mutants import MUTANTS
from jaxformer.evaluation.outcome import table_row, verdict
from jaxformer.evaluation.run import false_alarm, try_mutant

pytestmark = pytest.mark.optimizers
CASES = (*TRAININGS, *DECODINGS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_without_a_bug_the_comparison_is_green(case):
    assert false_alarm(case) is None


OF_RUNS = [mutant for mutant in MUTANTS if mutant.case in CASES]
TWO = [mutant for mutant in OF_RUNS if mutant.case == "sgd"][-2:]


@pytest.mark.parametrize("mutants", [TWO, pytest.param(OF_RUNS, marks=pytest.mark.slow)], ids=["two", "every"])
def test_mutants_of_training_and_decoding_are_killed(capsys, mutants):
    outcomes = [try_mutant(mutant) for mutant in mutants]
    with capsys.disabled():
        print(f"\n{verdict(outcomes).splitlines()[-1]}")
    assert [outcome.mutant.name for outcome in outcomes if not outcome.killed] == []
    assert not any(outcome.diverging or outcome.mutant.diverging for outcome in outcomes)
    assert [table_row(outcome) for outcome in outcomes if outcome.mutant.says and not outcome.cause_right] == []
