"""Whole numbers that fit in torch's 64 bits and not in the 32 of JAX."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report

pytestmark = pytest.mark.foreign

ROWS, WIDTH, OUT, FACTOR = 61, 6, 5, 1_000_003
IDS = np.random.default_rng(0).integers(0, 50_000, (3, 7))


class Hashed(torch.nn.Module):
    """Looks up pairs of ids, as n-gram embeddings do."""

    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(ROWS, WIDTH), torch.nn.Linear(WIDTH, OUT)

    def forward(self, ids):
        before = torch.nn.functional.pad(ids[:, :-1], (1, 0))
        return self.out(self.table((before * FACTOR + ids) % ROWS))


THEIRS = excite(Hashed(), seed=1).eval()
PARAMS = {name: tensor.detach().numpy() for name, tensor in THEIRS.named_parameters()}


def report_of(kind: type | None, ids: np.ndarray = IDS) -> Report:
    """Of a port that computes with this type, or with JAX's own."""

    def hashed(params, ids):
        ids = ids if kind is None else ids.astype(kind)
        before = jnp.pad(ids[:, :-1], ((0, 0), (1, 0)))
        rows = ((before * FACTOR + ids) % ROWS).astype(jnp.int32)
        return params["table.weight"][rows] @ params["out.weight"].T + params["out.bias"]

    return compare(THEIRS, PARAMS, (ids,), call_jax=hashed)


@pytest.mark.parametrize("kind", [jnp.int32, jnp.uint32])
def test_a_type_of_32_bits_is_the_cause(kind):
    report = report_of(kind)
    expected = (
        f"`before * FACTOR` (test_overflow.py:27) and 1 more in int64; jax computes it in {kind.__name__}, where it overflows"
    )
    assert expected in report.verdict, str(report)


def test_jax_s_own_type_is_told_where_float32_is_judged():
    report = report_of(None)
    assert report.verdict.startswith("DIFFERENT: float32"), str(report)
    assert "`before * FACTOR` (test_overflow.py:27) and 1 more: up to 4.9e+10, too large for int32" in report.verdict


def test_numbers_that_fit_are_equal():
    assert report_of(None, IDS % 1000).status == "equal"
