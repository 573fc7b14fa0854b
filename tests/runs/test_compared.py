"""Bands that a clean run stays in, and two watched runs beside each other: rounding grows, a difference jumps."""

import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

import jaxformer as jf
import torch_ref.models as twin_models
import torch_ref.training.losses as twin_losses
import torch_ref.training.optimizers as twin_optimizers
import torch_ref.training.step as twin
from jaxformer.cli.main import dispatch
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.errors import InputError
from jaxformer.runs import bands as bands_module
from jaxformer.runs.bands import WARM_UP, Bands
from jaxformer.runs.compared import GROWTH, Run, compare
from jaxformer.runs.watched import Monitor
from jaxformer.training.losses import cross_entropy
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.step import train_state, train_step
from tests.tiny import tiny_config

SERIES = [f"gradient/layers.{i}" for i in range(40)]


def course(seed: int) -> np.ndarray:
    """Norms of 40 layers over 200 steps, that fall slowly and scatter by a fifth."""
    noise = np.random.default_rng(seed).normal(size=(200, 40))
    return np.exp(0.2 * noise - np.linspace(0, 2, 200)[:, None])


def found_in(rows: np.ndarray) -> list:
    bands = Bands()
    found = [bands.check(step, dict(zip(SERIES, row.tolist(), strict=True))) for step, row in enumerate(rows, start=1)]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_course_stays_in_its_bands(seed):
    assert found_in(course(seed)) == []


@pytest.mark.parametrize("value", [30.0, 0.01, np.nan, np.inf])
def test_what_leaves_its_band_is_found_at_its_step(value, monkeypatch):
    rows = course(0)
    rows[149, 7] = rows[148, 7] * value
    first, *_ = found_in(rows)
    assert (first.step, first.series, first.more) == (150, "gradient/layers.7", 0)
    assert not first.low <= first.value <= first.high
    monkeypatch.setattr(bands_module, "LEAST", 1e9)
    assert bool(found_in(rows)) == (not np.isfinite(value)), "the control"


def test_nothing_but_a_number_that_is_not_finite_leaves_a_band_before_it_is_made():
    rows = course(0)[:WARM_UP]
    rows[-1, 3] *= 1000
    assert found_in(rows) == []
    rows[2, 4] = np.nan
    assert [(each.step, each.series) for each in found_in(rows)] == [(3, "gradient/layers.4")]


def run_of(values, name="run") -> Run:
    return Run(
        name, {10 * i: {"loss": 1.0, "gradient/a": 1.0, "update/a": float(v)} for i, v in enumerate(values, start=1)}, {}
    )


@pytest.mark.parametrize(
    ("differences", "step"),
    [
        ([0, 0, 0], None),
        ([1e-6, 1e-5, 9e-5], None),
        ([1e-3, 1e-3], 10),
        ([1e-6, 1e-6, 1e-3], 30),
        ([5e-5, 0.9 * GROWTH * 5e-5, 4e-3, 3e-2, 0.2, 0.9], None),
        ([0, np.nan], 20),
    ],
)
def test_a_jump_is_divergence_and_growth_is_rounding(differences, step):
    comparison = compare(run_of([1.0] * len(differences)), run_of([1.0 - d for d in differences]))
    found = comparison.divergence
    assert (found.step if found else None) == step
    word = comparison.verdict.partition(":")[0]
    assert word == ("DIVERGED" if step else "NO JUMP" if max(differences) > 0.1 else "SAME")
    if step:
        assert f"at step {step}, first update of a: 1 and" in comparison.verdict


def test_runs_without_a_common_step_or_series_are_refused(tmp_path):
    one = run_of([1.0])
    with pytest.raises(InputError, match="have no watched step in common"):
        compare(one, replace(one, rows={11: one.rows[10]}))
    with pytest.raises(InputError, match="have no series in common"):
        compare(one, replace(one, rows={10: {"gradient/b": 1.0}}))
    with pytest.raises(InputError, match=r"has no watch\.jsonl; give a run that was watched"):
        Run.read(tmp_path)


def test_the_command_writes_a_page_and_says_where_runs_part(tmp_path, capsys):
    for name, last in (("one", 0.5), ("same", 0.5), ("other", 1.0)):
        monitor = Monitor.begin(tmp_path / name, 10, 0, say=lambda line: None)
        for step, value in ((10, 0.25), (20, 0.375), (30, last)):
            monitor.write(step, {"loss": 2.0, "gradient/<a>": value})
    page, one = tmp_path / "page.html", str(tmp_path / "one")
    assert dispatch(["runs", "compare", one, str(tmp_path / "same"), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"SAME: 2 series at 3 watched steps, apart by at most 0.0e+00 · page {page}\n"
    assert "step 30" not in page.read_text("utf-8")
    assert dispatch(["runs", "compare", one, str(tmp_path / "other"), "--html", str(page)]) == 1
    said = "at step 30, first gradient of <a>: 0.5 and 1, apart by 5.0e-01 where rounding explains 1e-04"
    assert capsys.readouterr().out == f"DIVERGED: {said} · page {page}\n"
    text = page.read_text("utf-8")
    assert ">step 30</text>" in text
    assert "gradient/&lt;a&gt;" in text
    assert "<a>" not in text
    assert "http" not in text.replace("http-equiv", "")


CONFIG = tiny_config(qkv_bias=False, layers="rolled")
"""Softmax ignores a bias of the keys: its gradient is rounding, which Adam turns into whole steps."""
OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.1, clip_norm=1.0)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Four steps of the twins on the same batches: their folders; torch's query of layer 1 may be scaled before the third."""
    theirs = jf.excite(twin_models.GPT(CONFIG), seed=0).train()
    start = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    batches = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (4, 2, 3, 8)).astype(np.int32)
    ours, folder = make_optimizer(OPTIMIZER, ScheduleConfig()), tmp_path_factory.mktemp("twins")

    def loss(model, batch, key):
        return cross_entropy(model(batch[0]), batch[1])

    state = train_state(jf.from_torch(theirs, jf.abstract(CONFIG)), ours)
    step = jf.watch(jax.jit(partial(train_step, key=None, loss=loss, optimizer=ours)), every=1, out=folder / "jax")
    for batch in batches:
        state, _ = step(state, tuple(batch))

    def torch_run(name: str, factor: float) -> None:
        theirs.load_state_dict(start)
        optimizer, scheduler = twin_optimizers.make_optimizer(theirs, OPTIMIZER, ScheduleConfig())
        take = partial(twin.train_step, loss=twin_loss, optimizer=optimizer, scheduler=scheduler, clip_norm=1.0)
        step = jf.watch_torch(lambda batch: take(theirs, batch), theirs, optimizer, every=1, out=folder / name)
        for number, batch in enumerate(batches, start=1):
            if number == 3:
                theirs.stack[1].attention.query.weight.data *= factor
            step(torch.tensor(batch).long())

    torch_run("torch", 1.0)
    torch_run("wrong", 1.01)
    return folder


def twin_loss(model, batch):
    return twin_losses.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.slow
def test_norms_of_torchs_and_of_jaxs_step_agree(both):
    jaxs, torchs = Run.read(both / "jax"), Run.read(both / "torch")
    comparison = compare(torchs, jaxs)
    assert len(comparison.differences) == 4
    assert {*comparison.series} == {*jaxs.rows[1]}, "torch has every series of JAX"
    assert {series for series in torchs.rows[1].keys() - jaxs.rows[1].keys() if not series.endswith("dropout")} == set()
    assert max(each.largest for each in comparison.differences) < 1e-5


@pytest.mark.slow
def test_a_weight_that_one_side_scales_is_named_at_its_step(both):
    found = compare(Run.read(both / "wrong"), Run.read(both / "jax")).divergence
    assert found is not None
    assert (found.step, found.over[0]) == (3, "weight/stack.blocks.1.attention.query")


class Normed(nnx.Module):
    """A batch norm after a layer with a bias, whose gradient is rounding."""

    def __init__(self, rngs):
        self.up, self.norm, self.down = nnx.Linear(3, 5, rngs=rngs), nnx.BatchNorm(5, rngs=rngs), nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(jnp.tanh(self.norm(self.up(x))))


def normed_runs(folder, rate=0.01):
    """Three steps of Adam on both sides, torch's with another rate for the last layer; their folders."""
    ours, theirs = Normed(nnx.Rngs(0)), torch.nn.Module()
    theirs.up, theirs.norm, theirs.down = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)
    for one, other in ((ours.up, theirs.up), (ours.down, theirs.down)):
        other.weight.data, other.bias.data = (torch.tensor(np.array(each)) for each in (one.kernel[...].T, one.bias[...]))
    optimizer = nnx.Optimizer(ours, optax.adam(0.01), wrt=nnx.Param)
    groups = {"params": [*theirs.up.parameters(), *theirs.norm.parameters()]}, {"params": theirs.down.parameters(), "lr": rate}
    adam = torch.optim.Adam(groups, lr=0.01)

    @nnx.jit
    def step(model, optimizer, x):
        value, gradient = nnx.value_and_grad(lambda model: jnp.square(model(x)).mean())(model)
        optimizer.update(model, gradient)
        return value

    def torch_step(x):
        adam.zero_grad()
        loss = theirs.down(torch.tanh(theirs.norm(theirs.up(x)))).square().mean()
        loss.backward()
        adam.step()
        return loss

    step = jf.watch(step, every=1, out=folder / "jax")
    torch_step = jf.watch_torch(torch_step, theirs, adam, every=1, out=folder / "torch")
    for x in np.random.default_rng(0).normal(size=(3, 17, 3)).astype(np.float32):
        step(ours, optimizer, jnp.asarray(x))
        torch_step(torch.tensor(x))
    return Run.read(folder / "torch"), Run.read(folder / "jax")


@pytest.mark.slow
def test_statistics_are_no_weights_and_an_update_of_rounding_parts_no_runs(tmp_path):
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torchs, jaxs = normed_runs(tmp_path / "same")
    finally:
        torch.set_warn_always(False)
    assert jaxs.rows[1]["weight/norm"] == pytest.approx(5**0.5), "scales of 1, without mean and variance"
    assert torchs.rounding[1] == jaxs.rounding[1] == ["up"]
    found = compare(torchs, jaxs)
    assert found.verdict.startswith("SAME: 13 series at 3 watched steps")
    assert found.verdict.endswith(
        "; weight, activation and update of up left out: the gradient of a parameter is rounding there"
    )
    assert compare(replace(torchs, rounding={}), replace(jaxs, rounding={})).divergence.over == ["update/up"]
    assert compare(*normed_runs(tmp_path / "rate", 0.02)).divergence.over == ["update/down"], "what is not rounding is compared"


def test_damaged_rows_are_told(tmp_path):
    for name in ("one", "two"):
        monitor = Monitor.begin(tmp_path / name, 10, 0, say=lambda line: None)
        for step in (10, 20, 30):
            monitor.write(step, {"loss": 2.0})
    rows = tmp_path / "two" / "watch.jsonl"
    runs = [Run.read(tmp_path / name) for name in ("one", "two")]
    assert compare(*runs).verdict == "SAME: 1 series at 3 watched steps, apart by at most 0.0e+00"
    rows.write_text(rows.read_text().replace('"step": 20', '"step": 21'))
    said = compare(runs[0], Run.read(tmp_path / "two")).verdict
    assert said.startswith("SAME: 1 series at 2 watched steps, ")
    assert said.endswith(f"; 1 damaged row of {tmp_path / 'two'}/watch.jsonl left out")


def test_what_is_no_torch_model_is_refused(tmp_path):
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match=r"model is a dict; give the torch.nn.Module that the step trains"):
        jf.watch_torch(print, {}, torch.optim.SGD(model.parameters()), every=1, out=tmp_path)
    with pytest.raises(InputError, match=r"optimizer is a dict; give the torch.optim.Optimizer of the step"):
        jf.watch_torch(print, model, {}, every=1, out=tmp_path)
