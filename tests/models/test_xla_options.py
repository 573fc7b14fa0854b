"""Compile options that this jaxlib knows, and what is switched off of what it computes wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.cli import doctor
from jaxformer.runtime import known_programs, xla_options
from jaxformer.runtime.jit import jit
from jaxformer.runtime.known_programs import PROGRAMS
from jaxformer.runtime.xla_options import FAULTS, NO_YNNPACK, PRODUCTS_ALONE, cure, exact, faults, known

OF = {fault.name: fault for fault in FAULTS}


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    """The flags of the tests name nothing of YNNPACK's."""
    monkeypatch.setenv("XLA_FLAGS", "")


def test_options_that_this_jaxlib_does_not_know_are_left_out():
    assert known({"xla_none_of_this": True, "xla_backend_optimization_level": 0}) == {"xla_backend_optimization_level": 0}


def test_a_value_that_an_option_does_not_take_is_an_error():
    with pytest.raises(Exception, match="xla_backend_optimization_level"):
        known({"xla_backend_optimization_level": "high"})


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ((0, 8, 0), set()),
        ((0, 10, 1), set()),
        ((0, 10, 2), {"rows", "rank7", "rank8", "dilated"}),
        ((0, 11, 0), {"rank8", "dilated"}),
        ((0, 12, 0, 1), {"dilated"}),
        ((0, 13, 0), {"dilated"}),
    ],
)
def test_faults_are_those_of_a_release(release, names):
    assert {fault.name for fault in faults(release)} == names


def test_a_user_who_names_the_kernels_keeps_them(monkeypatch):
    monkeypatch.setattr(xla_options, "jaxlib_release", lambda: (0, 10, 2))
    assert cure() == known(PRODUCTS_ALONE)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=reduce")
    assert cure() == {}
    assert exact() == known(NO_YNNPACK)


def test_another_platform_has_no_faults(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert faults((0, 10, 2)) == ()
    assert exact() == {}


def test_every_fault_has_its_program_and_a_report():
    assert set(PROGRAMS) == set(OF)
    assert OF["rows"].url == "https://github.com/jax-ml/jax/issues/39103"
    assert OF["dilated"].url == "https://github.com/openxla/xla/issues/48714"


@pytest.mark.parametrize("name", ["rows", "dilated"])
def test_the_cure_cures(name):
    """The program is wrong without it, wherever this jaxlib has the fault."""
    with jax.enable_x64(True):
        program, given, wanted = PROGRAMS[name]()
        np.testing.assert_allclose(jit(program)(*given), wanted, rtol=1e-5)
        if OF[name] in faults():
            assert not np.allclose(jax.jit(program)(*given), wanted, rtol=1e-5)


def test_a_cured_function_is_traced_inside_of_others():
    total = jit(lambda x, n: (x**n).sum(), static_argnums=1)
    x = jnp.arange(4.0)
    assert total(x, 2) == jax.jit(lambda x: total(x, 2))(x) == 14
    np.testing.assert_array_equal(jax.grad(total)(x, 2), 2 * x)
    np.testing.assert_array_equal(jax.vmap(total, (0, None))(x[None], 2), [14])
    assert "sum" in total.lower(x, 2).as_text() or "reduce" in total.lower(x, 2).as_text()
    assert total._cache_size() == 1


def few(monkeypatch, *names):
    monkeypatch.setattr(known_programs, "FAULTS", tuple(OF[name] for name in names))


@pytest.mark.slow
def test_the_doctor_tells_what_is_cured(monkeypatch, capsys):
    few(monkeypatch, "rank7")
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert f"jax {jax.__version__}" in said
    assert "jax#40412" in said
    assert said.endswith("right: 1 of 1 programs, as jaxformer compiles them\n")
    if OF["rank7"] in faults():
        assert "ends: SIGSEGV" in said
        assert "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=-reduce" in said


@pytest.mark.slow
def test_the_doctor_tells_what_nothing_cures(monkeypatch, capsys):
    few(monkeypatch, "rows")
    monkeypatch.setattr(known_programs, "is_right", wrong)
    assert doctor.main([]) == 1
    assert "WRONG: 1 of 1 programs, and nothing cures it: https://github.com/jax-ml/jax/issues/39103" in capsys.readouterr().out


def wrong(name, options):
    """Stands for a jaxlib that computes a program wrong whatever is asked for."""
    return False


def test_the_doctor_says_that_a_jaxlib_is_newer_than_those_tried(monkeypatch):
    monkeypatch.setattr(doctor, "jaxlib_release", lambda: (0, 13, 0))
    assert any("jaxlib 0.13.0 is newer than 0.12.0.1" in line for line in doctor.machine())
