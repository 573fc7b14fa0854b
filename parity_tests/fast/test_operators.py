"""The contract of every operator, on programs of every kind: what it proposes is plain data, with words, by the name of its
file, and never an error; and the search finds what it proposes, where that is what the port does.

An operator that raises is warned of, which is an error here.
"""

import json
import random
import re
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxformer.parity.diagnose import operators
from jaxformer.parity.diagnose.diagnosis import Candidate, reported
from jaxformer.parity.diagnose.mutation import Proposal
from jaxformer.parity.diagnose.registry import every
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.replays import replay_of
from jaxformer.parity.diagnose.search import Search, limit_of
from jaxformer.parity.diagnose.solve import off
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import plain
from jaxformer.parity.runs.session import Budget, Session
from jaxformer.parity.trace.call_sites import CALL, ArrayKey
from jaxformer.parity.trace.reference import run_torch
from parity_tests.support.helpers import noise, usually
from parity_tests.zoo.programs import PROGRAMS

SOURCES = [path.read_text("utf-8") for path in Path(operators.__file__).parent.glob("*.py")]
OPERATORS = {name for source in SOURCES for name in re.findall(r'(?:Change\(|name=)\s*f?"(\w+)\.', source)}
"""Operators by the names of their changes."""
SEEN = 1e-6
"""What a mutation changes at least, for a search to be asked for it: of less, rounding is a part."""
TRIES = 12
"""So many proposals of an operator are replayed, at most, until one changes the array."""
PATIENCE = 600.0
"""Seconds of a search, and replays in proportion: what a small budget leaves out is not the operator's fault."""
ELSEWHERE = {"dropout", "row_lengths"}
"""Operators without proposals here: they need draws, or jax's array from the start."""


@cache
def replay(program: str) -> Replay:
    """A program's call, to be mutated."""
    make, inputs = PROGRAMS[program]
    torch.manual_seed(0)
    reference = run_torch(excite(make().double().eval(), seed=1), inputs, watch=True, gradients=False)
    found = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    assert found.begins
    return found


@cache
def proposed(program: str) -> dict[str, list[Proposal]]:
    """What each operator proposes."""
    session, found = Session(), {}
    for proposal in every(replay(program), session):
        found.setdefault(proposal.mutation.change.operator, []).append(proposal)
    assert not session.refused
    return found


@pytest.mark.first(6)
@pytest.mark.parametrize("program", PROGRAMS)
def test_proposals_are_data(program):
    several = [proposal for those in proposed(program).values() for proposal in those]
    for proposal in several:
        mutation = fixed(proposal).mutation
        assert mutation.change.operator in OPERATORS
        torch_says, jax_says = mutation.words()
        assert torch_says
        assert jax_says
        assert hash(mutation) == hash(mutation.key) or mutation != mutation.key
        json.dumps(plain(reported(Candidate(mutation, 0.0))), allow_nan=False)
    assert len(several) > 50


def fixed(proposal: Proposal) -> Proposal:
    """With another number than torch's, where one is solved for."""
    return proposal.at(1.5 * proposal.free.start or 0.5) if proposal.free else proposal


def array(program: str, proposal: Proposal) -> np.ndarray | None:
    """What torch gives, so mutated; None where the code after the mutation refuses."""
    try:
        return replay(program).array(fixed(proposal).edit())
    except Exception:  # in ways of its own
        return None


def ports(program: str, operator: str, many: int) -> list[tuple[Proposal, np.ndarray]]:
    """Proposals by chance, and the arrays of ports that do so: those that differ from torch's. A number that is solved for
    gives any loss, which is one number."""
    torchs, those = replay(program).wanted, proposed(program)[operator]
    those = [each for each in those if torchs.size > 1 or not each.free]
    tried = random.Random(f"{program} {operator}").sample(those, min(TRIES, len(those)))
    arrays = ((each, array(program, each)) for each in tried)
    told = ((each, jax) for each, jax in arrays if jax is not None and jax.shape == torchs.shape)
    return [*islice(((each, jax) for each, jax in told if SEEN < off(jax, torchs) < np.inf), many)]


def is_found(program: str, proposal: Proposal, jax: np.ndarray) -> bool:
    """Whether a search gives the proposal, or another mutation that gives jax's array, when it is replayed apart."""
    session, here = Session(seconds=PATIENCE), replay(program)
    with Budget(session) as budget:
        told = Search(here, here.wanted, jax, budget).diagnosis().candidates
    known = {each.mutation.key: each for those in proposed(program).values() for each in those}
    return any(
        each.mutation.key == fixed(proposal).mutation.key
        or off(here.array(known[each.mutation.key].at(each.mutation.value or 0.0).edit()), jax) <= limit_of(here.wanted, jax)
        for each in told[:1]
    )


def not_found(program: str, operator: str, many: int = 1) -> list[str]:
    """Of an operator's proposals, those that a search does not find where a port does so."""
    return [str(fixed(each).mutation) for each, jax in ports(program, operator, many) if not is_found(program, each, jax)]


@pytest.mark.first(1)
@pytest.mark.parametrize("program", usually(PROGRAMS, "loss"))
def test_what_a_port_does_is_found(program):
    missed = {operator: found for operator in proposed(program) if (found := not_found(program, operator))}
    assert missed == {}


def test_what_no_mutation_gives_is_not_found():
    (proposal, jax), *_ = ports("waves", "rotary", 1)
    assert not is_found("waves", proposal, jax + noise(*jax.shape, seed=9))


@pytest.mark.parametrize("operator", ["arguments", "convolutions"])
def test_a_replay_leaves_torch_as_it_was(operator):
    """Statistics too, that torch writes anew where a batch norm trains."""
    here = replay("picture")
    for proposal in proposed("picture")[operator]:
        array("picture", proposal)
        assert off(here.array(), here.wanted) == 0, str(proposal.mutation.key)


def test_every_operator_proposes_something_here():
    assert OPERATORS - {operator for program in PROGRAMS for operator in proposed(program)} == ELSEWHERE
