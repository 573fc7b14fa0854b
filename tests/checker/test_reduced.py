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
from jaxformer.parity.reduce.constructor import arguments_of
from jaxformer.parity.report.report import Report

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


def compared(given: tuple[Any, ...], reduce_to: Any, **options: Any) -> Report:
    model, *call = given
    call_jax = {"call_jax": call[0]} if call else {}
    return jf.compare(
        THEIRS, model, (X,), tier="A", checks=CHECKS, reduce_to=reduce_to, search_seconds=0, **call_jax, **options
    )


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


@pytest.mark.parametrize("name", CASES)
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
