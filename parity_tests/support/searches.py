"""A search for causes in torch's code alone: another torch module is the port."""

import torch

from jaxformer.parity.diagnose.evidence import replay_of
from jaxformer.parity.diagnose.search import Search
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.session import Budget, Session
from jaxformer.parity.trace.call_sites import CALL, ArrayKey
from jaxformer.parity.trace.reference import run_torch


def cause_between(theirs, port, x):
    """The cause that is found where a port gives another output, in words; both modules get the same weights."""
    theirs, port = (excite(each.double().eval(), seed=1) for each in (theirs, port))
    reference = run_torch(theirs, (x,), watch=True, gradients=False)
    named = {name for name, _ in theirs.named_modules() if name}
    boundaries = frozenset(site for site in reference.calls if site.path in named)
    replay = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), boundaries, reference.output)
    assert replay
    assert replay.begins
    with torch.no_grad(), Budget(Session(seconds=600.0)) as budget:
        return str(Search(replay, replay.wanted, port(torch.from_numpy(x).double()).numpy(), budget).diagnosis())
