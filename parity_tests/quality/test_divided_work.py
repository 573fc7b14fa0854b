"""Both sides may draw the boundaries of their calls elsewhere: that is no bug, and bugs beside it are named alone."""

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
from parity_tests.support.helpers import usually

pytestmark = [pytest.mark.foreign, pytest.mark.slow]

IDS, LENGTH, WIDTH, OUT, SCALE, LAYERS = 11, 7, 6, 5, 2.5, 3
RULES = Family(
    "toy",
    {},
    (Rule("embedding", "weight"), Rule("scale", "weight"), Rule("kernel", "weight", "transposed"), Rule("bias", "bias")),
)
X = np.random.default_rng(0).integers(0, IDS, (4, LENGTH))
CHECKS = ("weights", "forward", "local", "gradients", "activation gradients")


class TorchScaled(torch.nn.Embedding):
    """As Gemma's."""

    def forward(self, ids):
        return super().forward(ids) * SCALE


class TorchGroup(torch.nn.Module):
    """As ALBERT's: called once for each layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        return self.norm(x + torch.tanh(self.layer(x)))


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.places = TorchScaled(IDS, WIDTH), TorchScaled(LENGTH, WIDTH)
        self.first, self.group, self.out = torch.nn.Linear(WIDTH, WIDTH), TorchGroup(), torch.nn.Linear(WIDTH, OUT)

    def forward(self, ids):
        x = self.first(self.table(ids) + self.places(torch.arange(LENGTH).expand(ids.shape))).relu()
        for _ in range(LAYERS):
            x = self.group(x)
        return self.out(x)


class Group(nnx.Module):
    """The loop stands inside."""

    def __init__(self, layers):
        rngs = nnx.Rngs(0)
        self.layer = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.layers = layers

    def __call__(self, x):
        for _ in range(self.layers):
            x = self.norm(x + jnp.tanh(self.layer(x)))
        return x


class Wrong(nnx.Linear):
    """It forgets its bias."""

    def __call__(self, x):
        return x @ self.kernel[...]


class Dead(nnx.Embed):
    """Wrong in what goes nowhere: a multiple of its scale, which nothing undoes."""

    def __call__(self, ids):
        return super().__call__(ids) * 1.5


class Net(nnx.Module):
    """The scale stands after the tables, and the loop inside of the group."""

    def __init__(self, bug="", *, scale=SCALE, layers=LAYERS):
        rngs = nnx.Rngs(0)
        linear = {"first": nnx.Linear, "out": nnx.Linear} | {bug: Wrong}
        self.table = (Dead if bug == "table" else nnx.Embed)(IDS, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.first, self.group = linear["first"](WIDTH, WIDTH, rngs=rngs), Group(layers)
        self.out = linear["out"](WIDTH, OUT, rngs=rngs)
        if bug == "group.layer":
            self.group.layer = Wrong(WIDTH, WIDTH, rngs=rngs)
        self.scale = scale

    def __call__(self, ids):
        places = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
        x = (self.table(ids) + self.places(places)) * self.scale
        return self.out(self.group(jax.nn.relu(self.first(x))))


def compared(bug="", *, checks=CHECKS[:3], **how) -> Report:
    ours = jax.eval_shape(lambda: Net(bug, **how))
    return compare(excite(TorchNet(), seed=1), ours, (X,), rules=RULES, tier="A", checks=checks)


def test_a_clean_port_is_equal():
    report = compared(checks=CHECKS)
    assert report.status == "equal", str(report)
    assert report.diverging == []
    shared = {module.jax for module in report.modules if module.shared}
    assert shared == {"", "table", "places", "group"}
    (local,) = [stage.says for stage in report.stages if stage.name == "local"]
    assert "divide the work otherwise" in local


@pytest.mark.parametrize("bug", usually(["first", "group.layer", "out"], "group.layer"))
def test_a_bug_beside_is_named_alone(bug):
    report = compared(bug, checks=CHECKS)
    assert report.status == "different"
    assert {module.jax.split(" ")[0] for module in report.diverging} == {bug}, str(report)
    assert all(module.cause.startswith("torch adds the bias; jax does not add the bias") for module in report.diverging)


def test_a_bug_in_what_is_divided_is_found():
    report = compared("table")
    assert report.status == "different"
    assert report.diverging[0].jax == "table", str(report)
    assert "group" not in {module.jax for module in report.diverging}


@pytest.mark.parametrize(("how", "named"), [({"scale": SCALE + 0.1}, "table"), ({"layers": LAYERS - 1}, "group")])
def test_what_does_not_cancel_is_different(how, named):
    report = compared(**how)
    assert report.status == "different"
    assert named in {module.jax for module in report.diverging}, str(report)


class TorchCounted(torch.nn.Module):
    """As Whisper's: positions of the ids that it is given, once for all rows."""

    def __init__(self):
        super().__init__()
        self.table, self.places, self.out = torch.nn.Embedding(IDS, WIDTH), Counting(LENGTH, WIDTH), torch.nn.Linear(WIDTH, OUT)

    def forward(self, ids):
        return self.out(self.table(ids) + self.places(ids))


class Counting(torch.nn.Embedding):
    def forward(self, ids):
        return self.weight[: ids.shape[1]]


class Counted(nnx.Module):
    """The positions are made outside."""

    def __init__(self, bug=""):
        rngs = nnx.Rngs(0)
        self.table, self.places = nnx.Embed(IDS, WIDTH, rngs=rngs), nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.out = (Wrong if bug == "out" else nnx.Linear)(WIDTH, OUT, rngs=rngs)
        self.bug = bug

    def __call__(self, ids):
        positions = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
        return self.out(self.table(ids) + self.places(positions if self.bug != "places" else jnp.maximum(positions - 1, 0)))


class TorchNetOf(torch.nn.Module):
    """One module deeper, as decoders are."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids)


class CountedNet(nnx.Module):
    """The same."""

    def __init__(self, bug):
        self.model = Counted(bug)

    def __call__(self, ids):
        return self.model(ids)


@pytest.mark.parametrize(("bug", "named"), [("", set()), ("out", {"model.out"}), ("places", {"model"})])
def test_what_a_table_is_given_may_be_made_outside(bug, named):
    ours = jax.eval_shape(lambda: CountedNet(bug))
    report = compare(excite(TorchNetOf(TorchCounted()).eval(), seed=1), ours, (X,), rules=RULES, tier="A", checks=CHECKS)
    assert {module.jax for module in report.diverging} == named, str(report)
    assert (report.status == "equal") == (not named)


class Pooling(nnx.Module):
    """Gives the mean too, which torch's call takes outside of its model."""

    def __init__(self, stops: bool = False):
        self.first = nnx.Linear(WIDTH, OUT, rngs=nnx.Rngs(0))
        self.stops = stops

    def __call__(self, x):
        states = jnp.tanh(self.first(x))
        pooled = states.mean(1)
        return states, jax.lax.stop_gradient(pooled) if self.stops else pooled


class TorchStates(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, OUT)

    def forward(self, x):
        return torch.tanh(self.first(x))


def torch_states_and_mean(model, x):
    states = model(x)
    return torch.cat([states, states.mean(1, keepdim=True)], 1)


def states_and_mean(model, x):
    states, pooled = model(x)
    return jnp.concatenate([states, pooled[:, None]], 1)


@pytest.mark.parametrize("stops", [False, True])
def test_gradients_that_come_back_to_more_arrays_than_torchs(stops):
    x = np.random.default_rng(1).standard_normal((2, LENGTH, WIDTH)).astype(np.float32)
    theirs, ours = excite(TorchStates(), seed=1), jax.eval_shape(lambda: Pooling(stops))
    how = {"rules": RULES, "tier": "A", "checks": CHECKS}
    report = compare(theirs, ours, (x,), call_torch=torch_states_and_mean, call_jax=states_and_mean, **how)
    assert (report.status == "different") == stops, str(report)


class TorchPairs(torch.nn.Module):
    """As CLIP's: scores of pairs, turned too."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, OUT)

    def forward(self, x):
        scores = torch.tanh(self.first(x))
        return {"turned": scores.mT, "scores": scores}


class Pairs(nnx.Module):
    """Gives them once."""

    def __init__(self):
        self.first = nnx.Linear(WIDTH, OUT, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return jnp.tanh(self.first(x))


def test_what_torch_gives_and_nothing_reads_is_none_of_jaxs():
    x = np.random.default_rng(1).standard_normal((2, WIDTH)).astype(np.float32)
    theirs, ours = excite(TorchPairs(), seed=1), jax.eval_shape(Pairs)
    report = compare(theirs, ours, (x,), rules=RULES, call_torch=lambda m, x: m(x)["scores"], tier="A", checks=CHECKS)
    assert report.status == "equal", str(report)


class TorchCounting(torch.nn.Embedding):
    """It counts positions itself, as BART's does: two rows are kept for other things."""

    def forward(self, ids):
        return super().forward((torch.arange(LENGTH) + 2).expand(ids.shape))


class TorchPlaces(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.out = TorchCounting(LENGTH + 2, WIDTH), torch.nn.Linear(WIDTH, OUT)

    def forward(self, ids):
        return self.out(self.places(ids) * (ids[..., None] + 1.0))


class Places(nnx.Module):
    def __init__(self, first):
        self.places, self.out = nnx.Embed(LENGTH + 2, WIDTH, rngs=nnx.Rngs(0)), nnx.Linear(WIDTH, OUT, rngs=nnx.Rngs(0))
        self.first = first

    def __call__(self, ids):
        rows = jnp.broadcast_to(jnp.arange(LENGTH) + self.first, ids.shape)
        return self.out(self.places(rows) * (ids[..., None] + 1.0))


@pytest.mark.parametrize(("first", "told"), [(2, {}), (0, {"places": "jax looks up rows 2 lower than torch's"})])
def test_rows_that_are_counted_elsewhere(first, told):
    report = compare(excite(TorchPlaces(), seed=1), Places(first), (X,), rules=RULES, checks=CHECKS, tier="A")
    assert {module.name: module.cause.partition(":")[0] for module in report.diverging} == told, str(report)
