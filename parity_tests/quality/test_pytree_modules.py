"""Models whose modules are pytrees themselves: Equinox's, and dataclasses of the user's own. Each module is seen by itself."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import jaxformer as jf
from jaxformer.parity.report.report import Report

pytestmark = pytest.mark.foreign

D, FF, T, LAYERS = 12, 20, 7, 3


class TorchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, FF), nn.Linear(FF, D)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class TorchModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions, self.blocks = nn.Embedding(T, D), nn.ModuleList(TorchBlock() for _ in range(LAYERS))

    def forward(self, x):
        x = x + self.positions(torch.arange(T))
        for block in self.blocks:
            x = block(x)
        return x


class Block(eqx.Module):
    """One example at a time, as Equinox's layers are; the activation is a leaf of the tree that is no array."""

    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    activation: Any

    def __init__(self, key: Any, eps: float = 1e-5, approximate: bool = False):
        self.norm, self.activation = eqx.nn.LayerNorm(D, eps=eps), partial(jax.nn.gelu, approximate=approximate)
        self.up, self.down = eqx.nn.Linear(D, FF, key=key), eqx.nn.Linear(FF, D, key=key)

    def __call__(self, x: Any) -> Any:
        return x + self.down(self.activation(self.up(self.norm(x))))


class Model(eqx.Module):
    positions: eqx.nn.Embedding
    blocks: list[Block]

    def __call__(self, x: Any) -> Any:
        x = x + jax.vmap(self.positions)(jnp.arange(T))
        for block in self.blocks:
            x = eqx.filter_vmap(block)(x)
        return x


class Scanned(eqx.Module):
    """The same with all layers in one loop."""

    positions: eqx.nn.Embedding
    blocks: Block

    def __call__(self, x: Any) -> Any:
        layers, rest = eqx.partition(self.blocks, eqx.is_array)

        def turn(x: Any, layer: Any) -> tuple[Any, None]:
            return jax.vmap(eqx.combine(layer, rest))(x), None

        return jax.lax.scan(turn, x + jax.vmap(self.positions)(jnp.arange(T)), layers)[0]


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    return jf.excite(TorchModel().eval(), seed=0)


def ported(theirs: nn.Module, blocks: list[Block]) -> Model:
    """torch's weights, in the places of the same names."""
    weights = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in theirs.named_parameters()}
    empty = Model(eqx.nn.Embedding(T, D, key=jax.random.key(0)), blocks)
    leaves, tree = jax.tree_util.tree_flatten_with_path(empty, is_leaf=lambda leaf: leaf is None)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    return tree.unflatten([weights.get(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)])


def compared(theirs: nn.Module, model: Any) -> Report:
    x = np.random.default_rng(0).normal(size=(2, T, D)).astype(np.float32)
    return jf.compare(theirs, model, (x,), call_jax=lambda model, x: jax.vmap(model)(x), tier="A")


def blocks(**bug: Any) -> list[Block]:
    """All right, but the last."""
    return [Block(jax.random.key(0), **(bug if i == LAYERS - 1 else {})) for i in range(LAYERS)]


def test_every_module_of_equinox_is_seen(theirs):
    report = compared(theirs, ported(theirs, blocks()))
    assert report.status == "equal", report
    paths = {module.torch for module in report.modules}
    assert {"positions", "blocks.0", "blocks.2.norm", "blocks.1.up"} <= paths, paths


@pytest.mark.parametrize(
    ("bug", "module", "cause"),
    [({"eps": 1e-3}, "blocks.2.norm", "jax epsilon 0.001"), ({"approximate": True}, "blocks.2", "jax activation gelu by tanh")],
)
def test_a_bug_in_equinox_has_its_module_and_cause(theirs, bug, module, cause):
    verdict = str(compared(theirs, ported(theirs, blocks(**bug)))).splitlines()[-1]
    assert verdict.startswith(f"DIFFERENT: {module}: torch "), verdict
    assert cause in verdict
    assert " more" not in verdict


def test_a_loop_over_layers_of_equinox(theirs):
    model = ported(theirs, blocks())
    arrays, rest = zip(*(eqx.partition(block, eqx.is_array) for block in model.blocks), strict=True)
    stacked = eqx.combine(jax.tree.map(lambda *layers: jnp.stack(layers), *arrays), rest[0])
    report = compared(theirs, Scanned(model.positions, stacked))
    assert report.status == "equal", report
    assert "blocks.2.norm" in {module.torch for module in report.modules}


class TorchBiased(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, places = nn.Parameter(torch.zeros(2 * T - 1)), torch.arange(T)
        self.register_buffer("index", places[:, None] - places + T - 1)

    def forward(self, x):
        return (x @ x.mT + self.table[self.index]).softmax(-1) @ x


class Biased(eqx.Module):
    table: Any
    index: Any

    def __call__(self, x: Any) -> Any:
        return jax.nn.softmax(x @ x.T + self.table[self.index], -1) @ x


@pytest.mark.parametrize(
    ("times", "said"),
    [(1, "EQUAL"), (2, f"DIFFERENT: the model: torch has {T - 1} at [0, 0] of index; jax has {2 * T - 2} there, in index")],
)
def test_an_index_that_both_sides_hold(times, said):
    theirs = jf.excite(TorchBiased().eval(), seed=0)
    model = Biased(jnp.asarray(theirs.table.detach().numpy()), jnp.asarray(theirs.index.numpy() * times % (2 * T - 1)))
    assert str(compared(theirs, model)).splitlines()[-1].startswith(said)


@partial(jax.tree_util.register_dataclass, data_fields=["scale", "bias"], meta_fields=["eps"])
@dataclass(frozen=True, slots=True)
class OwnNorm:
    scale: Any
    bias: Any
    eps: float

    def __call__(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + self.eps) * self.scale + self.bias


@jax.tree_util.register_dataclass
@dataclass
class OwnModel:
    norm: OwnNorm
    kernels: dict[str, Any]

    def __call__(self, x: Any) -> Any:
        return jax.nn.relu(self.norm(x) @ self.kernels["up"]) @ self.kernels["down"]


@pytest.mark.parametrize(("eps", "said"), [(1e-5, "EQUAL"), (1e-4, "DIFFERENT: norm: torch epsilon 1e-05; jax epsilon 0.0001")])
def test_dataclasses_of_the_users_own(eps, said):
    torch_layers = nn.LayerNorm(D), nn.Linear(D, FF, bias=False), nn.ReLU(), nn.Linear(FF, D, bias=False)
    theirs = jf.excite(nn.Sequential(*torch_layers).eval(), seed=0)
    arrays = [jnp.asarray(tensor.detach().numpy().T) for tensor in theirs.parameters()]
    model = OwnModel(OwnNorm(*arrays[:2], eps), {"up": arrays[2], "down": arrays[3]})
    x = np.random.default_rng(0).normal(size=(5, D)).astype(np.float32)
    assert str(jf.compare(theirs, model, (x,), tier="A")).splitlines()[-1].startswith(said)
