"""A comparison compiles a few programs, and not one for each operation of its own."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.numerics import float64
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap

pytestmark = pytest.mark.foreign

MOST = 8
"""The normal run and the patched one in float64, the output in float32; and five small ones of a fresh process."""


def port(weights, x):
    for name in ("0", "2"):
        x = tap(name, x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])
        x = jnp.tanh(x) if name == "0" else x
    return x


def compiled(caplog):
    """How many programs a clean comparison compiles."""
    theirs = excite(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).eval(), seed=0)
    weights = {name: jax.device_put(x.detach().numpy()) for name, x in theirs.state_dict().items()}
    jax.clear_caches()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        report = compare(theirs, weights, (np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32),), call_jax=port)
    assert report.status == "equal", str(report)
    return [record.getMessage() for record in caplog.records if "Finished XLA compilation" in record.getMessage()]


def test_a_clean_comparison_compiles_few_programs(caplog):
    programs = compiled(caplog)
    assert 3 <= len(programs) <= MOST, programs


def test_one_program_an_operation_is_noticed(monkeypatch, caplog):
    def with_operations(tree, dtype):
        for leaf in jax.tree.leaves(tree):
            jnp.square(leaf)
        return as_it_is(tree, dtype)

    as_it_is = float64.cast
    monkeypatch.setattr(float64, "cast", with_operations)
    assert len(compiled(caplog)) > MOST
