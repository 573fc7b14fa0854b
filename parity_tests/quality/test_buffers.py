"""Two arrays of what torch ties, buffers and constants: what is no weight of its own, in models that run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.nn import functional

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.compare import compare
from jaxformer.parity.pairing.tensors import NO_RULES, identify
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check
from jaxformer.parity.recording import record_torch
from jaxformer.parity.trace.archive import load, save
from jaxformer.parity.trace.torch_hooks import TorchState
from jaxformer.parity.training.trainers import TrainingSpec
from parity_tests.support.helpers import D, F, V, noise


class Tied(torch.nn.Module):
    def __init__(self, *, named: bool):
        super().__init__()
        self.embed, self.mid = torch.nn.Embedding(V, D), torch.nn.Linear(D, D)
        if named:
            self.head = torch.nn.Linear(D, V, bias=False)
            self.head.weight = self.embed.weight

    def forward(self, ids):
        y = torch.tanh(self.mid(self.embed(ids)))
        return self.head(y) if hasattr(self, "head") else functional.linear(y, self.embed.weight)


class TwoArrays(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed, self.mid = nnx.Embed(V, D, rngs=rngs), nnx.Linear(D, D, rngs=rngs)
        self.head = nnx.Linear(D, V, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        return self.head(jnp.tanh(self.mid(self.embed(ids))))


IDS = np.random.default_rng(0).integers(0, V, (3, 7)).astype(np.int32)
TWO = Family("two", {}, (Rule("embedding", "weight"), Rule("kernel", "weight", "transposed"), Rule("bias", "bias")))
PARTED = "torch has one tensor, embed.weight, where JAX has 2, embed.embedding, head.kernel: trained, they part"


def with_long_ids(model: Any, ids: Any) -> Any:
    """What torch wants."""
    return model(ids.long())


def two_arrays(theirs: Tied) -> TwoArrays:
    """With torch's weights."""
    ours, array = TwoArrays(), lambda tensor: jnp.asarray(tensor.detach().numpy())
    ours.embed.embedding[...], ours.head.kernel[...] = array(theirs.embed.weight), array(theirs.embed.weight.T)
    ours.mid.kernel[...], ours.mid.bias[...] = array(theirs.mid.weight.T), array(theirs.mid.bias)
    return ours


@pytest.mark.parametrize("rules", [None, TWO], ids=["values", "rules"])
@pytest.mark.parametrize("named", [True, False])
def test_what_torch_ties_may_be_two_arrays(named, rules):
    theirs = excite(Tied(named=named).eval(), seed=1)
    checks = ("weights", "local", "gradients", "activation gradients")
    report = compare(theirs, two_arrays(theirs), (IDS,), rules=rules, call_torch=with_long_ids, checks=checks, tier="A")
    assert report.status == "equal", str(report)
    assert PARTED in report.stages[0].says


def test_a_wrong_copy_of_what_torch_ties():
    theirs = excite(Tied(named=True).eval(), seed=1)
    ours = two_arrays(theirs)
    ours.head.kernel[...] *= 2
    report = compare(
        theirs, ours, (IDS,), checks=("weights", "gradients"), call_torch=lambda model, ids: model(ids.long()), tier="A"
    )
    assert [stage.status for stage in report.stages] == ["different", "equal"], str(report)
    assert report.stages[0].says.startswith("1 of 4 tensors differ, first head.weight, in JAX head.kernel (relL2 1.0e+00)")


def test_two_arrays_part_in_training():
    theirs = excite(Tied(named=True).eval(), seed=1)
    batches = [(IDS, IDS)] * 2
    learning = TrainingSpec(
        batches=batches,
        torch_loss=lambda model, ids, targets: functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten()),
        jax_loss=lambda model, ids, targets: optax.softmax_cross_entropy_with_integer_labels(model(ids), targets).mean(),
        torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        jax_optimizer=optax.sgd(0.1),
    )
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        report = compare(
            theirs, two_arrays(theirs), (IDS,), checks=("weights",), call_torch=with_long_ids, training=learning, tier="A"
        )
    assert [stage.status for stage in report.stages] == ["equal", "different", "different", "different"], str(report)
    assert "the losses are equal, but not their gradients: embed.weight" in report.stages[1].says
    assert "the gradient differs already: embed.weight" in report.stages[2].says


class Statistics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = torch.nn.BatchNorm1d(D), torch.nn.Linear(D, F)
        self.register_buffer("table", torch.sin(torch.arange(7 * D).reshape(1, 7, D) / 3.0), persistent=False)
        self.register_buffer("mask", torch.tril(torch.ones(7, 7)))

    def forward(self, x):
        x = self.norm((x + self.table).transpose(1, 2)).transpose(1, 2)
        return self.out(self.mask @ x)


class HasTable(nnx.Variable):
    pass


class OurStatistics(nnx.Module):
    def __init__(self, theirs: Statistics):
        rngs, array = nnx.Rngs(0), lambda tensor: jnp.asarray(tensor.detach().numpy())
        self.norm, self.out = nnx.BatchNorm(D, epsilon=1e-5, use_fast_variance=False, rngs=rngs), nnx.Linear(D, F, rngs=rngs)
        self.norm.mean[...], self.norm.var[...] = array(theirs.norm.running_mean), array(theirs.norm.running_var)
        self.norm.scale[...], self.norm.bias[...] = array(theirs.norm.weight), array(theirs.norm.bias)
        self.out.kernel[...], self.out.bias[...] = array(theirs.out.weight.T), array(theirs.out.bias)
        self.table = HasTable(array(theirs.table[0]))
        self.mask = HasTable(jnp.where(jnp.tril(jnp.ones((7, 7))) > 0, 0.0, -1e9))

    def __call__(self, x):
        y = self.norm(x + self.table[...][None], use_running_average=True)
        return self.out(jnp.where(self.mask[...] == 0, jnp.ones((), y.dtype), jnp.zeros((), y.dtype)) @ y)


X = noise(3, 7, D, seed=5)
STATISTICS = Family(
    "statistics",
    {},
    (
        Rule("mean", "running_mean"),
        Rule("var", "running_var"),
        Rule("scale", "weight"),
        Rule("kernel", "weight", "transposed"),
        Rule("bias", "bias"),
    ),
)


def statistics(*, fresh: bool = False) -> Statistics:
    """A model that has seen something."""
    theirs = Statistics().eval()
    if not fresh:
        theirs = excite(theirs, seed=1)
    return theirs


def compared(theirs: Any, ours: Any, x: np.ndarray = X, **options: Any) -> Any:
    """In float64, with whatever flax promotes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return compare(theirs, ours, (x,), tier="A", **options)


@pytest.mark.parametrize("rules", [None, STATISTICS], ids=["values", "rules"])
@pytest.mark.parametrize("fresh", [False, True])
def test_buffers_are_constants_of_both(fresh, rules):
    theirs = statistics(fresh=fresh)
    report = compared(theirs, OurStatistics(theirs), rules=rules)
    assert report.status == "equal", str(report)
    assert report.stages[0].says.startswith(
        "4 of 4 tensors used once, bitwise equal; 3 buffers equal; the JAX model's own constants, left as they are: mask"
    )


def test_statistics_that_were_not_converted_are_told_and_torchs_are_used():
    theirs = statistics()
    ours = OurStatistics(theirs)
    ours.norm.mean[...], ours.norm.var[...] = jnp.zeros(D), jnp.ones(D)
    for rules in (None, STATISTICS):
        report = compared(theirs, ours, rules=rules)
        assert [stage.status for stage in report.stages] == ["different"] + ["equal"] * 5, str(report)
        assert "buffer norm.running_mean differs from norm.mean (relL2 1.0e+00); torch's is used below" in report.stages[0].says
    assert not ours.norm.mean[...].any()


def test_a_formula_in_float32_is_rounding_and_torchs_table_is_used():
    theirs = statistics()
    ours = OurStatistics(theirs)
    ours.table[...] *= 1 + 4e-7
    report = compared(theirs, ours)
    assert report.status == "equal", str(report)
    assert "; buffer table differs by 3.6e-07 of its size at most, float32's rounding; torch's is used" in report.stages[0].says
    ours.table[...] *= 1 + 1e-5
    assert "buffer table differs (relL2 1.0e-05)" in compared(theirs, ours, checks=("weights",)).stages[0].says


def test_buffers_that_jax_does_not_hold_are_told():
    theirs = torch.nn.Sequential(torch.nn.Linear(D, F), torch.nn.BatchNorm1d(F)).eval()
    ours = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compared(theirs, ours, X[0], checks=("weights",), call_jax=lambda params, x: x @ params["0.weight"])
    assert report.stages[0].says.endswith("torch's buffers that JAX does not hold: 1.running_mean, 1.running_var")


class Computing(OurStatistics):
    def __init__(self, theirs: Statistics):
        super().__init__(theirs)
        del self.table

    def __call__(self, x):
        self.table = jnp.sin(jnp.arange(7 * D).reshape(7, D) / 3.0)
        return super().__call__(x)


def test_a_table_that_jax_computes_is_named():
    theirs = statistics()
    theirs.register_buffer("again", theirs.table.clone())
    says = "torch's buffers that JAX does not hold: "
    assert says not in compared(theirs, OurStatistics(theirs), checks=("weights",)).stages[0].says
    assert f"{says}table, again" in compared(theirs, Computing(theirs), checks=("weights",)).stages[0].says


class Scaled(OurStatistics):
    def __init__(self, theirs: Statistics):
        super().__init__(theirs)
        self.extra = nnx.Param(jnp.full((D,), 2.0))

    def __call__(self, x):
        return super().__call__(x) * self.extra[0]


def test_a_parameter_that_torch_has_not_is_no_constant_but_a_difference():
    theirs = statistics()
    ours = Scaled(theirs)
    report = compared(theirs, ours, checks=("weights",))
    assert report.status == "different"
    assert "; jax has extra, torch has not: it is not 1 (rms 1.0e+00 off)" in report.stages[0].says


def test_running_statistics_of_plain_dicts_and_of_linen():
    theirs = statistics(fresh=True)
    weights = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    held = TorchState(weights, {name: tensor.numpy() for name, tensor in theirs.named_buffers() if tensor.is_floating_point()})
    mean, var = np.zeros(D, np.float32), np.ones(D, np.float32)
    out = {"kernel": weights["out.weight"].T, "bias": weights["out.bias"]}
    plain = {"norm": {"scale": np.ones(D, np.float32), "bias": mean, "mean": mean, "var": var}, "out": out}
    assert identify(held, plain, NO_RULES).family.constants == {"norm.mean", "norm.var"}
    linen = {
        "params": {"norm": {"scale": var, "bias": mean}, "out": out},
        "batch_stats": {"norm": {"mean": mean + 1, "var": var}},
    }
    found = identify(held, linen, NO_RULES)
    assert found.family.constants == {"batch_stats.norm.mean", "batch_stats.norm.var"}


def test_a_bias_that_was_not_converted_is_no_fresh_statistic():
    theirs = statistics()
    ours = OurStatistics(theirs)
    theirs.norm.running_mean.zero_()
    ours.norm.bias[...] = jnp.zeros(D)
    del ours.norm.mean
    says = compared(theirs, ours, checks=("weights",)).stages[0].says
    assert says.startswith("1 of 4 tensors differ, first norm.bias (relL2 1.0e+00); torch's are used below; 2 buffers equal"), (
        says
    )


def test_a_dump_carries_buffers_and_ties(tmp_path):
    theirs, tied = statistics(), Tied(named=True).eval()
    save(record_torch(theirs, (X,), tier="A", checks=("weights", "forward")), tmp_path / "statistics")
    save(record_torch(tied, (IDS,), with_long_ids, tier="A", checks=("weights", "forward")), tmp_path / "tied")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        options: Any = {"tier": "A", "checks": ("weights", "forward")}
        reports = [check(load(tmp_path / "statistics"), OurStatistics(theirs), **options)]
        reports.append(check(load(tmp_path / "tied"), two_arrays(tied), **options))
    assert [report.status for report in reports] == ["equal", "equal"], "\n".join(map(str, reports))
    assert "3 buffers equal" in reports[0].stages[0].says
    assert PARTED in reports[1].stages[0].says
    assert ("head", "head") in {(module.jax, module.torch) for module in reports[1].modules}


class Shifted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(D, F)
        self.register_buffer("shift", torch.from_numpy(noise(D, seed=4)))

    def forward(self, x):
        return self.out(x + self.shift)


class OurShifted(nnx.Module):
    def __init__(self, theirs: Shifted):
        self.out = nnx.Linear(D, F, rngs=nnx.Rngs(0))
        self.out.kernel[...] = jnp.asarray(theirs.out.weight.T.detach().numpy())
        self.out.bias[...] = jnp.asarray(theirs.out.bias.detach().numpy())
        self.shift = nnx.Param(jnp.asarray(theirs.shift.numpy()))

    def __call__(self, x):
        return self.out(x + self.shift[...])


def test_constants_are_not_trained():
    theirs = Shifted()
    learning = TrainingSpec(
        batches=[(X, noise(3, 7, F))] * 3,
        torch_loss=lambda model, x, y: ((model(x) - y) ** 2).mean(),
        jax_loss=lambda model, x, y: ((model(x) - y) ** 2).mean(),
        torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        jax_optimizer=optax.sgd(0.1),
    )
    report = compared(theirs, OurShifted(theirs), checks=("weights",), training=learning)
    assert report.status == "equal", str(report)
