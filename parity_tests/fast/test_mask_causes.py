"""Causes of masks, in words: torch's code that masks otherwise is its own port, in every way of writing a mask."""

import pytest
import torch

from jaxformer.parity.diagnose.evidence import replay_of
from jaxformer.parity.diagnose.search import Search
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.session import Budget, Session
from jaxformer.parity.trace.call_sites import CALL, ArrayKey
from jaxformer.parity.trace.reference import run_torch
from parity_tests.support.helpers import noise

LENGTH, WIDTH = 7, 6
ENDLESS = LENGTH
X = noise(2, LENGTH, WIDTH, seed=3)
APART = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)


def fused(q, k, shown):
    return torch.nn.functional.scaled_dot_product_attention(q, k, torch.eye(LENGTH, dtype=q.dtype), shown.bool())


WRITTEN = {
    "seen": lambda q, k, shown: torch.where(shown.bool(), q @ k.mT, -torch.inf).softmax(-1),
    "not seen": lambda q, k, shown: (q @ k.mT).masked_fill(~(shown == 1), -torch.inf).softmax(-1),
    "hidden": lambda q, k, shown: (q @ k.mT).masked_fill(shown == 0, torch.finfo(q.dtype).min).softmax(-1),
    "hidden, of every row": lambda q, k, shown: torch.where((shown == 0)[None], -1e9, q @ k.mT).softmax(-1),
    "switches": lambda q, k, shown: (q @ k.mT + (shown == 0).to(q.dtype) * -1e9).softmax(-1),
    "opposite switches": lambda q, k, shown: (q @ k.mT + (1 - (shown == 1).to(q.dtype)) * -1e9).softmax(-1),
    "fused": fused,
}
"""Weights of attention with a mask that is made in one operation, True where a key is seen or where it is hidden."""


class Attention(torch.nn.Module):
    """Attention whose mask shows the keys from `back` behind a query to `ahead` of it."""

    def __init__(self, written, back, ahead):
        super().__init__()
        self.mask = WRITTEN[written]
        self.shown = lambda: ((back >= APART) & (-ahead <= APART)).long()
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            shown = self.shown()
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.mask(q, k, shown) @ v


def cause_of(written, right, wrong):
    """The cause that is found where jax's window has other edges than torch's."""
    torchs, jaxs = (excite(Attention(written, *edges).double().eval(), seed=1) for edges in (right, wrong))
    reference = run_torch(torchs, (X,), watch=True, gradients=False)
    replay = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    assert replay
    assert replay.begins
    with torch.no_grad(), Budget(Session(seconds=600.0)) as budget:
        return str(Search(replay, replay.wanted, jaxs(torch.from_numpy(X).double()).numpy(), budget).diagnosis())


CAUSAL = (ENDLESS, 0)
CAUSES = {
    (CAUSAL, (ENDLESS, 1)): "jax lets every query see one key more ahead",
    (CAUSAL, (ENDLESS, 3)): "jax lets every query see 3 keys more ahead",
    (CAUSAL, (3, 0)): "jax has a window of 4 keys for none",
    ((3, 0), (5, 0)): "jax has a window of 6 keys for 4",
    ((2, 0), (2, 2)): "jax has the window ahead of a query too: |i - j| <= 2",
    ((3, 3), (2, 2)): "jax has |i - j| <= 2 for 3: keys so near are seen, behind and ahead",
    ((3, 3), (3, 0)): "jax masks causally too (`tril`)",
    ((3, 3), (3, 1)): "jax lets every query see 2 keys fewer ahead",
    ((0, ENDLESS), (2, ENDLESS)): "jax lets every query see 2 keys more behind",
}


@pytest.mark.parametrize(("edges", "cause"), CAUSES.items(), ids=str)
@pytest.mark.parametrize("written", WRITTEN)
def test_a_window_with_other_edges(written, edges, cause):
    assert cause in cause_of(written, *edges)
