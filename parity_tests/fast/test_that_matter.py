"""Operations that an array depends on, and those that cannot change it."""

import numpy as np
import torch

from jaxformer.parity.diagnose.modules import replaced
from jaxformer.parity.diagnose.mutation import Change, Mutation
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.replays import replay_of
from jaxformer.parity.diagnose.slices import suspects_of
from jaxformer.parity.report.data import Target
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.reference import run_torch
from parity_tests.support.helpers import noise


class Torch(torch.nn.Module):
    def forward(self, x):
        unused = x.exp().mean()
        chosen = x.sin().topk(2).indices.flip(-1)
        kept = torch.zeros_like(x)
        kept[:, 1:] = x[:, 1:].cos()
        allowed = x.abs() > 0.1
        self.last = unused.sqrt()
        return torch.nn.functional.layer_norm(torch.where(allowed, kept, 3.0) + 2 * x, (7,)).gather(1, chosen)


def test_what_changes_nothing_is_left_out():
    reference = run_torch(Torch(), (noise(5, 7, seed=1),), watch=True, gradients=False)
    replay = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    assert replay.begins
    listed, left = ([each.name for each in those] for those in (replay.listed, replay.operations))
    assert {*listed} - {*left} == {"exp", "mean", "sqrt"}
    assert {"sin", "topk", "flip", "cos", "abs", "gt", "where", "mul", "layer_norm", "gather"} <= {*left}


def test_what_the_equal_numbers_depend_on_is_not_why():
    """jax has torch's first row: what is added after it may be why, and no function of all rows."""

    class Rows(torch.nn.Module):
        def forward(self, x):
            y = x.sin()
            return y.cosh() + torch.cat([torch.zeros(1, 7), y[1:].exp()])

    place, x = ArrayKey(CALL, "output", 0), noise(5, 7, seed=1)
    reference = run_torch(Rows(), (x,), watch=True, gradients=False)
    replay = replay_of(reference, CALL, place, frozenset(), reference.output)
    assert replay.begins
    jax = reference.output.copy()
    jax[1:] += 1.0
    replay.compared = {place: jax}
    assert [
        each.name for each in suspects_of(replay.array, replay.compared.get(replay.place), replay.wanted, replay.operations)
    ] == ["getitem", "exp"]
    replay.compared = {place: jax + 1.0}
    assert suspects_of(replay.array, replay.compared.get(replay.place), replay.wanted, replay.operations) == []


def test_settings_that_code_sets_by_itself_are_as_they_were_in_the_next_run():
    """A larger window ends the turning for good, as Swin's does."""

    class SetsItself(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.window, self.shift = 2, 1

        def forward(self, x):
            self.shift = 0 if self.window >= len(x) else self.shift
            return x.roll(self.shift, 0)

    reference = run_torch(SetsItself(), (noise(5, 7, seed=1),), watch=True, gradients=False)
    replay = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    assert replay.begins
    assert not np.array_equal(replay.array(replaced(replay.module, "window", 9)), reference.output)
    assert np.array_equal(replay.array(), reference.output)


class Once(torch.nn.Module):
    """A module that counts its runs, and has a child."""

    def __init__(self):
        super().__init__()
        self.inner, self.runs = torch.nn.Linear(3, 3), []

    def forward(self, x):
        self.runs.append(x)
        return self.inner(x).relu()


def test_code_that_is_open_runs_once_in_a_replay_to_the_end():
    """A second run would find its children's outputs used up, and mutated code would flow into all that follows."""
    model, x, root, child = Once().double(), torch.ones(2, 3, dtype=torch.float64), Site("", 0), Site("inner", 0)
    outputs, place = {ArrayKey(root, "output", 0): model(x).detach().numpy()}, ArrayKey(child, "inputs", 0)
    replay = Replay(model, lambda: model(x), CALL, place, frozenset({root, child}), x.numpy(), compared=outputs)
    assert replay.begins
    model.runs.clear()
    assert replay.everywhere().keys() == outputs.keys()
    assert len(model.runs) == 1


def test_a_mutation_of_one_layer_is_one_of_any():
    change = Change("children.left_out", "leaves it out", "applies {0}")
    first, other, later = (Mutation(change, (Target(f"blocks.{i}.{name}"),)) for i, name in ((0, "a"), (0, "b"), (12, "a")))
    assert first.in_any_layer == later.in_any_layer != other.in_any_layer
    lines = [Mutation(change, (Target("`x` (a.py:3)", "a.py", line),)) for line in (3, 4)]
    assert lines[0].in_any_layer != lines[1].in_any_layer
