"""Tensors of two JAX models whose values do not tell which is which, and constants that differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxformer as jf
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.usefixtures("untyped")

WIDTH = 6
X = np.random.default_rng(0).standard_normal((5, WIDTH)).astype(np.float32)
IMAGES = np.random.default_rng(1).standard_normal((3, 4, 5, 2)).astype(np.float32)
QUICK = {"tier": "A", "checks": ("weights", "forward", "local", "gradients")}


class Table(nnx.Variable):
    pass


class Normed(nnx.Module):
    def __init__(self, epsilon=1e-5, **tables):
        rngs = nnx.Rngs(0)
        self.up = nnx.Linear(WIDTH, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, use_running_average=True, epsilon=epsilon, rngs=rngs)
        for name, value in tables.items():
            setattr(self, name, Table(jnp.asarray(value, jnp.float32)))

    def __call__(self, x):
        x = self.norm(self.up(x))
        for name in ("rates", "more"):
            x = x * getattr(self, name)[...] if hasattr(self, name) else x
        return x


RATES = np.arange(1.0, 5.0)
BUFFERS = {
    "a constant running mean": ({}, {}, "norm.mean"),
    "one number": ({"rates": 2.0}, {"rates": 3.0}, "rates"),
    "a table of one number": ({"rates": np.full(4, 0.5)}, {"rates": np.full(4, 0.7)}, "rates"),
    "a table of two numbers": ({"rates": np.where(RATES > 2, 0.5, 2)}, {"rates": np.where(RATES > 3, 0.5, 3)}, "rates"),
    "zeros for ones": ({"rates": np.zeros(4)}, {"rates": np.ones(4)}, "rates"),
    "the values of another table": ({"rates": RATES, "more": RATES + 1}, {"rates": RATES + 1, "more": RATES + 1}, "rates"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", usually(BUFFERS, "a constant running mean", "a table of two numbers"))
def test_a_constant_of_another_value_is_told_and_no_module_is_accused(case):
    before, after, name = BUFFERS[case]
    old, new = jf.excite(Normed(**before), seed=0), jf.excite(Normed(**after), seed=0)
    if not after:
        new.norm.mean[...] = jnp.full(4, 0.3)
    report = jf.compare(old, new, (X,), **QUICK)
    assert report.exit_code == 1
    assert f"buffer {name} differs (relL2" in report.verdict
    assert not report.diverging
    assert jf.compare(old, old, (X,), **QUICK).exit_code == 0


def test_an_epsilon_that_nobody_uses_is_solved_for():
    old, new = (jf.excite(Normed(epsilon), seed=0) for epsilon in (1e-5, 3.7e-4))
    report = jf.compare(old, new, (X,), **QUICK)
    assert report.verdict.startswith("DIFFERENT: norm: the reference epsilon 1e-05; the port epsilon 0.00037")


def test_masks_of_other_numbers_are_the_models_own():
    class Masked(nnx.Module):
        def __init__(self, low):
            self.up = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
            self.mask = Table(jnp.where(jnp.tri(WIDTH) > 0, 0.0, low))

        def __call__(self, x):
            return jax.nn.softmax(self.up(x)[:, None] + self.mask[...], axis=-1)

    assert jf.compare(Masked(-1e9), Masked(-jnp.inf), (X,), **QUICK).exit_code == 0


class Fresh(nnx.Module):
    """Two square matrices of zeros, which may be transposed, and norms of one shape."""

    def __init__(self, first, second, *, transposed=False):
        self.up, self.names, self.transposed = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)), (first, second), transposed
        for name in self.names:
            setattr(self, name, nnx.Param(jnp.zeros((WIDTH, WIDTH))))

    def __call__(self, x):
        x = self.up(x)
        a, b = (getattr(self, name)[...] for name in self.names)
        return x + jnp.sin(x) @ (a.T if self.transposed else a) + x @ b


@pytest.mark.parametrize("names", [("a", "b"), ("m1", "m2")])
def test_names_pair_what_values_do_not_tell_apart(names):
    old = Fresh("a", "b") if names == ("a", "b") else Fresh("w1", "w2")
    assert jf.compare(old, Fresh(*names), (X,), **QUICK).exit_code == 0
    report = jf.compare(old, Fresh(*names, transposed=True), (X,), **QUICK)
    assert report.exit_code == 1
    assert report.stages[0].status == "equal"
    assert "gradient" in report.verdict


def test_what_neither_values_nor_names_tell_apart_is_said_so():
    report = jf.compare(Fresh("a", "b"), Fresh("x", "y"), (X,), **QUICK)
    assert report.exit_code == 2
    assert "2 tensors of the port whose values do not tell which of the other side's they are" in report.verdict


class Automatic(linen.Module):
    """Names by Linen; all kernels but the last are zeros, all gains ones."""

    @linen.compact
    def __call__(self, x):
        for _ in range(2):
            x = x + linen.Dense(WIDTH, kernel_init=linen.initializers.zeros)(linen.LayerNorm()(x))
        return linen.Dense(WIDTH)(linen.RMSNorm()(x))


class Numbered(nnx.Module):
    def __init__(self):
        zeros, rngs = nnx.initializers.zeros, nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, kernel_init=zeros, rngs=rngs) for _ in range(2)])
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.last, self.head = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(self.last(x))


@pytest.mark.slow
def test_fresh_layers_are_paired_in_their_order_and_norms_by_what_lies_beside():
    net, ours = Automatic(), Numbered()
    fresh = net.init(jax.random.key(0), X)
    ours.head.kernel[...] = fresh["params"]["Dense_2"]["kernel"]
    assert jf.compare(fresh, ours, (X,), call_torch=net.apply, **QUICK).exit_code == 0
    assert jf.compare(ours, fresh, (X,), call_jax=net.apply, **QUICK).exit_code == 0


class Misnamed(nnx.Module):
    def __init__(self, *, residual=True, epsilon=1e-6):
        self.residual, rngs = residual, nnx.Rngs(0)
        self.torch, self.jax = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, epsilon=epsilon, rngs=rngs)

    def __call__(self, x):
        x = self.torch(x)
        return self.jax(x) + x if self.residual else self.jax(x)


@pytest.mark.slow
def test_modules_that_are_called_like_a_side_keep_their_names():
    old = jf.excite(Misnamed(), seed=0)
    report = jf.compare(old, jf.excite(Misnamed(residual=False), seed=0), (X,), **QUICK)
    assert "the model: the reference adds torch; the port does not" in report.verdict
    report = jf.compare(old, jf.excite(Misnamed(epsilon=1e-3), seed=0), (X,), **QUICK)
    assert report.verdict.startswith("DIFFERENT: jax: the reference epsilon 1e-06; the port epsilon 0.001")
    assert "| `jax` | `jax` |" in report.to_markdown()
    assert ">torch<" in report.to_html()


class Turned(nnx.Module):
    """A square kernel, and two layers and two statistics of one shape."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(2, WIDTH, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, use_running_average=True, rngs=rngs)
        self.a, self.b = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(self.norm(self.conv(x)))))


def exchange(*variables):
    for variable, value in zip(variables, [one[...] for one in reversed(variables)], strict=True):
        variable[...] = value


EXCHANGED = {
    "axes of a kernel": (
        lambda model: model.conv.kernel.set_value(model.conv.kernel[...].swapaxes(0, 1)),
        "weights: 1 of 8 tensors differ, first conv.kernel",
        "the port holds it with its axes in another order",
    ),
    "two layers": (
        lambda model: exchange(model.a.kernel, model.b.kernel),
        "weights: 2 of 8 tensors differ, first a.kernel",
        "the port holds what the reference has in b.kernel",
    ),
    "two statistics": (
        lambda model: exchange(model.norm.mean, model.norm.var),
        "buffer norm.mean differs",
        "buffer norm.var differs",
    ),
}


@pytest.mark.parametrize("case", EXCHANGED)
def test_weights_of_one_name_are_compared_by_name_where_the_output_shows_it(case):
    change, *says = EXCHANGED[case]
    old = jf.excite(Turned(), seed=0)
    new = nnx.clone(old)
    change(new)
    report = jf.compare(old, new, (IMAGES,), **QUICK)
    assert all(text in report.verdict for text in says), report.verdict
    assert not report.diverging


@pytest.mark.slow
def test_other_names_for_two_layers_are_no_exchange():
    class Renamed(Turned):
        def __call__(self, x):
            return self.a(jnp.tanh(self.b(self.norm(self.conv(x)))))

    old, new = jf.excite(Turned(), seed=0), Renamed()
    for name in ("conv", "norm", "a", "b"):
        setattr(new, {"a": "b", "b": "a"}.get(name, name), nnx.clone(getattr(old, name)))
    assert jf.compare(old, new, (IMAGES,), **QUICK).exit_code == 0


class Layers(nnx.Module):
    def __init__(self, order=(0, 1, 2)):
        self.order = order
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(i)) for i in range(3)])

    def __call__(self, x):
        x = jnp.tanh(x)
        for i in self.order:
            x = self.layers[i](x)
        return x


def test_layers_in_another_order_are_named():
    old = jf.excite(Layers(), seed=0)
    new = Layers((0, 2, 1))
    nnx.update(new, nnx.state(old))
    report = jf.compare(old, new, (X,), **QUICK)
    assert (
        "the reference goes on with layers.0; the port goes on with layers.2, which the reference runs later" in report.verdict
    )


class Fresher(nnx.Module):
    """Layers with norms that are alike."""

    def __init__(self, *, backwards=False):
        self.backwards = backwards
        layers = [(nnx.LayerNorm(WIDTH, rngs=nnx.Rngs(i)), nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(i))) for i in range(3)]
        self.blocks = nnx.List([nnx.Dict(norm=norm, up=up) for norm, up in layers])

    def __call__(self, x):
        for block in self.blocks[::-1] if self.backwards else self.blocks:
            x = x + block.up(block.norm(x))
        return x


@pytest.mark.slow
def test_fresh_norms_go_with_the_layers_beside_them():
    old, new = Fresher(), Fresher(backwards=True)
    for mine, its in zip(new.blocks, old.blocks[::-1], strict=True):
        nnx.update(mine, nnx.state(nnx.clone(its)))
    assert jf.compare(old, new, (X,), **QUICK).exit_code == 0
