"""Repairs of a port's source that `benchmarks.agents` makes: which a report calls for first."""

import pytest

from benchmarks.repairs import Source

TEXT = """
class Norm:
    def __call__(self, x):
        return x / (x.var() + 1e-6) ** 0.5

class Layer:
    def __init__(self):
        self.act, self.norm = ACT["gelu"], Norm()

    def __call__(self, x):
        residual = x
        query = rotated(self.query(x))
        key = self.key(x)
        x = self.act(query @ key) * 0.5
        return x

def unrelated(x):
    return (x + 1e-6) * 0.5
"""
SOURCE = Source(TEXT)
CAUSES = {
    "formula.choices": ({"formula": "norm", "epsilon": ["1e-05", "1e-06"]}, "Norm", "x.var() + 1e-05"),
    "attention.solved": ({"how": "scaled"}, "Layer", "        x = self.act(query @ key)\n"),
    "rotary.unrotated": ({}, "Layer", "key = rotated(self.key(x))"),
    "sum.factors": ({"input": [1.0, 0.0]}, "Layer", "+ residual"),
}


def report(change, args, where):
    """What the JSON of a report says of one diverging module, whose code begins at the call of this class."""
    lines = TEXT.splitlines()
    line = lines.index("    def __call__(self, x):", lines.index(f"class {where}:")) + 1
    cause = {"change": change, "args": args, "value": None}
    return {"modules": [{"diverging": True, "causes": [cause], "source": f"port.py:{line}"}]}


@pytest.mark.parametrize("change", CAUSES)
def test_what_a_cause_calls_for_comes_first(change):
    args, where, wanted = CAUSES[change]
    repairs = SOURCE.ordered(report(change, args, where))
    first = next(i for i, each in enumerate(repairs) if wanted in each.applied(TEXT))
    assert first < 10
    drawn = [each.applied(TEXT) for each in SOURCE.drawn(0)]
    assert len(drawn) > 5 * (first + 1)


def test_a_word_is_replaced_by_the_one_that_torch_has():
    repairs = SOURCE.ordered(report("formula.choices", {"activation": ["relu", "gelu"]}, "Layer"))
    assert "ACT['relu']" in repairs[0].applied(TEXT)


def test_code_that_the_module_does_not_reach_is_left_alone():
    repairs = SOURCE.ordered(report("formula.choices", {"epsilon": ["1e-05", "1e-06"]}, "Layer"))
    tail = TEXT[TEXT.index("def unrelated") :]
    assert repairs
    assert all(each.applied(TEXT).endswith(tail) for each in repairs)
    assert SOURCE.ordered({"modules": []}) == []
