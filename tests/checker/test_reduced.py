"""`reduce_to`: the smallest call that differs, as a test that fails by itself, and passes when the source is mended."""

import importlib
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxformer as jf
from jaxformer.errors import InputError
from jaxformer.parity.reduce.choose import requested
from jaxformer.parity.reduce.constructor import arguments_of
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.outputs import Outputs
from jaxformer.parity.trace.reference import apply
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

D, F = 6, 10
X = np.random.default_rng(0).standard_normal((3, 5, D)).astype(np.float32)
CHECKS = ("weights", "forward", "local")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(D), torch.nn.Linear(D, F), torch.nn.Linear(F, D)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


THEIRS = jf.excite(Net().eval(), seed=1)
HELD = {name: tensor.numpy() for name, tensor in THEIRS.state_dict().items()}

NNX = """
import jax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, width, hidden, *, rngs):
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.up = nnx.Linear(width, hidden, rngs=rngs)
        self.down = nnx.Linear(hidden, width, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(self.norm(x)), approximate=False))
"""
LINEN = """
import jax
from flax import linen as nn

class Net(nn.Module):
    width: int
    hidden: int

    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="norm")(x)
        y = jax.nn.gelu(nn.Dense(self.hidden, name="up")(y), approximate=False)
        return x + nn.Dense(self.width, name="down")(y)
"""
EQUINOX = """
import equinox as eqx
import jax

class Net(eqx.Module):
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width, hidden, key):
        self.norm = eqx.nn.LayerNorm(width, eps=1e-5)
        self.up = eqx.nn.Linear(width, hidden, key=key)
        self.down = eqx.nn.Linear(hidden, width, key=key)

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(self.norm(x)), approximate=False))
"""
TAPPED = """
import jax
import jax.numpy as jnp
import jaxformer as jf

def linear(layer, x):
    return x @ layer["kernel"] + layer["bias"]

def run(params, x):
    y = x - x.mean(-1, keepdims=True)
    y = y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)
    y = jf.tap("norm", y * params["norm"]["scale"] + params["norm"]["bias"])
    y = jf.tap("up", linear(params["up"], y))
    return x + jf.tap("down", linear(params["down"], jax.nn.gelu(y, approximate=False)))
"""
PLAIN = TAPPED.replace("jf.tap", "(lambda name, value: value)")
LIBRARY = """
import haiku as hk
import jax

class Net(hk.Module):
    def __init__(self, name="net"):
        super().__init__(name)
        self.norm = hk.LayerNorm(-1, True, True, eps=1e-5, name="norm")
        self.up, self.down = hk.Linear(10, name="up"), hk.Linear(6, name="down")

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(self.norm(x)), approximate=False))
"""


def nnx_model(port: Any) -> tuple[Any, ...]:
    model = port.Net(D, F, rngs=nnx.Rngs(0))
    for name, parts in flat(("scale", "bias"), ("kernel", "bias")).items():
        for part, array in parts.items():
            getattr(getattr(model, name), part).set_value(jnp.asarray(array))
    return (model,)


def flat(norm: tuple[str, str], linear: tuple[str, str]) -> dict[str, dict[str, np.ndarray]]:
    """torch's weights as a tree, with these names of weight and bias."""
    found = {}
    for name, names in (("norm", norm), ("up", linear), ("down", linear)):
        found[name] = {names[0]: HELD[f"{name}.weight"].T, names[1]: HELD[f"{name}.bias"]}
    return found


def linen_model(port: Any) -> tuple[Any, ...]:
    model = port.Net(D, F)
    return flat(("scale", "bias"), ("kernel", "bias")), lambda params, x: model.apply({"params": params}, x)


def equinox_model(port: Any) -> tuple[Any, ...]:
    model = port.Net(D, F, jax.random.key(0))
    leaves, tree = jax.tree.flatten(model)
    held = [jnp.asarray(array) for array in HELD.values()]
    assert [leaf.shape for leaf in leaves] == [array.shape for array in held]
    return tree.unflatten(held), lambda model, x: jax.vmap(jax.vmap(model))(x)


def function(port: Any) -> tuple[Any, ...]:
    return flat(("scale", "bias"), ("kernel", "bias")), port.run


def haiku_model(port: Any) -> tuple[Any, ...]:
    import haiku as hk

    net = hk.without_apply_rng(hk.transform(lambda x: port.Net()(x)))
    return {f"net/~/{name}": leaves for name, leaves in flat(("scale", "offset"), ("w", "b")).items()}, net.apply


class Case(NamedTuple):
    text: str
    make: Any
    bug: tuple[str, str]
    at: str
    """Call that has to be written."""


EXACT = ("approximate=False", "approximate=True")
EPSILON = ("1e-5", "1e-6")
CASES = {
    "nnx, a setting of the constructor": Case(NNX, nnx_model, ("epsilon=1e-5, ", ""), "norm"),
    "nnx, code": Case(NNX, nnx_model, EXACT, "the_model"),
    "linen, a field that the parent sets": Case(LINEN, linen_model, EPSILON, "norm"),
    "linen, code": Case(LINEN, linen_model, EXACT, "the_model"),
    "equinox, a setting of the constructor": Case(EQUINOX, equinox_model, EPSILON, "norm"),
    "a tapped function": Case(TAPPED, function, EXACT, "down"),
    "a function without taps": Case(PLAIN, function, EPSILON, "the_whole_model"),
    "haiku": Case(LIBRARY, haiku_model, EPSILON, "net_norm"),
}
NUMBERS = itertools.count()
NOTHING = None, apply, Outputs()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def planted(folder: Path, text: str, bug: tuple[str, str]) -> tuple[Any, Path]:
    """Write a port with a bug; return it, imported, and its path."""
    name = f"port{next(NUMBERS)}"
    path = folder / f"{name}.py"
    assert text.count(bug[0]) == 1
    path.write_text(text.replace(*bug), "utf-8")
    return importlib.import_module(name), path


def compared(given: tuple[Any, ...], reduce_to: Any) -> Report:
    model, *call = given
    call_jax = {"call_jax": call[0]} if call else {}
    return jf.compare(THEIRS, model, (X,), tier="A", checks=CHECKS, reduce_to=reduce_to, search_seconds=0, **call_jax)


def fails(file: Path, path: Path) -> bool:
    """Run the test of a file in this process, on the source as it is now."""
    importlib.invalidate_caches()
    sys.modules.pop(path.stem)
    path.with_suffix(".pyc").unlink(missing_ok=True)
    names: dict[str, Any] = {"__file__": str(file), "__name__": "failing"}
    exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    try:
        test()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    "name",
    usually(CASES, "nnx, a setting of the constructor", "linen, a field that the parent sets", "a tapped function", "haiku"),
)
def test_the_file_fails_until_the_source_is_mended(name, folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    case = CASES[name]
    port, path = planted(folder, case.text, case.bug)
    report = compared(case.make(port), file := folder / "failing.py")
    assert report.reduced, str(report)
    assert report.reduced.file == str(file), str(report)
    assert f"def test_{case.at}():" in file.read_text("utf-8")
    assert f"smallest failing call: pytest {file} fails until it is mended" in str(report)
    assert fails(file, path)
    path.write_text(case.text, "utf-8")
    assert not fails(file, path)
    assert sorted(each.name for each in folder.iterdir()) == ["failing.py", "failing.safetensors", path.name]
    assert requested(file, *NOTHING), "its own files are written anew"
    file.write_text("mine")
    with pytest.raises(InputError, match=r"failing\.py exists already"):
        requested(file, *NOTHING)


@pytest.mark.slow
def test_it_fails_under_pytest_by_itself(folder):
    """With a function that makes the model, and in a process that knows nothing of this one."""
    text = f"{NNX}\ndef make():\n    return Net({D}, {F}, rngs=nnx.Rngs(0)), lambda model, x: model(x)\n"
    port, path = planted(folder, text, EXACT)
    report = compared(nnx_model(port), (str(folder / "failing.py"), port.make))
    assert Report.from_json(report.to_json()).reduced == report.reduced, str(report)
    environment = os.environ | {"PYTHONPATH": str(Path(jf.__file__).parents[1])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "failing.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED failing.py::test_the_model" in done.stdout
    assert "AssertionError: assert " in done.stdout
    path.write_text(text, "utf-8")
    assert not fails(folder / "failing.py", path)


def test_a_test_that_passes_is_not_written(folder):
    """The function makes another model than the one that is compared: without the bug."""
    port, _ = planted(
        folder,
        NNX.replace("(self, width, hidden, *, rngs)", "(self, width, hidden, *, rngs, epsilon=1e-5)"),
        ("epsilon=1e-5, use", "epsilon=epsilon, use"),
    )
    other = nnx_model(port)[0]
    other.norm.epsilon = 1e-6
    report = compared((other,), (folder / "failing.py", lambda: port.Net(D, F, rngs=nnx.Rngs(0))))
    assert report.reduced
    assert report.reduced.why == ("norm: made again, it gives torch's output: its settings are not those of the compared model")
    assert f"smallest failing call: not written: {report.reduced.why}" in str(report)
    assert f"not written: {report.reduced.why}" in report.to_markdown()
    assert not [*folder.glob("failing*")]


def test_what_is_equal_is_not_written(folder):
    port, _ = planted(folder, TAPPED, ("import jax\n", "import jax  # the same\n"))
    report = compared(function(port), folder / "failing.py")
    assert report.status == "equal"
    assert report.reduced
    assert report.reduced.why == "no module differs by itself"
    assert not [*folder.glob("failing*")]


def test_a_class_that_cannot_be_imported_is_told(folder):
    class Local(nnx.Module):
        def __init__(self):
            self.norm = nnx.LayerNorm(D, epsilon=1e-6, use_fast_variance=False, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(x)

    theirs, ours = jf.excite(torch.nn.Sequential(torch.nn.LayerNorm(D)).eval(), seed=0), Local()
    ours.norm.scale.set_value(jnp.asarray(theirs[0].weight.detach().numpy()))
    ours.norm.bias.set_value(jnp.asarray(theirs[0].bias.detach().numpy()))
    report = jf.compare(theirs, ours, (X,), tier="A", checks=CHECKS, reduce_to=folder / "failing.py", search_seconds=0)
    assert report.reduced
    assert report.reduced.why.endswith("<locals>.Local cannot be imported; define it at the top level of a module")
    assert not [*folder.glob("failing*")]


def test_code_without_a_name_to_import_is_told(folder):
    port, _ = planted(folder, TAPPED, ("import jax\n", "import jax  # the same\n"))

    def run(params, x):
        return 2 * jf.tap("up", port.linear(params["up"], x))

    theirs = torch.nn.Sequential()
    theirs.add_module("up", torch.nn.Linear(D, F))
    params = {"up": {"kernel": theirs.up.weight.detach().numpy().T + 1, "bias": theirs.up.bias.detach().numpy()}}
    options = {"call_jax": run, "tier": "A", "checks": CHECKS, "search_seconds": 0}
    report = jf.compare(theirs, params, (X,), **options, reduce_to=folder / "whole.py")
    assert report.reduced
    assert report.reduced.module == "(call)", str(report)
    assert "Kept as it was, whatever its source says now: " in (folder / "whole.py").read_text("utf-8")

    def tapped(params, x):
        return jf.tap("up", port.linear(params["up"], x) + 1)

    report = jf.compare(theirs, params, (X,), **options | {"call_jax": tapped}, reduce_to=folder / "failing.py")
    assert report.reduced
    assert report.reduced.why.startswith("up: the code at ")
    assert report.reduced.why.endswith(" has no name to import; define its function at the top level of a module")
    assert not [*folder.glob("failing*")]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("failing.txt", "is no Python file; give a path that ends in .py, or a tuple"),
        ("old.py", "exists already; remove it, or give another name"),
        ("arrays.py", "arrays.safetensors exists already"),
        ("nowhere/failing.py", "is no folder; give another path"),
        (7, "reduce_to = 7 is an int; give a path"),
        (("failing.py", 7), "reduce_to = 7 cannot be called"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_at_once(name, says, tmp_path):
    for held in ("old.py", "arrays.safetensors"):
        (tmp_path / held).write_text("mine")
    given = tmp_path / name if isinstance(name, str) else name

    def never(*given: Any) -> Any:
        raise AssertionError

    with pytest.raises(InputError, match=says):
        jf.compare(THEIRS, {"w": np.zeros(3, np.float32)}, (X,), call_jax=never, reduce_to=given)
    assert (tmp_path / "old.py").read_text() == "mine"


class Deep(nnx.Module):
    """Module whose arguments are an attribute, whole numbers of its parts, and a seed."""

    def __init__(self, vocab, width, layers, scale, heads=2, *, rngs):
        self.embed, self.scale = nnx.Embed(vocab, width, rngs=rngs), scale
        self.blocks = nnx.List([nnx.Linear(width, width // heads, rngs=rngs) for _ in range(layers)])


@pytest.mark.slow
def test_arguments_of_a_constructor_are_found():
    found = arguments_of(Deep(11, 12, 3, 0.5, heads=4, rngs=nnx.Rngs(0)))
    assert found is not None
    found.pop("rngs")
    assert found == {"vocab": 11, "width": 12, "layers": 3, "scale": 0.5, "heads": 4}


class Hidden(nnx.Module):
    """Module that does not show what it was made with."""

    def __init__(self, name):
        self.embed = nnx.Embed(len(name), 3, rngs=nnx.Rngs(0))


def test_arguments_that_nothing_shows_are_none():
    assert arguments_of(Hidden("four")) is None
