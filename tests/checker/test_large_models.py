"""Models that are too large to be compared as a whole: one weight at a time, selected modules, statistics."""

import copy
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

import jaxformer as jf
from jaxformer.errors import ConfigError, InputError
from jaxformer.parity import large
from jaxformer.parity.numerics.statistics import statistics_of
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.call_sites import Site
from jaxformer.parity.trace.not_finite import first_not_finite

VOCABULARY, WIDTH, INNER, LAYERS = 11, 6, 10, 3
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (2, 5)).astype(np.int32)


class TorchBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class TorchModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(TorchBlock() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("kept", torch.zeros(WIDTH), persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        x.mul_(2.0)  # in place, on rows of the table
        for block in self.blocks:
            x = block(x)
        self.kept.copy_(x[0, 0])  # what a buffer keeps is as exact as what it is given
        weight = self.head.weight
        return torch.nn.functional.linear(x + self.kept, weight / (1 + weight * weight).sqrt())


class Block(nnx.Module):
    def __init__(self, approximate, rngs):
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, INNER, rngs=rngs), nnx.Linear(INNER, WIDTH, rngs=rngs)
        self.approximate = approximate

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(self.norm(x)), approximate=self.approximate))


class Model(nnx.Module):
    def __init__(self, wrong):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List(Block(i == wrong, rngs) for i in range(LAYERS))
        self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x = self.embed(ids) * 2.0
        for block in self.blocks:
            x = block(x)
        weight = self.head.kernel[...]
        return (x + x[0, 0]) @ (weight / jnp.sqrt(1 + weight * weight))  # first of weights alone


@pytest.fixture(scope="module")
def torch_model():
    torch.manual_seed(0)
    model = TorchModel()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def port(torch_model, wrong=None):
    """The same model with torch's weights; tanh's GELU in block `wrong`."""
    model, held = Model(wrong), {name: value.numpy() for name, value in torch_model.state_dict().items()}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        name = ".".join(map(str, path))
        name = name.replace("kernel", "weight").replace("scale", "weight").replace("embedding", "weight")
        variable.set_value(jnp.asarray(held[name].T if path[-1] == "kernel" else held[name]))
    return model


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr(large, "free_bytes", lambda: 1)


@pytest.mark.slow
def test_one_weight_at_a_time_finds_the_same_module_and_cause(torch_model, no_memory):
    report = jf.compare(torch_model, port(torch_model, wrong=1), (IDS,))
    (module,) = report.diverging
    assert module.name == "blocks.1"
    assert "torch activation gelu; jax activation gelu by tanh" in module.cause
    assert [stage.name for stage in report.stages] == ["weights", "forward", "local", "float32"]
    assert any(each.startswith("gradients: a comparison with gradients takes") for each in report.not_covered)


@pytest.mark.slow
def test_one_weight_at_a_time_is_as_exact_as_a_model_in_float64(torch_model, no_memory, monkeypatch):
    equal = jf.compare(torch_model, port(torch_model), (IDS,))
    assert equal.exit_code == 0, equal
    forward = next(stage for stage in equal.stages if stage.name == "forward")
    assert float(forward.says.split()[1]) < 1e-14
    nearly = port(torch_model)
    nearly.blocks[2].norm.epsilon = 1.00001e-5
    assert jf.compare(torch_model, nearly, (IDS,)).diverging[0].name.startswith("blocks.2")


def test_weights_that_are_equal_are_not_copied(torch_model):
    from jaxformer.convert.rules import to_jax
    from jaxformer.parity.pairing.tensors import NO_RULES, identify
    from jaxformer.parity.trace.torch_hooks import torch_state

    state, model = torch_state(torch_model), port(torch_model)
    model.blocks[0].up.kernel.set_value(model.blocks[0].up.kernel[...] * 2)
    found = identify(state, model, NO_RULES)
    loaded = to_jax(state.weights, model, found.family, keep=True)
    same = [one is other for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(model), strict=True)]
    assert same.count(False) == 1
    assert np.array_equal(loaded.blocks[0].up.kernel[...], state.weights["blocks.0.up.weight"].T)


def test_gradients_alone_are_refused_where_memory_is_short(torch_model, no_memory):
    with pytest.raises(InputError, match=r"checks = \('gradients',\): a comparison with gradients takes .* are free; check"):
        jf.compare(torch_model, port(torch_model), (IDS,), checks=("gradients",))


def test_selected_modules_alone_are_compared(torch_model):
    report = jf.compare(torch_model, port(torch_model, wrong=2), (IDS,), names="blocks.*", every=2, checks=("forward", "local"))
    assert {module.name.split(".")[1] for module in report.modules if "." in module.name} == {"0", "2"}
    assert [module.name for module in report.diverging] == ["blocks.2"]
    assert any("which names = 'blocks.*' and every = 2 leave out" in each for each in report.not_covered)
    assert report.jax_only == report.torch_only == []


def test_a_selection_of_nothing_names_the_nearest(torch_model):
    report = jf.compare(torch_model, port(torch_model), (IDS,), names="block.0.up")
    assert report.exit_code == 2
    assert "names = 'block.0.up' with every = 1 select none of 13 modules; the nearest are blocks.0.up" in report.verdict
    with pytest.raises(ConfigError, match="every = 0 is out of range"):
        jf.compare(torch_model, port(torch_model), (IDS,), every=0)


def test_statistics_do_not_depend_on_the_order_of_axes_and_bound_a_distance():
    random = np.random.default_rng(3)
    for shape in ((7,), (3, 5), (2, 9, 4), (2, 3, 5, 4)):
        array = random.standard_normal(shape)
        turned = array.transpose(random.permutation(array.ndim))
        other = turned + 1e-6 * random.standard_normal(turned.shape)
        one, two, three = map(statistics_of, (array, turned, other))
        assert one.checksum == two.checksum != three.checksum
        assert np.allclose(one.projections, two.projections, rtol=1e-12, atol=1e-12)
        true = np.linalg.norm(other - turned) / np.linalg.norm(turned)
        assert true / 3 < one.apart(three).relative < 3 * true


@pytest.fixture(scope="module")
def dumped(torch_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("statistics") / "dump"
    jf.dump(torch_model, (IDS,), folder, keep="statistics")
    return folder


def test_statistics_name_the_first_module(torch_model, dumped):
    assert jf.check(dumped, port(torch_model)).verdict == "EQUAL: weights, forward (tier A)"
    report = jf.check(dumped, port(torch_model, wrong=1))
    assert [(module.name, module.what) for module in report.diverging] == [("blocks.1", "input of blocks.1.down")]
    assert Report.from_json(report.to_json()) == report
    assert report.verdict == jf.compare(torch_model, port(torch_model, wrong=1), (IDS,), keep="statistics").verdict


def test_statistics_tell_other_weights(torch_model, dumped):
    other = port(torch_model)
    other.blocks[1].up.kernel.set_value(other.blocks[1].up.kernel[...] * 1.001)
    report = jf.check(dumped, other)
    assert "blocks.1.up.kernel is off by relL2" in report.stages[0].says
    assert "from blocks.1.up.weight" in report.stages[0].says
    assert report.diverging[0].name == "blocks.1.up"


@pytest.mark.slow
def test_statistics_of_a_jax_reference(torch_model):
    report = jf.compare(port(torch_model), port(torch_model, wrong=0), (IDS,), keep="statistics")
    assert report.diverging[0].name == "blocks.0"
    assert jf.compare(port(torch_model), port(torch_model), (IDS,), keep="statistics").exit_code == 0


def test_the_first_output_that_is_not_finite_is_named(torch_model, dumped):
    broken = port(torch_model)
    broken.blocks[1].norm.epsilon = -1e9
    report = jf.check(dumped, broken)
    assert "jax's first output that is not finite is that of blocks.1.norm, in 60 of 60 numbers" in report.stages[1].says


def test_a_changed_dump_of_statistics_is_refused(torch_model, dumped, tmp_path):
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in dumped.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    manifest = json.loads((changed / "summary.json").read_text())
    manifest["events"] = manifest["events"][1:]
    (changed / "summary.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="is damaged, or no dump"):
        jf.check(changed, port(torch_model))
    with pytest.raises(InputError, match="exists"):
        jf.dump(torch_model, (IDS,), dumped, keep="statistics")
    with pytest.raises(ConfigError, match="keep = 'all' is not known; choose one of tensors, statistics"):
        jf.compare(torch_model, port(torch_model), (IDS,), keep="all")


def test_a_module_that_is_given_what_is_not_finite_is_not_named():
    child, around = Site("a.b", 0), Site("a", 0)
    run = [(around, "inputs", 0, 4), (child, "inputs", 1, 4), (child, "output", 2, 4), (around, "output", 3, 4)]
    assert first_not_finite(run) == "a, in 3 of 4 numbers"
    assert first_not_finite(run[:1]) == ""


def test_the_first_module_of_torchs_that_is_not_finite_is_named(torch_model):
    broken = copy.deepcopy(torch_model)
    broken.blocks[1].up.weight.data[0, 0] = torch.inf
    report = jf.compare(broken, port(torch_model), (IDS,), checks=("forward",))
    assert "the first output that is not finite is blocks.1.up, in 10 of 100 numbers" in report.verdict


class Recurrent(torch.nn.Module):
    """Convolution, recurrent layer, and a buffer that is written: what has dtypes of its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.rnn = torch.nn.Conv1d(3, WIDTH, 2), torch.nn.RNN(WIDTH, 4, batch_first=True)
        self.steps = 0
        self.register_buffer("moved", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        self.moved += 0.25 * self.steps
        return self.rnn(self.conv(x).mT)[0] * (1 + self.moved)


SERIES = np.random.default_rng(1).standard_normal((2, 3, 5)).astype(np.float32)


def recurrent(factor):
    def call(held, x):
        y = jax.lax.conv_general_dilated(x, held["conv.weight"], (1,), "VALID", dimension_numbers=("NCH", "OIH", "NCH"))
        y, h, states = y + held["conv.bias"][:, None], jnp.zeros((x.shape[0], 4), x.dtype), []
        for at in range(y.shape[2]):
            given = y[:, :, at] @ held["rnn.weight_ih_l0"].T + held["rnn.bias_ih_l0"] + held["rnn.bias_hh_l0"]
            h = given + h @ held["rnn.weight_hh_l0"].T
            states.append(h := jnp.tanh(h))
        return jnp.stack(states, 1) * factor

    return call


@pytest.mark.parametrize(("factor", "verdict"), [(1.25, "EQUAL"), (1.25000001, "DIFFERENT")])
def test_what_a_large_model_writes_stays_in_a_copy(factor, verdict, no_memory):
    """The second run of a model that counts its calls is the first run again."""
    model = jf.excite(Recurrent().eval(), seed=0)
    held = {name: jnp.asarray(value.numpy()) for name, value in model.state_dict().items() if name != "moved"}
    for keep in ("tensors", "statistics"):
        report = jf.compare(model, held, (SERIES,), call_jax=recurrent(factor), keep=keep)
        assert report.verdict.startswith(verdict), report
    assert (model.steps, float(model.moved), model.rnn.weight_hh_l0.dtype) == (0, 0.0, torch.float32)


def test_a_large_model_that_writes_into_its_weights_is_refused(no_memory):
    class Writing(torch.nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.mul_(2.0)
            return super().forward(x)

    model = Writing(3, 2)
    held = {"weight": jnp.asarray(model.weight.detach().numpy()), "bias": jnp.asarray(model.bias.detach().numpy())}
    x = SERIES[:, :, 0]
    report = jf.compare(model, held, (x,), call_jax=lambda p, x: x @ p["weight"].T * 2 + p["bias"])
    assert "torch's forward pass writes into its own weights" in report.verdict
    assert np.array_equal(model.weight.detach().numpy(), held["weight"])


class Counting(nnx.Module):
    def __init__(self):
        self.linear, self.calls = nnx.Linear(5, 4, rngs=nnx.Rngs(0)), nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        self.calls[...] += 1
        return self.linear(x) * self.calls[...]


def test_statistics_leave_a_jax_model_as_it_was(tmp_path):
    model = Counting()
    jf.dump(model, (SERIES,), tmp_path / "dump", keep="statistics")
    assert jf.check(tmp_path / "dump", model).exit_code == 0
    assert float(model.calls[...]) == 0


@pytest.mark.parametrize("change", [lambda x: jnp.roll(x, 1, 1), lambda x: x[::-1], lambda x: x[..., ::-1]])
def test_statistics_see_entries_in_another_order(change):
    held = {"up": jnp.asarray(SERIES[0])}
    same, other = (lambda p, x: x @ p["up"].T), (lambda p, x: change(x @ p["up"].T))
    given = {"call_torch": same, "keep": "statistics"}
    assert jf.compare(held, held, (SERIES,), call_jax=same, **given).exit_code == 0
    assert jf.compare(held, held, (SERIES,), call_jax=other, **given).exit_code == 1


@pytest.mark.parametrize("joined_first", [True, False])
def test_statistics_of_joined_weights(joined_first):
    random = np.random.default_rng(2)
    apart = {name: jnp.asarray(random.standard_normal((5, 4)), jnp.float32) for name in ("q", "k", "v")}
    joined = {"qkv": jnp.concatenate([apart["k"], apart["q"], apart["v"]], 1)}

    def of(q, k, v):
        return jnp.tanh(q * k) + v

    sides = [(apart, lambda p, x: of(x @ p["q"], x @ p["k"], x @ p["v"]))]
    sides += [(joined, lambda p, x: of(*(jnp.split(x @ p["qkv"], 3, -1)[i] for i in (1, 0, 2))))]
    (one, call_one), (two, call_two) = sides[::-1] if joined_first else sides
    report = jf.compare(one, two, (SERIES,), call_torch=call_one, call_jax=call_two, keep="statistics")
    assert report.exit_code == 0, report
    other = jax.tree.map(lambda x: x.at[0, 0].add(1e-3), two)
    report = jf.compare(one, other, (SERIES,), call_torch=call_one, call_jax=call_two, keep="statistics")
    assert [stage.status for stage in report.stages] == ["different", "different"]


class Norms(linen.Module):
    epsilon: float = 1e-6

    @linen.compact
    def __call__(self, x):
        x = linen.LayerNorm(epsilon=self.epsilon, name="norm")(linen.Dense(4, name="up")(x))
        return linen.Dense(3, name="down")(linen.relu(x))


def test_statistics_place_a_difference_in_a_linen_model():
    held = Norms().init(jax.random.key(0), SERIES)
    given = {"call_torch": Norms().apply, "call_jax": Norms(1e-4).apply, "keep": "statistics"}
    assert [module.name for module in jf.compare(held, held, (SERIES,), **given).diverging] == ["norm"]


@pytest.mark.parametrize("asked", [{"checks": ("gradients",)}, {"tier": "C"}, {"reduce_to": "failing.py"}])
def test_what_needs_arrays_is_refused_of_statistics(asked):
    held = {"up": jnp.asarray(SERIES[0])}
    call = {"call_torch": lambda p, x: x @ p["up"].T, "call_jax": lambda p, x: x @ p["up"].T}
    with pytest.raises(InputError, match=f"^{next(iter(asked))}.* needs torch's arrays, and the reference holds statistics"):
        jf.compare(held, held, (SERIES,), keep="statistics", **call, **asked)


def likeliest(held, x):
    return (x @ held["up"].T).argmax(-1)


def two(held, x):
    return {"a": jnp.sin(x) @ held["up"].T, "b": jnp.cos(x) @ held["up"].T}


OUTPUTS = {
    "whole numbers": (likeliest, lambda held, x: likeliest(held, -x)),
    "booleans": (lambda held, x: likeliest(held, x) > 1, lambda held, x: likeliest(held, x) > 0),
    "a mask": (lambda held, x: jnp.where(x > 0, 0.0, -jnp.inf), lambda held, x: jnp.where(x > 1, 0.0, -jnp.inf)),
    "complex": (lambda held, x: jnp.fft.fft(x @ held["up"].T), lambda held, x: jnp.fft.fft(x @ held["up"].T).conj()),
    "two names": (two, lambda held, x: dict(zip("ba", two(held, x).values(), strict=True))),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_statistics_judge_every_kind_of_output(kind):
    held, (right, wrong) = {"up": jnp.asarray(SERIES[0])}, OUTPUTS[kind]
    verdicts = [jf.compare(held, held, (SERIES,), call_torch=right, call_jax=f, keep="statistics") for f in (right, wrong)]
    assert [report.exit_code for report in verdicts] == [0, 1], verdicts


def test_statistics_of_named_outputs_in_another_order_and_of_one_of_them(tmp_path):
    held = {"up": jnp.asarray(SERIES[0])}
    jf.dump(held, (SERIES,), tmp_path / "dump", call_torch=two, keep="statistics")
    assert jf.check(tmp_path / "dump", held, call_jax=lambda *given: dict(reversed(two(*given).items()))).exit_code == 0
    alone = jf.compare(
        held, held, (SERIES,), call_torch=two, call_jax=lambda *given: {"b": two(*given)["b"]}, keep="statistics"
    )
    assert alone.exit_code == 0
    assert any("output a" in left for left in alone.not_covered)


def test_statistics_of_nothing_finite_show_nothing():
    held = {"up": jnp.asarray(SERIES[0]) * jnp.nan}
    call = {"call_torch": lambda p, x: x @ p["up"].T, "call_jax": lambda p, x: x @ p["up"].T}
    report = jf.compare(held, held, (SERIES,), **call, keep="statistics")
    assert report.verdict.startswith("COULD NOT COMPARE: forward: the reference's output holds no finite number")


def tapped(place, act=jnp.tanh):
    """A function whose tap, of no parameter's name, shows the hidden values, or what they are multiplied to."""

    def call(held, x):
        hidden = act(x @ held["up"].T)
        if place == "hidden":
            return jf.tap("middle", hidden) @ held["up"]
        return jf.tap("middle", hidden @ held["up"])

    return call


@pytest.mark.parametrize("keep", ["tensors", "statistics"])
def test_taps_of_one_name_place_a_difference_and_make_none(keep):
    held, quick = {"up": jnp.asarray(SERIES[0])}, {"keep": keep, "tier": "A", "checks": ("weights", "forward", "local")}

    def compared(call):
        return jf.compare(held, held, (SERIES,), call_torch=tapped("hidden"), call_jax=call, **quick)

    assert [module.name for module in compared(tapped("hidden", jnp.sin)).diverging] == ["middle"]
    assert compared(tapped("behind")).exit_code == 0
