"""What is no rule, no family and no model is refused in one line, where it is given."""

from typing import Any

import numpy as np
import pytest
import torch

import jaxformer as jf
from jaxformer.convert.registry import FAMILIES
from jaxformer.errors import JaxformerError

CONFIG = jf.GPTConfig(vocab_size=5, context=3, d_model=4, n_layers=1, n_heads=2, d_ff=3)
MODEL = jf.abstract(CONFIG)
LINEAR = torch.nn.Linear(2, 2)
GIVE_A_MODEL = "give a JAX model, or jaxformer.abstract(config)"
KNOWN = ", ".join(FAMILIES)

REFUSED: dict[str, tuple[Any, str]] = {
    "a part that is not there": (lambda: jf.Part(3, of=3), "number = 3 is out of range; give an integer from 0 to 2"),
    "a part by name": (lambda: jf.Part("a", of=3), "number = 'a' is not a whole number; give an integer of at least 0"),
    "a part of nothing": (lambda: jf.Part(0, of=0), "of = 0 is out of range; give an integer from 1 to 2147483647"),
    "one string to join": (lambda: jf.Join("q"), "names = 'q' of a Join; give a tuple of strings, as ('q', 'k', 'v')"),
    "nothing to join": (lambda: jf.Join(()), "names = () of a Join; give a tuple of strings, as ('q', 'k', 'v')"),
    "shares of others": (
        lambda: jf.Join(("q", "k"), shares=(1,)),
        "a Join has 2 names and 1 shares; give one to each name",
    ),
    "a rule of numbers": (
        lambda: jf.Rule(5, "a"),
        "the jax name of a Rule = 5 is an int; give the last parts of its name, as 'up.kernel'",
    ),
    "a rule to a number": (
        lambda: jf.Rule("a", 5),
        "the torch name of a Rule = 5 is an int; give the last parts of its name, as 'fc1.weight'",
    ),
    "a layout that is none": (
        lambda: jf.Rule("a", "b", 5),
        "layout of the rule of a = 5 is an int; give 'same', 'transposed' or axes by name",
    ),
    "a part that is none": (lambda: jf.Rule("a", "b", part=5), "part of the rule of a = 5 is an int; give a Part"),
    "a join that is none": (
        lambda: jf.Rule("a", "b{part}", join=("q", "k")),
        "join of the rule of a is a tuple; give a Join, or None",
    ),
    "a family without rules": (lambda: jf.Family("f", {}, 5), "rules of family f = 5 is an int; give a tuple of Rules"),
    "rules that are none": (lambda: jf.Family("f", {}, ("a",)), "a rule of family f = 'a' is a str; give a Rule"),
    "stacks that are none": (lambda: jf.Family("f", 5, ()), "stacks of family f = 5 is an int; give a dict of names"),
    "a family without a name": (lambda: jf.Family(5, {}, ()), "the name of a Family = 5 is an int; give a string"),
    "a module by number": (
        lambda: jf.module_rules("a", 5),
        "the name of a module = 5 is an int; give a string; '' is the model itself",
    ),
    "two projections": (
        lambda: jf.projection_rules("a", "b", ("q", "k"), "o"),
        "names = ('q', 'k') of the projections are 2; give three: of query, key and value",
    ),
    "projections by number": (
        lambda: jf.projection_rules("a", "b", 5, "o"),
        "names = 5 is an int; give torch's names of query, key and value",
    ),
    "within no family": (lambda: jf.within(5, "a.", {}), f"family is an int; give a Family, or one of {KNOWN}"),
    "within a number": (
        lambda: jf.within("gpt2", 5, {}),
        "start = 5 is an int; give what the torch names begin with, as 'transformer.'",
    ),
    "beside a number": (
        lambda: jf.within("gpt2", "a.", 5),
        "beside = 5 is an int; give a dict: what JAX names begin with -> what torch's do",
    ),
    "a family in capitals": (
        lambda: jf.to_torch(MODEL, "GPT2"),
        "family = 'GPT2' is not known; did you mean 'gpt2'? docs/models.md lists all",
    ),
    "the family of another model": (
        lambda: jf.from_torch({}, MODEL, "bert"),
        "head.kernel, norm.bias, norm.scale of the GPT have no rule in family bert",
    ),
    "no model to write": (lambda: jf.to_torch(None), f"the model is a NoneType; {GIVE_A_MODEL}"),
    "torch's model to write": (lambda: jf.to_torch(LINEAR), f"the model is a Linear; {GIVE_A_MODEL}"),
    "a configuration to write": (lambda: jf.to_torch(CONFIG), f"the model is a GPTConfig; {GIVE_A_MODEL}"),
    "a number to fill": (lambda: jf.from_torch({}, 5, "gpt2"), f"the model is an int; {GIVE_A_MODEL}"),
    "models in the other order": (lambda: jf.from_torch(MODEL, LINEAR, "gpt2"), f"the model is a Linear; {GIVE_A_MODEL}"),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, said = REFUSED[case]
    with pytest.raises(JaxformerError) as caught:
        call()
    assert str(caught.value) == said


def test_a_family_within_another_goes_by_its_name():
    assert jf.within("gpt2", "net.", {"out.": "head."}) == jf.within(FAMILIES["gpt2"], "net.", {"out.": "head."})


def test_a_part_counts_axes_from_the_end_too():
    assert np.array_equal(jf.Part(1, of=2, axis=-1).cut(np.array([[1, 2]])), [[2]])
