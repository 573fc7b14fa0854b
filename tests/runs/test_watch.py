"""A watched step: exact norms by layer, the same training to the bit, and the first series that leaves its band."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jaxformer as jf
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.errors import ConfigError, InputError
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.watched import ROWS, Monitor, forget_rows, read_rows, series_of
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.step import make_shaped_train_steps, make_train_steps, train_state
from jaxformer.training.watch import Look, watched_steps
from tests.tiny import flags, quick_key, quick_recipe

pytestmark = pytest.mark.foreign
ADAM = optax.adam(0.01)
PARAMS, MEANS = ({name: {leaf: jnp.ones(n)} for name in "ab"} for leaf, n in (("w", 3), ("mean", 2)))
X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)


def predict(params, x):
    for name in ("a", "b", "c"):
        x = jf.tap(name, jnp.tanh(x @ params[name]["w"] + params[name]["b"]))
    return x


@partial(jax.jit, static_argnames="is_tapped")
def step(params, moments, x, rate=1.0, *, is_tapped=True):
    """Three layers in optax's style; `rate` times the learning rate."""
    value, gradient = jax.value_and_grad(lambda params: jnp.square(predict(params, x) - 0.3).mean())(params)
    if is_tapped:
        gradient = jf.tap("gradient", gradient)
    updates, moments = ADAM.update(gradient, moments, params)
    return optax.apply_updates(params, jax.tree.map(lambda each: rate * each, updates)), moments, {"loss": value}


def begin():
    rng = np.random.default_rng(1)
    sizes = {"a": (3, 4), "b": (4, 6), "c": (6, 2)}
    params = {
        name: {"w": jnp.asarray(rng.normal(size=size), jnp.float32), "b": jnp.zeros(size[1])} for name, size in sizes.items()
    }
    return params, ADAM.init(params)


def norm(*arrays) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(each, np.float64)).sum() for each in arrays)))


def test_norms_are_those_of_the_step():
    params, moments = begin()
    found = Look(step)(params, moments, X)
    after, moments_after, metrics = step(params, moments, X)
    gradient = jax.grad(lambda params: jnp.square(predict(params, X) - 0.3).mean())(params)
    wanted = {"loss": float(metrics["loss"])}
    states = jnp.tanh(X @ params["a"]["w"] + params["a"]["b"])
    wanted["activation/a"] = norm(states) / np.sqrt(states.size)
    for name in "abc":
        wanted[f"weight/{name}"] = norm(*params[name].values())
        wanted[f"gradient/{name}"] = norm(*gradient[name].values())
        wanted[f"mu/{name}"] = norm(*moments_after[0].mu[name].values())
        wanted[f"nu/{name}"] = norm(*(np.sqrt(leaf) for leaf in moments_after[0].nu[name].values()))
        wanted[f"update/{name}"] = norm(*(after[name][leaf] - params[name][leaf] for leaf in "wb"))
    assert found.keys() == wanted.keys() | {"activation/b", "activation/c"}
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name
    order = ["weight/a", "activation/a", "activation/c", "loss", "gradient/a", "mu/a", "update/a"]
    assert [name for name in found if name in order] == order


def test_without_the_tap_there_is_no_gradient_and_the_rest_is_the_same():
    params, moments = begin()
    whole, without = (Look(step)(params, moments, X, is_tapped=is_tapped) for is_tapped in (True, False))
    assert whole.keys() - without.keys() == {"gradient/a", "gradient/b", "gradient/c"}
    assert without == {name: value for name, value in whole.items() if name in without}


class Net(nnx.Module):
    def __init__(self, rngs):
        self.inner, self.outer = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(jax.nn.relu(self.inner(x)))


def test_an_nnx_step_that_changes_its_model_in_place():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        value, gradient = nnx.value_and_grad(lambda model: jnp.square(model(x)).mean())(model)
        optimizer.update(model, jf.tap("gradient", gradient))
        return value

    before = digest(nnx.state(model))
    found = Look(step)(model, optimizer, X)
    quantities = "weight", "activation", "gradient", "mu", "nu", "update"
    assert {*found} == {"loss", *(f"{each}/{name}" for each in quantities for name in ("inner", "outer"))}
    assert digest(nnx.state(model)) == before, "a look changes nothing"
    old = np.asarray(model.inner.kernel[...]), np.asarray(model.inner.bias[...])
    step(model, optimizer, X)
    moved = norm(model.inner.kernel[...] - old[0], model.inner.bias[...] - old[1])
    assert found["update/inner"] == pytest.approx(moved, rel=1e-4)


def test_a_linen_train_state():
    class Small(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(1)(linen.relu(linen.Dense(4)(x)))

    from flax.training.train_state import TrainState

    model = Small()
    params = model.init(quick_key(0), X)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1, momentum=0.9))

    def step(state, x):
        loss = lambda params: jnp.square(state.apply_fn({"params": params}, x)).mean()  # noqa: E731
        return state.apply_gradients(grads=jf.tap("gradient", jax.grad(loss)(state.params)))

    found = Look(step)(state, X)
    quantities = "weight", "activation", "gradient", "trace", "update"
    assert {*found} == {f"{each}/{name}" for each in quantities for name in ("Dense_0", "Dense_1")}


def grown(tree):
    return jax.tree.map(lambda leaf: leaf + 1, tree)


@pytest.mark.parametrize(
    ("step", "given"),
    [
        (lambda params, means, moments: (grown(params), grown(means), grown(moments)), (MEANS, ADAM.init(PARAMS))),
        (lambda params, variables: (grown(params), grown(variables)), ({"batch_stats": MEANS},)),
    ],
    ids=["an argument without moments, as Haiku's", "Linen's collection"],
)
def test_running_statistics_are_no_weights(step, given):
    weights = {name: norm for name, norm in Look(step)(PARAMS, *given).items() if name.startswith("weight/")}
    assert weights == pytest.approx({"weight/a": 3**0.5, "weight/b": 3**0.5})


def test_parameters_that_are_one_array_and_a_state_in_a_tuple():
    def step(carry, x):
        w, moments = carry
        gradient = jf.tap("gradient", jax.grad(lambda w: jnp.square(x @ w).mean())(w))
        updates, moments = ADAM.update(gradient, moments, w)
        return (w + updates, moments), jnp.mean(x)

    w = jnp.ones(3)
    found = Look(step)((w, ADAM.init(w)), X)
    assert {*found} == {"loss", *(f"{each}/params" for each in ("weight", "gradient", "mu", "nu", "update"))}
    assert found["weight/params"] == pytest.approx(3**0.5)


def test_what_changes_nothing_is_refused():
    with pytest.raises(InputError, match="the step returns no changed argument, and changes none in place"):
        Look(lambda params, x: jnp.mean(x))(begin()[0], X)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Steps with a fault before the 60th, watched at every second: (what was said, the folder, the state at the end)."""

    def run(fault=None, *, is_watched=True):
        folder = tmp_path_factory.mktemp("run") / "watched"
        said: list[str] = []
        if is_watched:
            watched = jf.watch(step, every=2, out=folder)
            watched._look, watched.monitor.say = looks, said.append
        take, state = (watched if is_watched else step), begin()
        rng = np.random.default_rng(2)
        for number in range(1, 70):
            x = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
            rate = 30.0 if (fault, number) == ("rate", 60) else 1.0
            if number == 60 and fault == "batch":
                x = x * jnp.nan
            if number == 60 and fault == "weight":
                state[0]["b"]["w"] = 3 * state[0]["b"]["w"]
            state = take(*state, x, rate)[:2]
        return said, folder, state

    looks = jf.watch(step, every=2, out=tmp_path_factory.mktemp("first"))._look  # one program for all of them
    return run


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        ("rate", "update of a is"),
        ("batch", "activation of a is nan, outside of its band"),
        ("weight", "weight of b is"),
    ],
)
def test_a_fault_is_told_with_its_step_and_layer(course, fault, first):
    said, folder, _ = course(fault)
    assert said[0].startswith(f"watch: step 60: {first}"), said
    assert len(said) == 1, "what goes on is told once"
    row = next(row for row in read_rows(folder) if row["step"] == 60)
    assert f"step 60: {row['left'].replace('/', ' of ')} is" in said[0]
    assert not any("left" in row for row in read_rows(folder) if row["step"] < 60)


def test_a_clean_run_is_the_same_to_the_bit_and_nothing_is_told(course):
    said, folder, state = course()
    assert said == []
    assert digest(state) == digest(course(is_watched=False)[2]) != digest(course("rate")[2])
    rows = read_rows(folder)
    assert [row["step"] for row in rows] == [1, *range(2, 70, 2)]
    assert {len(series_of(row)) for row in rows} == {19}


def parabola(model, batch, key):
    return jnp.sum(jnp.square(model["w"] - batch)), jnp.ones(())


@pytest.mark.parametrize("kind", ["fused", "shaped"])
def test_the_steps_of_a_run_are_the_same_to_the_bit(kind, tmp_path):
    optimizer = make_optimizer(OptimizerConfig(name="adam", learning_rate=0.1), ScheduleConfig())
    if kind == "fused":
        steps = make_train_steps(parabola, optimizer, lambda data, key: data + jax.random.uniform(key))
    else:
        steps = make_shaped_train_steps(parabola, optimizer, lambda step: np.float32(step))
    states = []
    for monitor in (None, Monitor.begin(tmp_path, 3, 0, say=lambda line: None)):
        state, mean = watched_steps(steps, jnp.ones(()), quick_key(0), monitor)(
            train_state({"w": jnp.ones(2)}, optimizer), jnp.int32(8)
        )
        states.append((digest(state), pytest.approx(float(mean), rel=1e-6)))
    assert states[0] == states[1]
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 3, 6]
    assert {*series_of(read_rows(tmp_path)[0])} == {"loss", *(f"{it}/w" for it in ("weight", "gradient", "mu", "nu", "update"))}


@pytest.mark.slow
def test_a_recipe_with_the_flag_trains_the_same_and_resumes_its_rows(text_file, tmp_path):
    from jaxformer.recipes import shakespeare

    with quick_recipe():
        weights = []
        for name, more in (("plain", {}), ("watched", {"watch": 2})):
            shakespeare.main(["--data", str(text_file), "--out", str(tmp_path / name), *flags(**more)])
            weights.append((tmp_path / name / "weights.safetensors").read_bytes())
        rows = (tmp_path / "watched" / ROWS).read_text()
        with pytest.warns(UserWarning, match="step 6 is set aside: the run goes on from step 3"):
            shakespeare.main(["--out", str(tmp_path / "watched"), "--resume", "3", "--steps", "8"])
    assert weights[0] == weights[1]
    again = (tmp_path / "watched" / ROWS).read_text()
    assert again.startswith(rows), "the steps after 3 were taken again"
    steps = [row["step"] for row in read_rows(tmp_path / "watched", RunFolder(tmp_path / "watched").identity)]
    assert steps == [1, 2, 4, 6, 8]


def test_rows_go_on_where_a_run_does(tmp_path):
    monitor = Monitor.begin(tmp_path, 2, 0, say=lambda line: None)
    for number in (1, 2, 4):
        monitor.write(number, {"loss": 1.0 + number})
    with pytest.raises(InputError, match=rf"{ROWS} has rows up to step 4, and 2 steps were taken; name another folder"):
        jf.watch(step, every=2, out=tmp_path, taken=2)
    forget_rows(tmp_path, 2, "")
    assert [series_of(row) for row in read_rows(tmp_path)] == [{"loss": 2.0}, {"loss": 3.0}]
    watched = jf.watch(step, every=2, out=tmp_path, taken=2)
    assert len(watched.monitor.bands.logs) == 2
    (tmp_path / ROWS).write_text((tmp_path / ROWS).read_text().replace("2.0", "2.5"))
    assert [row["step"] for row in read_rows(tmp_path)] == [2], "a changed row is left out"


def test_a_file_that_cannot_be_written_ends_the_watch_alone(tmp_path):
    said: list[str] = []
    monitor = Monitor.begin(tmp_path, 2, 0, say=said.append)
    said.clear()
    (tmp_path / ROWS).mkdir()
    for number in (1, 2):
        monitor.write(number, {"loss": 1.0})
    assert said == [f"warning: {tmp_path / ROWS} cannot be written: Is a directory; the rest of the run is not watched"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"every": 0}, "every = 0 is out of range"),
        ({"every": 2, "out": ""}, "out is empty; give a path"),
        ({"every": 2, "taken": -1}, "taken = -1 is out of range"),
    ],
)
def test_bad_arguments_are_refused(given, says, tmp_path):
    with pytest.raises((InputError, ConfigError), match=f"^{says}"):
        jf.watch(step, **{"out": tmp_path, **given})


def test_a_step_that_jit_cannot_trace_is_refused(tmp_path):
    def stepping(params, x):
        return {name: leaf if float(x.sum()) > 0 else -leaf for name, leaf in params.items()}

    with pytest.raises(InputError, match=r"^the step cannot be watched: jit cannot trace it"):
        jf.watch(stepping, every=1, out=tmp_path)({"w": X}, X)


def test_arguments_that_the_step_does_not_take_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"^the step cannot be watched: given a dict, a tuple, a str, it raised TypeError: "
    ) as caught:
        jf.watch(step, every=1, out=tmp_path)(*begin(), "a string")
    assert "\n" not in str(caught.value)


def test_rows_are_json_lines(tmp_path):
    Monitor.begin(tmp_path, 1, 0, say=lambda line: None).write(1, {"loss": float("nan")})
    (line,) = (tmp_path / ROWS).read_text().splitlines()
    assert json.loads(line).keys() == {"step", "loss", "left", "low", "high", "crc32"}
