"""What every operator proposes, on programs of every kind: plain data, with words, by the name of its file, and never an error.

An operator that raises is warned of, which is an error here.
"""

import json
from pathlib import Path

import pytest
import torch

from jaxformer.parity.capture.call_sites import CALL, ArrayKey
from jaxformer.parity.diagnose import operators
from jaxformer.parity.diagnose.diagnosis import Candidate, reported
from jaxformer.parity.diagnose.registry import every
from jaxformer.parity.diagnose.replays import replay_of
from jaxformer.parity.probe.parameters import excite
from jaxformer.parity.record.reference import run_torch
from jaxformer.parity.report.strict_json import plain
from jaxformer.parity.run.session import Session
from parity_tests.programs import PROGRAMS

FILES = {path.stem for path in Path(operators.__file__).parent.glob("*.py")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_proposals_are_data(program):
    make, inputs = PROGRAMS[program]
    torch.manual_seed(0)
    reference = run_torch(excite(make().double().eval(), seed=1), inputs, watch=True, gradients=False)
    replay = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    assert replay.begins
    session, count = Session(), 0
    for proposal in every(replay, session):
        mutation = (proposal.at(0.5) if proposal.free else proposal).mutation
        assert mutation.change.operator in FILES
        torch_says, jax_says = mutation.words()
        assert torch_says
        assert jax_says
        assert hash(mutation) == hash(mutation.key) or mutation != mutation.key
        json.dumps(plain(reported(Candidate(mutation, 0.0))), allow_nan=False)
        count += 1
    assert count > 50
    assert not session.refused
