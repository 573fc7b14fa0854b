"""The kernel library of matrix products: measured once for a machine, kept, fixed by whoever asks, and as right as any."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
import pytest

from jaxformer.cli import doctor
from jaxformer.errors import ConfigError, InputError
from jaxformer.recipes import shakespeare
from jaxformer.recipes.prepare import FORMER_PRODUCTS, recipe_of
from jaxformer.recipes.settings import Shakespeare
from jaxformer.runs.folder import RunFolder
from jaxformer.runtime import products
from jaxformer.runtime.jit import ahead, jit
from jaxformer.runtime.known_programs import PROGRAMS
from jaxformer.runtime.products import (
    LIBRARIES,
    VARIABLE,
    available,
    fix,
    library,
    measure,
    measure_again,
    measured,
    options,
    options_of,
    work_of,
)
from jaxformer.runtime.xla_options import LASTING_BARRIERS, PRODUCTS_ALONE, cure, known
from tests.tiny import flags, quick_recipe

TIMES = {"onednn+ynnpack": 3.0, "onednn": 2.0, "ynnpack": 1.0, "eigen": 4.0}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache that is empty, and a machine on which nothing is named."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(products, "_fixed", {})
    measured.cache_clear()
    yield tmp_path
    measured.cache_clear()


def timed(monkeypatch, seconds):
    """Measurements that give these seconds, and the classes they were asked for."""
    asked = []
    monkeypatch.setattr(products, "available", lambda work: [*seconds])
    monkeypatch.setattr(products, "measure", lambda work: asked.append(work) or seconds)
    return asked


def test_every_library_is_timed():
    found = measure("large")
    assert [*found] == available("large")
    assert all(0 < seconds < 60 for seconds in found.values())
    assert "eigen" in found


def test_programs_that_start_from_the_cache_have_no_library_that_it_cannot_keep():
    assert not {"onednn", "onednn+ynnpack"} & {*available("small"), *available("write")}


def test_a_program_that_cannot_be_kept_warns_of_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "onednn")
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(products, "_fixed", {})
    x = jnp.ones((40, 50))
    if "onednn" not in available("large"):
        pytest.skip("this jaxlib has no oneDNN")
    assert "onednn" in str(options("large"))
    np.testing.assert_allclose(jit(lambda x: x @ x.T)(x), np.full((40, 40), 50))  # a warning is an error here


def test_the_fastest_is_taken_and_kept(cache, monkeypatch):
    asked = timed(monkeypatch, TIMES)
    assert library("small") == "ynnpack"
    assert options("small") == {**known(LIBRARIES["ynnpack"]), **LASTING_BARRIERS}
    measured.cache_clear()  # as another process
    assert library("small") == "ynnpack"
    assert library("write") == "ynnpack"
    assert asked == ["small", "write"]
    (file,) = cache.glob("products-*.json")
    assert json.loads(file.read_text()) == {"small": TIMES, "write": TIMES}


DAMAGES = {
    "empty": "",
    "list": "[1]",
    "number": '{"small": 3}',
    "words": json.dumps({"small": dict.fromkeys(TIMES, "x")}),
    "too large": json.dumps({"small": TIMES}).replace("3.0", "9" * 400),
    "infinite": json.dumps({"small": TIMES | {"eigen": float("inf")}}),
    "others": '{"small": {"mkl": 1.0}}',
    "nested": "[" * 200_000,
    "nested in objects": '{"a":' * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_measurements_that_cannot_be_used_are_made_again(cache, monkeypatch, damage):
    asked = timed(monkeypatch, TIMES)
    library("small")
    (file,) = cache.glob("products-*.json")
    file.write_text(DAMAGES[damage])
    measured.cache_clear()
    assert library("small") == "ynnpack"
    assert asked == ["small", "small"]
    assert json.loads(file.read_text()) == {"small": TIMES}


def test_a_cache_that_cannot_be_written_keeps_nothing(cache, monkeypatch):
    timed(monkeypatch, TIMES)
    (cache / "file").write_text("")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: cache / "file")
    assert library("large") == "ynnpack"


@pytest.mark.parametrize("kind", ["a pipe", "a folder"])
def test_what_is_no_file_is_not_waited_for(cache, monkeypatch, kind):
    timed(monkeypatch, TIMES)
    os.mkfifo(products._path()) if kind == "a pipe" else products._path().mkdir()
    assert library("large") == "ynnpack"
    assert len([*cache.iterdir()]) == 1  # nothing unfinished is left


def test_other_machines_have_other_files(cache, monkeypatch):
    timed(monkeypatch, TIMES)
    for cores in (1, 64):
        monkeypatch.setattr(products, "cores", lambda cores=cores: cores)
        measured.cache_clear()
        library("small")
    assert len([*cache.glob("products-*.json")]) == 2


def test_a_name_decides_and_nothing_is_measured(cache, monkeypatch):
    asked = timed(monkeypatch, TIMES)
    monkeypatch.setenv(VARIABLE, "eigen")
    assert library("small") == library("write") == "eigen"
    fix("onednn")
    assert library("small") == library("large") == "onednn"
    assert library("write") == "eigen"
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_onednn=false")
    assert library("small") is None
    assert options("write") == cure() == known(PRODUCTS_ALONE)  # the faults are avoided all the same
    assert asked == []


def test_a_flag_beside_xla_flags_is_refused(cache, monkeypatch, text_file, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_onednn=true")
    with pytest.raises(InputError, match=r"^products = eigen, and XLA_FLAGS name a library too; leave one of them out$"):
        shakespeare.main([*flags(data=text_file, out=tmp_path / "run"), "--products", "eigen"])
    assert not (tmp_path / "run").exists()


def test_of_libraries_that_are_about_as_fast_one_is_taken_always(cache, monkeypatch):
    timed(monkeypatch, {"ynnpack": 1.04, "eigen": 1.0})
    assert library("small") == "ynnpack"
    timed(monkeypatch, {"ynnpack": 1.06, "eigen": 1.0})
    measure_again()
    assert library("small") == "eigen"
    assert len([*cache.iterdir()]) == 1


def test_a_function_follows_what_is_fixed_later(cache, monkeypatch):
    """And a function inside of another keeps its own programs."""
    timed(monkeypatch, TIMES)
    inner = jit(lambda x, n: x * n, static_argnums=1)
    assert inner(jnp.ones(2), 3).sum() == 6
    fix("eigen")
    assert inner(jnp.ones(2), 3).sum() == 6
    assert [*inner._compiled] == ["ynnpack", "eigen"]
    outer = jit(inner, donate_argnums=0, static_argnums=1)
    assert outer.plain is not inner.plain
    assert outer(jnp.ones(2), 3).sum() == 6


def test_an_accelerator_has_none(cache, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert library("large") is None


def test_an_unknown_name_is_refused(cache, monkeypatch):
    monkeypatch.setenv(VARIABLE, "mkl")
    with pytest.raises(ConfigError, match=r"JAXFORMER_PRODUCTS = 'mkl' is not known; choose one of onednn\+ynnpack"):
        library("small")


def test_the_class_is_that_of_the_widest_matrix():
    words, key = jnp.zeros((512, 512), jnp.int32), jax.random.key(0)
    assert work_of((jnp.zeros((5000, 128)), words, key, "text", None)) == "small"
    assert work_of({"w": jax.ShapeDtypeStruct((4, 129, 400), jnp.bfloat16)}) == "large"


def test_a_function_is_compiled_for_the_class_of_its_first_call(monkeypatch):
    asked = []
    monkeypatch.setattr("jaxformer.runtime.jit.library", lambda work: work)
    monkeypatch.setattr("jaxformer.runtime.jit.options", lambda work: asked.append(work) or {})
    small, large, writes = jit(lambda x: x.sum()), jit(lambda x: x.sum()), jit(lambda x: x.sum(), work="write")
    assert small(jnp.ones((2, 3))) == 6
    assert small(jnp.ones((200, 300))) == large(jnp.ones((300, 200))) == writes(jnp.ones((200, 300))) == 60_000
    assert asked == ["small", "large", "write"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_products_are_right(name):
    """Chains of thin ones among them: with oneDNN's fusions of several products those end the process."""
    rng = np.random.default_rng(0)
    x, w, heads = rng.normal(size=(16, 48)), rng.normal(size=(48, 48)), rng.normal(size=(6, 20, 8))

    def several(x, w, heads):
        return x @ w @ w, x.T @ x, jnp.einsum("btd,bsd->bts", heads, heads) @ heads, x[:1] @ w

    given = [np.float32(each) for each in (x, w, heads)]
    found = jax.jit(several, compiler_options=options_of(name))(*given)
    with jax.enable_x64(True):
        wanted = several(*map(jnp.asarray, (x, w, heads)))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_library_has_a_known_fault(name, program):
    run, given, wanted = PROGRAMS[program]()
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(run, compiler_options=options_of(name))(*given), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_keeps_its_library(cache, monkeypatch, tmp_path, text_file):
    """Whatever is fastest when it is resumed; one that names none is of before, when all had YNNPACK's."""
    timed(monkeypatch, TIMES)
    with quick_recipe():
        shakespeare.main(flags(data=text_file, out=tmp_path / "run", steps=3))
        run = RunFolder(tmp_path / "run")
        assert run.config["recipe"]["products"] == "ynnpack"
        products._fixed.clear()
        timed(monkeypatch, TIMES | {"eigen": 0.5})
        measure_again()
        assert library("small") == "eigen"
        shakespeare.main(["--resume", "--out", str(run.path), "--steps", "6"])
        assert products._fixed == {"small": "ynnpack", "large": "ynnpack"}
        with pytest.raises(InputError, match=r"^--products is not as in .*, which is resumed; leave it out"):
            shakespeare.main(["--resume", "--out", str(run.path), "--steps", "9", "--products", "onednn"])
    config = run.config
    del config["recipe"]["products"]
    run.write_config(config)
    assert recipe_of(run.path, Shakespeare).products == FORMER_PRODUCTS


def test_the_doctor_shows_the_choice(cache, monkeypatch):
    timed(monkeypatch, TIMES)
    monkeypatch.setattr(doctor, "library", library)
    lines = [*doctor.libraries()]
    assert len(lines) == 3
    assert "large models in training: ynnpack (measured: onednn+ynnpack 3000.0 ms" in lines[1]


@pytest.mark.parametrize("asked", [True, False])
def test_a_program_that_is_asked_for_ahead_is_run_only_when_called_and_found_compiled(asked, caplog):
    ran = []

    @jit
    def plus_one(x):
        return x + 1

    def work(x):
        ran.append(float(plus_one(x)))

    x = jnp.float32(2)
    if asked:
        ahead(work, x)
    assert not ran
    with jax.log_compiles():
        work(x)
        work(x)
    assert ran == [3.0, 3.0]
    assert any("XLA compilation of jit(plus_one)" in message for message in caplog.messages) is not asked


def test_what_fails_ahead_fails_at_the_call_and_the_next_program_runs():
    @jit
    def f(x):
        return x @ x

    with pytest.raises(TypeError, match="dot_general"):
        ahead(f, jnp.ones((2, 3)))
    assert f(jnp.eye(2)).sum() == 2
