"""Causes of masks, in words: torch's code that masks otherwise is its own port, in every way of writing a mask."""

import numpy as np
import pytest
import torch

from jaxformer.parity.diagnose.other_masks import windows
from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between

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


CAUSAL = (ENDLESS, 0)
CAUSES = {
    (CAUSAL, (ENDLESS, 1)): "jax lets every query see one key more ahead",
    (CAUSAL, (ENDLESS, 3)): "jax lets every query see 3 keys more ahead",
    (CAUSAL, (ENDLESS, -1)): "jax hides the query's own key too (`tril(k=-1)`)",
    (CAUSAL, (3, 0)): "jax has a window of 4 keys for none",
    ((3, 0), (5, 0)): "jax has a window of 6 keys for 4",
    ((2, 0), (2, 2)): "jax has the window ahead of a query too: |i - j| <= 2",
    ((3, 3), (2, 2)): "jax has |i - j| <= 2 for 3: keys so near are seen, behind and ahead",
    ((3, 3), (3, 0)): "jax masks causally too (`tril`)",
    ((3, 3), (3, 1)): "jax lets every query see 2 keys fewer ahead",
    ((3, ENDLESS), (1, ENDLESS)): "jax has a window of 2 keys for 4",
    ((0, ENDLESS), (2, ENDLESS)): "jax lets every query see 2 keys more behind",
}


@pytest.mark.parametrize(("edges", "cause"), CAUSES.items(), ids=str)
@pytest.mark.parametrize("written", WRITTEN)
def test_a_window_with_other_edges(written, edges, cause):
    torchs, jaxs = (Attention(written, *each) for each in edges)
    assert cause in cause_between(torchs, jaxs, X)


EMPTY = {
    "hidden": "where no key is left, it attends to all alike (",
    "switches": "where no key is left, it attends as without a mask (",
    "seen": "where no key is left, it gives NaN (",
}


@pytest.mark.parametrize("written", EMPTY)
def test_a_row_without_keys(written):
    torchs, jaxs = Attention("hidden" if written == "seen" else "seen", *CAUSAL), Attention(written, ENDLESS, -1)
    assert f"jax hides the query's own key too (`tril(k=-1)`); {EMPTY[written]}" in cause_between(torchs, jaxs, X)


class Twice(Attention):
    """A mask of the module's own, and one more behind it: both hide what comes later."""

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            shown = self.shown().bool()
            more = torch.zeros_like(APART, dtype=x.dtype).masked_fill(~shown & (APART < 0), -1e30)
        q, k, v = (each(x).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        scores = torch.where(shown, q @ k.mT, -1e30)
        return ((scores + more).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_key_that_two_masks_hide():
    torchs, jaxs = Twice("seen", 2, 0), Twice("seen", 2, 1)
    says = cause_between(torchs, jaxs, X)
    assert says.startswith("torch applies the masks of `torch.where(shown, q @ k.mT, -1e30)`")
    assert "one after another; jax lets every query see one key more ahead (" in says


KEY = torch.arange(LENGTH)
BLOCKS = (KEY // 3)[:, None] - KEY // 3
NOT_SLIDING = {
    "jax has blocks of 3 keys for the window: a query sees those of its own block (": BLOCKS == 0,
    "jax has blocks of 3 keys for the window: a query sees those of its own block and of the one before": BLOCKS <= 1,
    "jax shows 2 keys at the beginning in every window too (attention sinks)": (APART <= 2) | (KEY < 2),
}


@pytest.mark.parametrize("cause", NOT_SLIDING)
def test_windows_that_do_not_slide(cause):
    torchs, jaxs = Attention("seen", 2, 0), Attention("seen", 2, 0)
    jaxs.shown = lambda: (NOT_SLIDING[cause] & (APART >= 0)).long()
    assert cause in cause_between(torchs, jaxs, X)


def test_a_mask_that_shows_later_keys_alone_has_no_blocks():
    assert not any(how.startswith("blocks") for how, *_ in windows(APART < 0))


class Handed(torch.nn.Module):
    """A mask that is made around attention, and handed to it."""

    def __init__(self, furthest):
        super().__init__()
        self.attention, self.furthest = Masked(), lambda: furthest

    def forward(self, x):
        return x + self.attention(x, APART.abs() <= self.furthest())


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, mask):
        return WRITTEN["seen"](self.q(x), self.k(x), mask) @ self.v(x)


def test_a_mask_that_a_module_is_given():
    """It may be right in the module, and wrong where it is made."""
    words = "jax has |i - j| <= 2 for 3: keys so near are seen, behind and ahead"
    inner = cause_between(Handed(3), Handed(2), X, "attention")
    assert f"{words} (or is given such a mask: masks of booleans are not compared) (residual" in inner


class Prefixed(Attention):
    """Causal attention that also sees every key of a prefix, of its own length in each row."""

    def __init__(self, *lengths):
        super().__init__("seen", *CAUSAL)
        self.shown = lambda: torch.tensor(lengths)

    def forward(self, x):
        prefix = self.shown()[:, None, None] > KEY
        return self.mask(self.q(x), self.k(x), (APART >= 0) | prefix) @ self.v(x)


def test_a_mask_that_shows_more_keys_may_be_left_out():
    says = cause_between(Prefixed(3, 5), Prefixed(0, 0), X)
    assert says.startswith("torch applies the mask of `self.shown()[:, None, None] > KEY`")
    assert "jax does not apply it (" in says


class Padded(torch.nn.Module):
    """Attention to the tokens that are not padding."""

    def __init__(self, hidden):
        super().__init__()
        self.embed, self.attention, self.hidden = torch.nn.Embedding(9, WIDTH), Masked(), lambda: hidden

    def forward(self, ids):
        seen = (ids != self.hidden()) if isinstance(self.hidden(), int) else torch.arange(LENGTH).expand_as(ids) != 0
        return self.attention(self.embed(ids), seen[:, None] & (APART >= -1))


@pytest.mark.parametrize(
    ("hidden", "cause"),
    [(0, "jax hides the keys whose id is 0, in input 0 of the call"), ("first", "jax hides the first key")],
)
def test_padding_by_another_id(hidden, cause):
    ids = np.array([[3, 0, 5, 2, 2, 2, 2], [1, 7, 0, 8, 4, 2, 2], [5, 6, 7, 8, 0, 3, 1]])
    assert cause in cause_between(Padded(2), Padded(hidden), ids, "attention")


class Sinks(Masked):
    """Causal attention to a window of keys, and to the first one."""

    def forward(self, x):
        return super().forward(x, (APART >= 0) & ((APART < 3) | self.first()))

    def first(self):
        return torch.arange(LENGTH)[None] < 1


class WithoutSinks(Sinks):
    def first(self):
        return torch.zeros(1, LENGTH, dtype=torch.bool)


def test_a_mask_that_shows_more_keys_is_left_out_before_another_one_is_changed():
    """A window in place of causality would give the same, but torch has that window."""
    says = cause_between(Sinks(), WithoutSinks(), X)
    assert says.startswith("torch applies the mask of `torch.arange(LENGTH)[None] < 1`")
    assert "jax does not apply it (" in says
