"""The gate: the comparison is green without a bug, red with any of them, and names the module and the cause."""

from dataclasses import replace

import jax
import pytest

from jaxformer.evaluation.cases import CASES, CONFIGS
from jaxformer.evaluation.inject import Mutant, instead, patch
from jaxformer.evaluation.mutants import MUTANTS
from jaxformer.evaluation.outcome import Outcome, choice, first_failure, passed, table_row, verdict
from jaxformer.evaluation.run import false_alarm, try_mutant
from jaxformer.nn import feedforward, norms
from jaxformer.parity.diagnose.diagnosis import sentence
from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.data import Module, Stage
from jaxformer.parity.report.report import Report

pytestmark = pytest.mark.optimizers
GELU_AS_IT_IS = patch(feedforward.ACTIVATIONS, gelu=lambda original: original)
QUICK = Mutant(
    "quick",
    instead(feedforward.ACTIVATIONS, gelu=lambda x: x * jax.nn.sigmoid(1.702 * x)),
    "plain",
    "feed_forward",
    choice("activation", "activation=gelu, quick gelu"),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", CONFIGS)
def test_without_a_bug_the_comparison_is_green(case):
    assert false_alarm(case) is None


OF_MODELS = [mutant for mutant in MUTANTS if mutant.case in CONFIGS]


def one_of_each_operator() -> list[Mutant]:
    """The first mutant of each operator that names the cause of some in two small models: of ids and of pictures."""
    found: dict[str, Mutant] = {}
    for case in ("plain", "vit"):
        for mutant in OF_MODELS:
            if mutant.case == case:
                found.setdefault(mutant.cause.partition(".")[0], mutant)
    return [*found.values()]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one of each operator", "every"])
def test_mutants_of_models_are_killed_and_named(capsys, every):
    outcomes = [try_mutant(mutant) for mutant in (OF_MODELS if every else one_of_each_operator())]
    with capsys.disabled():
        print(f"\n{verdict(outcomes)}")
    assert [outcome.mutant.name for outcome in outcomes if not outcome.killed] == []
    assert [table_row(outcome) for outcome in outcomes if outcome.mutant.diverging and not outcome.module_right] == []
    assert [table_row(outcome) for outcome in outcomes if outcome.mutant.cause and not outcome.cause_right] == []
    assert passed(outcomes) or not every


def test_mutants_have_distinct_names_and_known_cases():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.case for mutant in MUTANTS} == set(CASES)


@pytest.mark.slow
def test_a_mutant_that_changes_nothing_survives():
    outcome = try_mutant(Mutant("the same GELU", GELU_AS_IT_IS))
    assert outcome.reached
    assert outcome.killed_by is None
    assert verdict([outcome]).endswith("0/1 mutants killed; survivors: the same GELU")
    assert "survived" in table_row(outcome)


@pytest.mark.slow
def test_a_mutant_that_never_runs_is_no_kill():
    outcome = try_mutant(Mutant("RMSNorm in a LayerNorm model", instead(norms.FUNCTIONS, rms=lambda x, epsilon: x), "plain"))
    assert not outcome.reached
    assert outcome.killed_by is None
    assert not replace(outcome, killed_by="A forward").killed
    assert "never ran" in table_row(outcome)


def test_a_mutant_that_breaks_down_is_no_kill():
    def broken(x: jax.Array) -> jax.Array:
        raise TypeError("not a number")

    outcome = try_mutant(Mutant("broken", instead(feedforward.ACTIVATIONS, gelu=broken)))
    assert outcome.reached
    assert not outcome.killed


@pytest.mark.slow
def test_only_conversion_notices_a_dropped_key_bias():
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "key bias dropped"]
    assert try_mutant(mutant).killed_by == "A weights"


@pytest.fixture(scope="module")
def quick() -> Outcome:
    return try_mutant(QUICK)


@pytest.mark.slow
def test_a_mutant_of_the_values_is_noticed_before_gradients_are_asked_for(quick):
    assert (quick.killed_by, quick.module_right, quick.cause_right) == ("A forward", True, True)
    assert quick.modules
    assert all(module.local_gradient is None for module in quick.modules)
    assert passed([quick])


@pytest.mark.parametrize(
    ("diverging", "cause", "module_right", "cause_right"),
    [
        ("feed_forward|norm", QUICK.cause, False, False),  # a module that is not named
        (r"blocks\.0\.feed_forward", QUICK.cause, False, False),  # one that is named too much
        ("attention", QUICK.cause, False, False),
        ("feed_forward", choice("activation", "activation=gelu, gelu by tanh"), True, False),
        ("feed_forward", "", True, False),
    ],
)
def test_what_is_declared_wrongly_is_not_right(quick, diverging, cause, module_right, cause_right):
    outcome = replace(quick, mutant=replace(QUICK, diverging=diverging, cause=cause))
    assert (outcome.module_right, outcome.cause_right) == (module_right, cause_right)
    assert not passed([outcome])
    assert ("WRONG" in table_row(outcome)) == (not module_right or not cause_right)


def judged(*causes: str) -> list[Outcome]:
    """One outcome for each cause, as if the module was right."""
    far = Error(1.0, 1.0)
    mutant, found = Mutant("made up", GELU_AS_IT_IS, "plain", "norm", "known.sentence says=right"), map(sentence, causes)
    modules = [Module("norm", "norm", far, far, "output", True, str(each), each.causes()) for each in found]
    return [Outcome(mutant, "A forward", True, [module]) for module in modules]


def test_four_causes_in_five_are_enough_and_fewer_are_not():
    assert passed(judged("right", "right", "right", "right", ""))
    assert not passed(judged("right", "right", "right", "", "wrong"))
    assert verdict(judged("right", "right", "right", "")).splitlines() == [
        "module named right: 4 of 4",
        "cause named right: 3 of 4 (75 %)",
        "4/4 mutants killed",
    ]


def test_a_whole_run_is_judged_by_its_words():
    mutant = Mutant("made up", GELU_AS_IT_IS, "sgd", says="torch mean; jax sum")
    outcomes = [Outcome(mutant, "A training", True, cause=said) for said in ("torch mean; jax sum", "torch mean", "")]
    assert [outcome.cause_right for outcome in outcomes] == [True, False, False]
    assert not Outcome(replace(mutant, says=""), "A training", True, cause="torch mean").cause_right


def test_a_run_that_fails_behind_the_weights_has_noticed_nothing():
    def report(*stages: tuple[str, str]) -> Report:
        return Report("A", 1e-13, [Stage(name, status, "") for name, status in stages])

    assert first_failure(report(("weights", "failed"))) == "A weights"
    assert first_failure(report(("weights", "equal"), ("forward", "failed"))) is None
    assert first_failure(report(("weights", "equal"), ("forward", "different"))) == "A forward"
    assert first_failure(report(("weights", "equal"))) is None
