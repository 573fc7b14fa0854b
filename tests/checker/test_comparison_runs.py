"""What ports do that the comparison has to bear: arguments of every kind, int32 counters, code that jit cannot trace; and what
it refuses names the user's own line."""

import collections
import dataclasses
import json
import types
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx, struct
from flax.core import FrozenDict
from jax import lax
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from jaxformer.cli.flags import run
from jaxformer.cli.main import dispatch
from jaxformer.convert.rules import Family, Rule, to_jax
from jaxformer.errors import InputError
from jaxformer.parity.compare import compare
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.call_records import arrays_in, replaced

pytestmark = pytest.mark.usefixtures("untyped")
X = np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)
RULES = Family("mine", {}, (Rule("kernel", "weight", "transposed"), Rule("bias", "bias")))
HERE = Path(__file__).name


@dataclasses.dataclass
class Checked:
    x: Any
    size: int = dataclasses.field(init=False)
    scale: dataclasses.InitVar[int] = 1

    def __post_init__(self, scale: int) -> None:
        self.size = scale * len(self.x)


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    x: Any


@struct.dataclass
class Struct:
    x: Any


@struct.dataclass
class Output(ModelOutput):
    """As transformers' Flax models have it: a frozen dataclass and a dict."""

    x: Any = None
    more: Any = None


class Named(NamedTuple):
    x: Any
    n: int


class Two(list):
    """A list whose constructor wants something else."""

    def __init__(self, first: Any, second: Any):
        super().__init__([first, second])


A = np.ones(3)
CONTAINERS = [
    Checked(A),
    Slots(A),
    cast(Any, Struct)(A),
    Named(A, 2),
    Two(A, "b"),
    collections.defaultdict(list, {1: A}),
    collections.OrderedDict({2: A, "b": 3}),
    FrozenDict({"x": A}),
    types.MappingProxyType({"x": A}),
    BaseModelOutput(last_hidden_state=torch.ones(2)),
    cast(Any, Output)(x=A),
    torch.max(torch.ones(2, 2), dim=0),
]


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda value: type(value).__name__)
def test_containers_of_arrays_are_seen_and_may_hold_others(value):
    old = arrays_in(value)
    new = [array + 1 for array in old]
    other = replaced(value, old, new)
    assert type(other) is type(value)
    assert [id(array) for array in arrays_in(other)] == [id(array) for array in new]
    assert [id(array) for array in arrays_in(value)] == [id(array) for array in old]


PLAIN = [torch.Size([2]), range(3), None, "s", torch.float32, torch.device("cpu"), slice(1), {1: 2}, frozenset([1]), Two(1, 2)]


class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(6, 6)

    def forward(self, x, *rest, **named):
        return collections.defaultdict(list, {1: torch.tanh(self.q(x["x"]))})


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.o = Reads(), torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.o(self.inner(types.MappingProxyType({"x": x, "size": x.shape}), *PLAIN, more=PLAIN)[1])


class OurReads(nnx.Module):
    def __init__(self):
        self.q = nnx.Linear(6, 6, rngs=nnx.Rngs(0))

    def __call__(self, x: Any, *rest: Any, **named: Any):
        return collections.defaultdict(list, {1: jnp.tanh(self.q(x["x"]))})


class Ours(nnx.Module):
    def __init__(self):
        self.inner, self.o = OurReads(), nnx.Linear(6, 4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.o(self.between(self.inner({"x": x, "size": x.shape}, *PLAIN, more=PLAIN)[1]))

    def between(self, x: Any) -> Any:
        return x


@pytest.fixture(scope="module")
def theirs() -> Theirs:
    return Theirs().eval()


def compared(theirs: Theirs, ours: Ours, **options: Any) -> Report:
    """In tier A, on torch's weights."""
    ours = to_jax(dict(theirs.named_parameters()), ours, RULES)
    return compare(theirs, ours, (X,), rules=RULES, **{"checks": ("forward", "local", "gradients"), "tier": "A"} | options)


class Giver(torch.nn.Module):
    def forward(self, x: torch.Tensor, shared: collections.UserDict) -> torch.Tensor:
        shared[len(shared)] = 2 * x
        return x + sum(shared.values())


class Givers(torch.nn.Module):
    """Modules that write what later ones read into one dictionary."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(Giver() for _ in range(3))
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, shared = x * self.weight, collections.UserDict()
        for part in self.parts:
            x = part(x, shared)
        return x


def test_what_modules_share_stays_one():
    def port(params, x):
        x, shared = x * params["weight"], []
        for _ in range(3):
            shared.append(2 * x)
            x = x + sum(shared)
        return x

    report = compare(Givers(), {"weight": np.ones(3, np.float32)}, (np.ones((2, 3), np.float32),), call_jax=port)
    assert report.status == "equal", str(report)


def test_modules_may_be_called_with_anything(theirs):
    report = compared(theirs, Ours())
    assert report.status == "equal", str(report)
    assert "inner" in {module.jax for module in report.modules}


class Cached(Ours):
    """The counter is int32, and what stands beside it JAX's default."""

    def __init__(self):
        super().__init__()
        self.index = nnx.Cache(jnp.zeros((), jnp.int32))

    def between(self, x):
        room = lax.dynamic_update_slice(jnp.zeros((3, 9, 6), x.dtype), x, (0, self.index[...], 0))
        self.index[...] = self.index[...] + x.shape[1]
        room = jnp.where((jnp.arange(9) < self.index[...])[None, :, None], room, 0)
        return lax.dynamic_slice(room, (0, self.index[...] - 5, 0), (3, 5, 6))


def test_a_cache_counts_in_int32(theirs):
    report = compared(theirs, Cached())
    assert report.status == "equal", str(report)


class Shifted(Cached):
    def between(self, x):
        return jnp.roll(super().between(x), 1, 1)


def test_a_cache_that_is_wrong_is_different(theirs):
    assert compared(theirs, Shifted()).status == "different"


class Loops(Ours):
    def between(self, x):
        return lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + jnp.arange(2)[1], x), (jnp.int32(0), x))[1]


def test_integers_that_cannot_be_brought_together_are_told_with_their_line(theirs):
    report = compared(theirs, Loops())
    assert report.exit_code == 2
    assert "the run in float64 has JAX's x64 on" in report.verdict
    assert f"{HERE}:{Loops.between.__code__.co_firstlineno + 1})" in report.verdict


class Drops(Ours):
    def __init__(self):
        super().__init__()
        self.drop = nnx.Dropout(0.1, rngs=nnx.Rngs(0))

    def between(self, x):
        return self.drop(x)


def test_counters_of_dropout_may_be_shapes(theirs):
    ours = nnx.eval_shape(Drops)
    nnx.update(ours, nnx.state(to_jax(dict(theirs.named_parameters()), Drops(), RULES), nnx.Param))
    assert any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(ours))
    report = compare(theirs, ours, (X,), checks=("weights", "forward"))
    assert report.status == "equal", str(report)


class Asks(Ours):
    factor = 1.0

    def between(self, x):
        return x * self.factor if x.sum() > -1e9 else x


class AsksWrong(Asks):
    factor = 2.0


@pytest.mark.parametrize(("kind", "diverging"), [(Asks, []), (AsksWrong, ["the model"])])
def test_what_jit_cannot_trace_runs_without_it(theirs, kind, diverging):
    report = compared(theirs, kind(), tier="B")
    assert [module.jax or "the model" for module in report.diverging] == diverging, str(report)
    assert f"{HERE}:{Asks.between.__code__.co_firstlineno + 1}, so it ran without" in report.stages[0].says


class Leaves(Ours):
    def between(self, x):
        return jnp.asarray(np.asarray(x))


def test_what_nothing_can_trace_is_refused_in_one_line(theirs):
    report = compared(theirs, Leaves())
    assert report.exit_code == 2
    assert "; jax.grad cannot go through numpy or Python's numbers: compute it with jnp, or leave out" in report.verdict
    assert f"{HERE}:{Leaves.between.__code__.co_firstlineno + 1})" in report.verdict


class Broken(Ours):
    def between(self, x):
        return x @ jnp.ones((7, 7))


@pytest.fixture(scope="module")
def broken(theirs) -> Report:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return compared(theirs, Broken())


def test_a_refusal_names_the_users_line_and_keeps_the_traceback(broken):
    assert f"(at {_relative(__file__)}:{Broken.between.__code__.co_firstlineno + 1})" in broken.verdict
    assert "return x @ jnp.ones((7, 7))" in broken.traceback
    assert Report.from_json(broken.to_json()).traceback == broken.traceback
    old = {name: value for name, value in json.loads(broken.to_json()).items() if name != "traceback"}
    assert Report.from_json(json.dumps(old)).verdict == broken.verdict


def test_pages_show_the_traceback(broken):
    for text in (broken.to_html(), broken.to_markdown()):
        assert "return x @ jnp.ones((7, 7))" in text


@pytest.mark.parametrize("verbose", [False, True])
def test_v_shows_the_traceback(broken, verbose, tmp_path, monkeypatch, capsys):
    path = tmp_path / "report.json"
    path.write_text(broken.to_json())
    monkeypatch.setattr("sys.argv", ["jaxformer", *(["-v"] if verbose else []), "parity", "explain", str(path)])
    with pytest.raises(SystemExit):
        run(dispatch)
    said = capsys.readouterr().out
    assert ("return x @ jnp.ones((7, 7))" in said) == verbose
    assert said.strip().endswith(broken.verdict)


def test_an_output_that_is_no_array_names_the_function_that_gave_it(theirs):
    def picks_nothing(model, x):
        return {"shape": x.shape, "y": None}

    report = compared(theirs, Ours(), call_jax=picks_nothing)
    assert report.verdict.endswith(f"that picks one (at {_relative(__file__)}:{picks_nothing.__code__.co_firstlineno})")


def test_a_crash_in_float32_is_no_difference(theirs):
    def call(model, x):
        return model(x) if x.dtype == jnp.float64 else model(x[:, :, :2])

    report = compared(theirs, Ours(), call_jax=call, tier="B")
    assert report.stages[-1].name == "float32"
    assert report.exit_code == 2


def test_a_function_that_makes_no_model_names_its_line(tmp_path, monkeypatch):
    (tmp_path / "makes_none.py").write_text("def model():\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"makes_none:model fails: ZeroDivisionError: .* \(at makes_none.py:2\)"):
        dispatch(["parity", "dump", "makes_none:model", "said", "--vocab", "7"])


def _relative(name: str) -> str:
    return str(Path(name).relative_to(Path.cwd()))
