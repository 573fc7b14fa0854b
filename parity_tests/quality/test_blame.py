"""What a difference of one module's own code comes to: a port may share the work otherwise, and a bug is still named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.jax_hooks import tap

pytestmark = pytest.mark.foreign

IDS, LENGTH, WIDTH, OUT = 11, 7, 6, 5
STOPPED = jax.lax.stop_gradient
RULES = Family("toy", {}, (Rule("embedding", "weight"), Rule("kernel", "weight", "transposed"), Rule("bias", "bias")))
X = np.random.default_rng(0).integers(0, IDS, (4, LENGTH))


class TorchPlaces(torch.nn.Embedding):
    """Two rows are left out at the beginning, as BART's are."""

    def forward(self, positions):
        return super().forward(positions + 2)


class TorchToy(torch.nn.Module):
    def __init__(self, repeated):
        super().__init__()
        self.repeated = repeated
        self.table, self.places = torch.nn.Embedding(IDS, WIDTH), TorchPlaces(LENGTH + 2, WIDTH)
        self.inner, self.out = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, OUT)

    def forward(self, ids):
        positions = torch.arange(LENGTH).expand(len(ids), -1) if self.repeated else torch.arange(LENGTH)
        x = self.table(ids) + self.places(positions)
        return self.out(self.inner(x).relu()[:, :-1])


class Toy(nnx.Module):
    """The offset of the positions stands outside of their module."""

    offset = 2

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.table, self.places = nnx.Embed(IDS, WIDTH, rngs=rngs), nnx.Embed(LENGTH + 2, WIDTH, rngs=rngs)
        self.inner, self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.Linear(WIDTH, OUT, rngs=rngs)

    def __call__(self, ids):
        x = self.table(ids) + self.places(jnp.arange(LENGTH) + self.offset)
        return self.out(jax.nn.relu(self.given(self.inner(x))))

    def given(self, x):
        return x[:, :-1]


class Shifted(Toy):
    offset = 1


class Late(Toy):
    """It gives the out layer one position more."""

    def given(self, x):
        return x[:, 1:]


class Halved(nnx.Linear):
    """Of half as many features, and the rest zeros: of another shape on its way."""

    def __call__(self, x):
        return super().__call__(x)[..., : WIDTH // 2]


class Narrow(Toy):
    def __init__(self):
        super().__init__()
        self.inner = Halved(WIDTH, WIDTH, rngs=nnx.Rngs(0))

    def given(self, x):
        return jnp.pad(x, [(0, 0), (0, 0), (0, WIDTH - WIDTH // 2)])[:, :-1]


class Wrong(nnx.Linear):
    """In what the others do not look at."""

    def __call__(self, x):
        return super().__call__(x).at[:, -1].add(1.0)


class Dead(Toy):
    def __init__(self):
        super().__init__()
        self.inner = Wrong(WIDTH, WIDTH, rngs=nnx.Rngs(0))


def compared(kind, *, repeated=False) -> Report:
    theirs = excite(TorchToy(repeated), seed=1)
    return compare(theirs, jax.eval_shape(kind), (X,), rules=RULES, tier="A")


def said(report: Report, name: str) -> str:
    return next(stage.says for stage in report.stages if stage.name == name)


@pytest.mark.parametrize(("repeated", "shared"), [(False, "; places, the model divide "), (True, "")])
def test_work_may_stand_on_the_other_side_of_a_call(repeated, shared):
    """Where torch gives positions once for each row, and JAX once for all, they are not compared by themselves."""
    report = compared(Toy, repeated=repeated)
    assert report.status == "equal", str(report)
    local = said(report, "local")
    assert local.startswith(f"0 of 5 modules diverge{shared}")
    assert ("divide" in local) == bool(shared)


def test_what_makes_a_difference_is_diverging():
    report = compared(Shifted)
    assert report.status == "different"
    assert {"places", ""} == {module.jax for module in report.diverging}


def test_what_nobody_looks_at_is_diverging_too():
    report = compared(Dead)
    assert report.diverging[0].jax == "inner"
    assert report.verdict.startswith("DIFFERENT: inner: ")
    assert max(report.modules[-1].propagated.relative, report.modules[-1].propagated.peak) < 1e-13


def test_another_shape_on_the_way_is_named():
    report = compared(Narrow)
    assert report.verdict.startswith(f"DIFFERENT: inner: gives [4, 7, {WIDTH // 2}] in jax, [4, 7, {WIDTH}] in torch")


class Headless(Toy):
    """Its last layer is called outside."""

    def __init__(self):
        super().__init__()
        self.inner = Doubled(WIDTH, WIDTH, rngs=nnx.Rngs(0))

    def __call__(self, ids):
        x = self.table(ids) + self.places(jnp.arange(LENGTH) + self.offset)
        return jax.nn.relu(self.given(self.inner(x)))


class Doubled(nnx.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


def test_another_shape_that_comes_to_the_same_is_not_blamed_for_a_bug_beside_it():
    theirs = excite(TorchToy(False), seed=1)
    headless = jax.eval_shape(Headless)
    report = compare(theirs, headless, (X,), rules=RULES, tier="A", call_jax=lambda model, ids: model.out(model(ids)))
    assert [module.jax for module in report.diverging] == ["inner"], str(report)


def test_values_come_before_gradients():
    report = compared(Late)
    assert "first at the model (local 1.2e+00, tolerance 1e-13)" in said(report, "forward")
    assert "jax has it one earlier along axis 1" in report.verdict


LAYERS = ("one", "two", "three")


class TorchThree(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = (torch.nn.Linear(WIDTH, WIDTH) for _ in LAYERS)

    def forward(self, x):
        return self.three(self.two(self.one(x).tanh()).tanh())


@pytest.mark.parametrize(
    ("stopped", "says"),
    [
        ("one", "jax stops the gradient of its first operand (`stop_gradient`)"),
        ("two", "jax stops its gradient (`stop_gradient`)"),
    ],
)
def test_gradients_that_stop_in_a_tapped_function_are_placed(stopped, says):
    theirs = excite(TorchThree(), seed=1)
    weights = {name: array.numpy() for name, array in theirs.state_dict().items()}
    params = {name: {"kernel": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]} for name in LAYERS}

    def call(params, x):
        for name in LAYERS:
            x = jax.lax.stop_gradient(x) if name == stopped else x
            x = tap(name, x @ params[name]["kernel"] + params[name]["bias"])
            x = x if name == "three" else jnp.tanh(x)
        return x

    x = np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):
        report = compare(theirs, params, (x,), call_jax=call, checks=("local", "gradients"), tier="A")
    assert report.verdict.startswith("DIFFERENT: (call): torch computes `self.one(x)` (test_blame.py:"), str(report)
    assert says in report.verdict
    assert report.exit_code == 1


class TorchBody(torch.nn.Module):
    """Its table has the weight of the model's around it, as BART's encoder has."""

    def __init__(self, table):
        super().__init__()
        self.table, self.inner = torch.nn.Embedding(IDS, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.table.weight = table.weight

    def forward(self, ids):
        return self.inner(self.table(ids)).tanh()


class TorchTied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(IDS, WIDTH)
        self.body = TorchBody(self.table)

    def forward(self, ids):
        return self.body(ids) @ self.table.weight.T


class Body(nnx.Module):
    """With a scale of its own."""

    def __init__(self):
        self.inner = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))

    def __call__(self, ids, table):
        return jnp.tanh(self.inner(3 * table(ids)))


class Tied(nnx.Module):
    def __init__(self):
        self.table, self.body = nnx.Embed(IDS, WIDTH, rngs=nnx.Rngs(0)), Body()

    def __call__(self, ids):
        return self.body(ids, self.table) @ self.table.embedding[...].T


def test_a_module_is_not_blamed_for_what_another_inside_of_it_does_with_its_tied_weight():
    report = compare(excite(TorchTied(), seed=1), jax.eval_shape(Tied), (X,), rules=RULES, tier="A")
    assert [module.jax for module in report.diverging] == ["body"], str(report)


class TorchSilent(torch.nn.Module):
    """Nothing comes through its activation, for these inputs."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = (torch.nn.Linear(WIDTH, WIDTH) for _ in LAYERS)

    def forward(self, x):
        return self.three(self.two((self.one(x) - 100).relu()).tanh())


class Silent(nnx.Module):
    def __init__(self):
        self.one, self.two = (nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)) for _ in LAYERS[1:])
        self.three = Doubled(WIDTH, WIDTH, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.three(jnp.tanh(self.two(jax.nn.relu(self.one(x) - 100))))


def test_a_layer_that_is_given_zeros_is_not_blamed_for_a_bug_beside_it():
    x = np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)
    report = compare(excite(TorchSilent(), seed=1), jax.eval_shape(Silent), (x,), rules=RULES, tier="A")
    assert [module.jax for module in report.diverging] == ["three"], str(report)


class TorchExperts(torch.nn.Module):
    """Each expert is given its tokens alone."""

    def __init__(self):
        super().__init__()
        self.gate, self.last = torch.nn.Linear(WIDTH, 3), torch.nn.Linear(WIDTH, OUT)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == n)
            y = y.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return self.last(y)


class Experts(nnx.Module):
    """Each expert is given all tokens."""

    def __init__(self, k=2, weighted=lambda w: w):
        self.gate, self.last = nnx.Linear(WIDTH, 3, rngs=nnx.Rngs(0)), nnx.Linear(WIDTH, OUT, rngs=nnx.Rngs(0))
        self.experts = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)) for _ in range(3)])
        self.k, self.weighted = k, weighted

    def __call__(self, x):
        weights, chosen = jax.lax.top_k(jax.nn.softmax(self.gate(x)), self.k)
        share = (jax.nn.one_hot(chosen, 3) * self.weighted(weights)[..., None]).sum(-2)
        return self.last(sum(share[:, n, None] * expert(x) for n, expert in enumerate(self.experts)))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (lambda: Experts(k=1), "jax has 1 for 2 there"),
        (lambda: Experts(weighted=STOPPED), "gradient"),
    ],
)
def test_experts_that_are_given_all_tokens_are_not_blamed_for_their_routing(kind, says):
    x = np.random.default_rng(0).standard_normal((9, WIDTH)).astype(np.float32)
    report = compare(excite(TorchExperts(), seed=1), jax.eval_shape(kind), (x,), rules=RULES, tier="A")
    assert report.verdict.startswith("DIFFERENT: the model: "), str(report)
    assert says in report.verdict
    assert len(report.diverging) == 1, str(report)


class TorchSound(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, WIDTH, 3, 2, 1)
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, OUT)

    def forward(self, x):
        return self.head(self.norm(self.conv(x).mT).mean(1))


def sound(weights, x, pads):
    """Pooled at the end: the output has torch's shape all the same."""
    y = jax.lax.conv_general_dilated(x, weights["conv.weight"], (2,), [pads], dimension_numbers=("NCH", "OIH", "NCH"))
    y = tap("conv", y + weights["conv.bias"][:, None]).swapaxes(1, 2)
    y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)
    y = tap("norm", y * weights["norm.weight"] + weights["norm.bias"]).mean(1)
    return tap("head", y @ weights["head.weight"].T + weights["head.bias"])


def test_another_length_is_said_where_it_begins():
    theirs = excite(TorchSound(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items()}
    x = np.random.default_rng(0).standard_normal((2, 3, 9)).astype(np.float32)
    report = compare(theirs, weights, (x,), call_jax=lambda w, x: sound(w, x, (0, 0)), tier="A")
    assert report.verdict.startswith("DIFFERENT: conv: gives [2, 6, 4] in jax, [2, 6, 5] in torch: torch conv.padding (1,);")
    assert len(report.diverging) == 1, str(report)


class TorchTwice(torch.nn.Module):
    """One layer that is called twice with the same tensor."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, OUT)

    def forward(self, x):
        return self.inner(x).tanh() - 0.5 * self.inner(x)


def test_a_module_that_torch_calls_more_often_is_not_blamed_for_a_part_of_its_gradient():
    torch_model = excite(TorchTwice(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in torch_model.state_dict().items()}
    x = np.random.default_rng(1).normal(size=(3, LENGTH, WIDTH)).astype(np.float32)

    def once(weights, x):
        inner = tap("inner", x @ weights["inner.weight"].T + weights["inner.bias"])
        return jnp.tanh(inner) - 0.25 * inner

    report = compare(torch_model, weights, (x,), call_jax=once, checks=("forward", "local", "gradients"), tier="A")
    assert [module.jax for module in report.diverging] == ["(call)"], str(report)
    assert "jax has 0.25 for 0.5 there" in report.verdict
