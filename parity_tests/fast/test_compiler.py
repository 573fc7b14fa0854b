"""Programs that XLA computes wrong, as correct ports: the port is equal, and the compiler is told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import jaxformer.parity.attribute.low_precision as low_precision
import jaxformer.parity.trace.suspect_operations as suspect_operations
from jaxformer.parity.compare import compare
from jaxformer.parity.recorded import check, dump
from jaxformer.parity.trace import programs
from jaxformer.runtime import known_programs
from jaxformer.runtime.xla_options import FAULTS, PRODUCTS_ALONE, known

pytestmark = pytest.mark.foreign
IN_USE = "rows" in {fault.name for fault in suspect_operations.faults()}
affected = pytest.mark.skipif(not IN_USE, reason="this jaxlib computes them right")
VALUES = ("weights", "forward", "local")
rng = np.random.default_rng(0)


class Lengths(nn.Module):
    """Squared lengths of rows after a product."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor(rng.standard_normal((3, 3)), dtype=torch.float32))

    def forward(self, x):
        return ((x @ self.matrix.T) ** 2).sum(-1)


def lengths(parameters, x):
    return jax.vmap(lambda row: jnp.sum((parameters["matrix"] @ row) ** 2))(x)


class Product(nn.Module):
    """A sum over one axis of a product of rank 7, with an axis of length 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(rng.standard_normal((3, 1, 2, 2, 8, 8, 8)), dtype=torch.float32))

    def forward(self, x):
        return (x * self.weight).sum(3)


def product(parameters, x):
    return jnp.sum(x * parameters["weight"], axis=3)


def compared(model, call, x, **options):
    parameters = {name: jnp.asarray(value.detach().numpy()) for name, value in model.named_parameters()}
    return compare(model, parameters, (x.astype(np.float32),), call_jax=call, checks=VALUES, **options)


def warning(report):
    return next((stage.says for stage in report.stages if stage.status == "warning"), "")


@affected
@pytest.mark.parametrize("n", [pytest.param(16_385, marks=pytest.mark.slow), 40_001])
def test_wrong_sums_are_the_compilers(n):
    report = compared(Lengths(), lengths, rng.standard_normal((n, 3)))
    assert report.exit_code == 0, report
    kind = "float64" if n < 32_768 else "float32"  # in which 128 KiB hold as many sums
    assert "under jax.jit the output is off by relL2 " in warning(report)
    assert f" in {kind} (" in warning(report)
    assert "reduce_sum in" in warning(report)
    assert "test_compiler.py" in warning(report)
    assert "(jax#39103)" in warning(report)
    assert report.verdict.startswith("EQUAL: ")
    assert report.verdict.endswith(warning(report))


@affected
def test_a_crash_is_told_and_survived():
    report = compared(Product(), product, rng.standard_normal((3, 1, 2, 2, 8, 8, 8)))
    assert report.exit_code == 0, report
    assert "under jax.jit the program ends the process in float32 (SIGSEGV)" in warning(report)
    assert "(jax#40412 or jax#39257)" in warning(report)


@pytest.mark.slow
@affected
def test_a_bug_of_the_ports_stays_one():
    """Beside the compiler's: the module is accused, and both are told."""
    report = compared(Lengths(), lambda p, x: 2 * lengths(p, x), rng.standard_normal((40_001, 3)))
    assert report.exit_code == 1
    assert report.verdict.startswith("DIFFERENT: (call): ")
    assert "jax#39103" in report.verdict


@pytest.mark.slow
@affected
def test_a_dump_is_checked_in_the_same_way(tmp_path):
    model, x = Product(), rng.standard_normal((3, 1, 2, 2, 8, 8, 8)).astype(np.float32)
    dump(model, (x,), tmp_path / "dump", checks=VALUES)
    report = check(tmp_path / "dump", {"weight": jnp.asarray(model.weight.detach().numpy())}, call_jax=product, checks=VALUES)
    assert report.exit_code == 0
    assert "(SIGSEGV)" in report.verdict


@pytest.mark.skipif(not suspect_operations.faults(), reason="this jaxlib computes it right")
@pytest.mark.parametrize("loops", [False, True])
def test_operations_that_run_by_themselves_are_right(loops):
    """As in a loop that is not traced, or where none is compiled."""
    program, given, wanted = known_programs.dilated()

    def run(x):
        return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, program(x)), (0, wanted))[1] if loops else program(x)

    with programs.one_by_one():
        found, _ = programs.run_once(run, *given)
    np.testing.assert_array_equal(found, wanted)
    with jax.disable_jit():  # which the comparison does not do alone: they are wrong so
        assert not np.array_equal(run(*map(jnp.asarray, given)), wanted)


def test_few_rows_are_not_suspected():
    report = compared(Lengths(), lengths, rng.standard_normal((50, 3)))
    assert report.verdict == "EQUAL: weights, forward, float32 (tier B)"


@pytest.mark.slow
def test_what_is_suspected_and_right_is_not_told(monkeypatch):
    """A fault in the table that this program does not meet: it is tried, and nothing is said."""
    always = FAULTS[0].__class__("rows", "", "jax#1", (0,), None, lambda operation: operation.name == "reduce_sum")
    monkeypatch.setattr(suspect_operations, "faults", lambda: (always,))
    assert compared(Lengths(), lengths, rng.standard_normal((50, 3))).verdict == "EQUAL: weights, forward, float32 (tier B)"


@affected
def test_a_fault_that_no_table_tells(monkeypatch):
    """The comparison's own programs are computed wrong: the port is judged by its operations, one by one."""
    monkeypatch.setattr(programs, "exact", lambda options=PRODUCTS_ALONE: known(options))
    monkeypatch.setattr(suspect_operations, "faults", tuple)
    report = compared(Lengths(), lengths, rng.standard_normal((16_385, 3)))
    assert report.exit_code == 0, report
    assert warning(report).startswith("XLA, not the port: compiled, the output is off by relL2 ")
    assert "from the same operations one by one" in report.verdict


def test_a_fault_in_float32_alone(monkeypatch):
    """As above, where only the program in float32 is wrong."""
    right = low_precision.run_once

    def wrong(f, *given, **how):
        output, why = right(f, *given, **how)
        return (output * 1.001 if programs.compiles() else output), why

    monkeypatch.setattr(low_precision, "run_once", wrong)
    report = compared(Lengths(), lengths, rng.standard_normal((50, 3)))
    assert report.exit_code == 0, report
    assert "XLA, not the port: output in float32, compiled: error" in next(s.says for s in report.stages if s.name == "float32")
