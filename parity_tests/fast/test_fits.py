"""Several mutations that give the same arrays: no sentence of the report is about another one's place."""

from dataclasses import replace

from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis, plain
from jaxformer.parity.diagnose.mutation import DELETES, Change, Mutation, Target
from jaxformer.parity.diagnose.search import best_of

LEFT_OUT = Change("operations.left_out", "leaves out the first operand", cost=DELETES)
TWICE = Change("operations.twice", "does it twice")
NUMBER = Change("arguments.number", "has {value} for {was:g} there")
READS = Change("reroute.operand", "reads what {1} gives", reroutes=True)


def candidate(change: Change, *targets: str, value: float | None = None, **args: object) -> Candidate:
    return Candidate(Mutation(change, tuple(map(Target, targets)), tuple(args.items()), value), 1e-16)


def test_each_has_its_own_place():
    says = str(Diagnosis((candidate(TWICE, "`loss + more`"), candidate(NUMBER, "`0.1 * share`", value=0.2, was=0.1))))
    first = "torch computes `loss + more`; jax does it twice (residual 1e-16)"
    assert says == f"{first}, or the same: torch computes `0.1 * share`; jax has 0.2 for 0.1 there"


def test_what_is_left_out_is_not_told_once_more_as_another_array():
    left, again = candidate(LEFT_OUT, "`gate * y`"), candidate(READS, "`x + gate * y`", "mlp")
    assert str(Diagnosis((left, again))) == "torch computes `gate * y`; jax leaves out the first operand (residual 1e-16)"
    assert "or the same: torch computes `gate * y`; jax leaves out" in str(Diagnosis((again, left)))


def test_the_plainest_comes_first():
    """What leaves something out, then numbers of few digits; one of which others fit too is no fact."""
    left, half, odd = (
        candidate(LEFT_OUT, "`a * b`"),
        candidate(NUMBER, "`a * 1`", value=0.5, was=1.0),
        candidate(NUMBER, "`b * 1`", value=0.512, was=1.0),
    )
    assert best_of([odd, half, left]) == [left, half, odd]
    vague = replace(half, certainty="ambiguous")
    assert best_of([odd, vague]) == [replace(odd, certainty="ambiguous")]
    assert best_of([vague]) == [vague]
    assert "jax has 0.5 for 1 there, as it seems: others fit too" in str(Diagnosis((vague,)))


def test_a_mutation_is_data():
    one, other = candidate(NUMBER, "`a`", value=0.5, was=1.0).mutation, candidate(NUMBER, "`a`", was=1.0).mutation
    assert one != other
    assert one.key == other
    (cause,) = Diagnosis((candidate(NUMBER, "`a`", value=0.5, was=1.0),)).causes()
    assert (cause.operator, cause.change, cause.value, cause.args) == ("arguments", "arguments.number", 0.5, {"was": 1.0})
    assert cause.says == "torch computes `a`; jax has 0.5 for 1 there"


def test_what_arrays_tell_has_the_place_of_the_array():
    """Unless it is what the module gives."""
    shifted = plain(Change("ids.shifted", "ids +{by}", torch=""), by=1)

    def places(found: Diagnosis, *place: str) -> list[str]:
        return [target.label for cause in found.causes(*place) for target in cause.targets]

    assert places(Diagnosis((shifted,)), "input of embed.position") == ["input of embed.position"]
    assert places(Diagnosis((shifted,)), "output") == places(Diagnosis((shifted,))) == []
    assert places(Diagnosis((candidate(TWICE, "`a`"),)), "input of mlp") == ["`a`"]
    both = {"output": Diagnosis((shifted,)), "input of norm": Diagnosis((shifted,))}
    assert places(Diagnosis(beside=both), "input of mlp") == ["input of norm"]
