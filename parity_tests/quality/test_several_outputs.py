"""Calls that give several arrays: those of one name, else of one shape, are compared, each by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.recorded import check, dump
from jaxformer.parity.trace.outputs import apart, pairs_of, side_by_side
from parity_tests.support.helpers import noise

pytestmark = [pytest.mark.foreign, pytest.mark.slow]
B, T, D, H, LOGITS, BOXES = 2, 5, 3, 6, 4, 7


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.logits, self.boxes = (torch.nn.Linear(*sizes) for sizes in ((D, H), (H, LOGITS), (H, BOXES)))

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        logits = self.logits(h)
        return {"logits": logits, "boxes": torch.sigmoid(self.boxes(h)), "ids": logits.argmax(-1), "mean": h.mean()}


class Found(NamedTuple):
    boxes: Any
    logits: Any


@dataclass
class Data:
    ids: Any
    logits: Any
    boxes: Any
    mean: Any


class Ours(nnx.Module):
    def __init__(self, bug: str = ""):
        self.inner, self.logits, self.boxes = (
            nnx.Linear(*sizes, rngs=nnx.Rngs(0)) for sizes in ((D, H), (H, LOGITS), (H, BOXES))
        )
        self.bug = bug

    def __call__(self, x):
        h = jnp.tanh(self.inner(x))
        logits, boxes = self.logits(h), self.boxes(h)
        boxes = jax.nn.hard_sigmoid(boxes) if self.bug == "boxes" else jax.nn.sigmoid(boxes)
        ids = logits.argmin(-1) if self.bug == "ids" else logits.argmax(-1)
        return {"logits": logits * 1.5 if self.bug == "logits" else logits, "boxes": boxes, "ids": ids, "mean": h.mean()}


def loaded(ours: Any, theirs: Any) -> Any:
    """With torch's weights."""
    for name, linear in theirs.named_children():
        mine = getattr(ours, name)
        mine.kernel[...], mine.bias[...] = linear.weight.detach().numpy().T, linear.bias.detach().numpy()
    return ours


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    return Theirs().eval()


X = noise(B, T, D, seed=1)


def same(model: Any, x: Any) -> Any:
    return model(x)


def report_of(theirs: Any, call_jax: Callable[..., Any] = same, bug: str = "", **options: Any) -> Any:
    return compare(theirs, loaded(Ours(bug), theirs), (X,), call_jax=call_jax, **options)


GIVES: dict[str, Callable[..., Any]] = {
    "a dict": same,
    "a dict in another order": lambda model, x: dict(sorted(model(x).items())),
    "a dataclass": lambda model, x: Data(**model(x)),
    "a tuple, told by shapes": lambda model, x: tuple(reversed(model(x).values())),
}
FEWER: dict[str, Any] = {
    "two": (lambda model, x: {name: model(x)[name] for name in ("logits", "boxes")}, ["ids", "mean"]),
    "a named tuple": (lambda model, x: Found(model(x)["boxes"], model(x)["logits"]), ["ids", "mean"]),
    "one by itself": (lambda model, x: model(x)["boxes"], ["logits", "ids", "mean"]),
}


@pytest.mark.parametrize("name", GIVES)
def test_all_are_compared(theirs, name):
    report = report_of(theirs, GIVES[name])
    assert report.status == "equal", report
    assert not report.not_covered
    assert "gradients" in report.verdict


@pytest.mark.parametrize("name", FEWER)
def test_what_one_side_alone_gives_is_told(theirs, name):
    call, missing = FEWER[name]
    report = report_of(theirs, call)
    assert report.status == "equal", report
    told = [each for each in report.not_covered if each.startswith("output ")]
    assert told == [f"output {each} of torch's, which jax does not give" for each in missing]


def test_jax_may_give_more(theirs):
    report = report_of(theirs, call_torch=lambda model, x: model(x)["boxes"])
    assert report.status == "equal", report
    assert "output logits of jax's, which torch does not give" in report.not_covered


@pytest.mark.parametrize(
    ("bug", "cause"), {"boxes": "hard sigmoid", "logits": "1.5", "ids": ""}.items(), ids=["boxes", "logits", "ids"]
)
def test_the_one_that_differs_is_named(theirs, bug, cause):
    report = report_of(theirs, bug=bug)
    assert report.exit_code == 1
    assert next(stage for stage in report.stages if stage.name == "forward").says.startswith(f"output {bug} relL2")
    assert cause in report.verdict
    assert any(f"output {bug} in float32" in stage.says for stage in report.stages) == (bug != "ids")


def test_a_small_output_beside_a_large_one_is_judged_by_itself(theirs):
    """Its error is 1e-9 of both."""

    def large(wrong):
        return lambda model, x: {"logits": model(x)["logits"] * 1e6, "mean": model(x)["mean"] * (1 + wrong)}

    reports = [report_of(theirs, large(wrong), call_torch=large(0.0), tier="A") for wrong in (0.0, 1e-4)]
    assert [report.exit_code for report in reports] == [0, 1]


def test_which_is_which_must_be_clear(theirs):
    report = report_of(theirs, lambda model, x: (model(x)["logits"], model(x)["logits"]))
    assert report.exit_code == 2
    assert "mean [] in torch and 0 [2, 5, 4], 1 [2, 5, 4] in jax: which of them are the same is not clear" in report.verdict
    assert "(at parity_tests/quality/test_several_outputs.py:" in report.verdict


def test_other_names_in_two_dicts_have_no_order():
    def named(one, other):
        return lambda model, x: {one: model(x), other: 2 * model(x)}

    theirs = torch.nn.Linear(D, H).eval()
    params = {"weight": jnp.asarray(theirs.weight.detach().numpy()), "bias": jnp.asarray(theirs.bias.detach().numpy())}

    def verdict(ours):
        def call(p, x):
            return ours(lambda x: x @ p["weight"].T + p["bias"], x)

        return compare(theirs, params, (X,), call_torch=named("b", "a"), call_jax=call, tier="A").verdict

    assert "which of them are the same is not clear" in verdict(named("c", "d"))
    assert verdict(named("c", "a")).startswith("EQUAL")
    assert verdict(lambda model, x: (model(x), 2 * model(x))).startswith("EQUAL")


def test_what_is_sent_back_may_be_added_up_elsewhere():
    """torch's part gives an array and a view of it; a port makes the view outside."""

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(D, H)

        def forward(self, x):
            y = self.inner(x).tanh()
            return y, y.flatten(1)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, x):
            y, flat = self.part(x)
            return {"y": y, "flat": flat}

    class OursPart(nnx.Module):
        def __init__(self):
            self.inner = nnx.Linear(D, H, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return jnp.tanh(self.inner(x))

    class OursWhole(nnx.Module):
        def __init__(self, wrong):
            self.part, self.wrong = OursPart(), wrong

        def __call__(self, x):
            y = self.part(x)
            return {"y": y, "flat": (jax.lax.stop_gradient(y) if self.wrong else y).reshape(B, -1)}

    theirs = Whole().eval()
    for wrong in (False, True):
        ours = OursWhole(wrong)
        loaded(ours.part, theirs.part)
        assert compare(theirs, ours, (X,), tier="A").exit_code == wrong


def test_a_shape_of_one_is_named(theirs):
    def turned(model, x):
        return model(x) | {"logits": model(x)["logits"].swapaxes(1, 2)}

    says = report_of(theirs, turned, checks=("forward",)).stages[0].says
    assert says == "output logits is [2, 4, 5] in jax and [2, 5, 4] in torch"
    assert "forward: output logits is [2, 4, 5] in jax and [2, 5, 4] in torch; give" in report_of(theirs, turned).verdict


def test_an_array_that_stands_there_twice():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(D, H)

        def forward(self, x):
            h = self.inner(x)
            return {"last": h, "states": (x, h)}

    class OursTwice(nnx.Module):
        def __init__(self):
            self.inner = nnx.Linear(D, H, rngs=nnx.Rngs(0))

        def __call__(self, x):
            h = self.inner(x)
            return {"states": (x, h), "last": h + 0}

    theirs = Twice().eval()
    report = compare(theirs, loaded(OursTwice(), theirs), (X,))
    assert report.status == "equal", report


def test_a_reference_in_a_folder_has_their_names(theirs, tmp_path):
    dump(theirs, (X,), tmp_path / "dump")
    model = loaded(Ours("boxes"), theirs)
    assert check(tmp_path / "dump", loaded(Ours(), theirs)).status == "equal"
    assert check(tmp_path / "dump", model).stages[1].says.startswith("output boxes relL2")
    fewer = check(tmp_path / "dump", model, call_jax=FEWER["two"][0])
    assert "jax has no ids, mean" in fewer.verdict


class Dropped(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.BatchNorm(use_running_average=False, momentum=1.0, epsilon=1e-5)(x)
        return {"y": linen.Dense(H)(x), "x": x}


class TheirsDropped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dense = torch.nn.BatchNorm1d(D, momentum=0.0), torch.nn.Linear(D, H)

    def forward(self, x):
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return {"x": x, "y": self.dense(x)}


@pytest.mark.parametrize("wrong", [False, True])
def test_in_training_a_state_stands_behind_them(wrong):
    model = Dropped()

    def call(variables, x):
        found, state = model.apply(variables, x, mutable=["batch_stats"])
        return {**found, "x": found["x"] * (1 + wrong)}, state

    theirs, variables = TheirsDropped().train(), model.init(jax.random.key(0), jnp.asarray(X))
    dense = theirs.dense
    variables["params"]["Dense_0"] = {"kernel": dense.weight.detach().numpy().T, "bias": dense.bias.detach().numpy()}
    report = compare(theirs, variables, (X,), call_jax=call, mode="train", tier="A")
    found = {stage.name: stage.status for stage in report.stages}
    assert found["forward"] == ("different" if wrong else "equal"), report
    assert found["running statistics"] == "equal"


def test_names_come_before_shapes_and_order():
    assert pairs_of({"a": (2,), "b": (2,)}, {"b": (2,), "a": (2,)}) == [("a", "a"), ("b", "b")]
    assert pairs_of({"a": (2,), "b": (3,), "c": (2,)}, {"0": (3,), "1": (2,), "2": (2,)}) == [
        ("a", "1"),
        ("b", "0"),
        ("c", "2"),
    ]
    assert pairs_of({"a": (2, 3)}, {"": (3, 2)}) == [("a", "")]
    assert pairs_of({"a": (2,), "b": (2,)}, {"": (2,)}) == []


@pytest.mark.parametrize("shapes", [((2, 3), (2, 5, 4)), ((2, 3), ()), ((0, 3), (2,))])
def test_side_by_side_and_apart(shapes):
    outputs = tuple(noise(*shape, seed=i) for i, shape in enumerate(shapes))
    joined = side_by_side(outputs)
    assert joined.ndim == (2 if shapes[1] == (2, 5, 4) else 1)
    assert all(map(np.array_equal, apart(joined, outputs), outputs))


class TorchApart(torch.nn.Module):
    """Two modules that give their input as it is: one array, twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Identity(), torch.nn.Identity()

    def forward(self, x):
        return self.a(x), self.b(x)


class TorchReads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.apart, self.inner = TorchApart(), torch.nn.Linear(D, H)

    def forward(self, x):
        a, b = self.apart(torch.sin(x))
        return self.inner(a) * b.sum(-1, keepdim=True)


class Same(nnx.Module):
    def __call__(self, x):
        return x


class Apart(nnx.Module):
    def __init__(self):
        self.a, self.b = Same(), Same()

    def __call__(self, x):
        return self.a(x), self.b(x)


class Reads(nnx.Module):
    def __init__(self):
        self.apart, self.inner = Apart(), nnx.Linear(D, H, rngs=nnx.Rngs(0))

    def __call__(self, x):
        a, b = self.apart(jnp.sin(x))
        return self.inner(a) * b.sum(-1, keepdims=True)


def test_one_array_given_twice():
    torch.manual_seed(0)
    theirs = TorchReads().eval()
    ours = Reads()
    ours.inner.kernel[...] = theirs.inner.weight.detach().numpy().T
    ours.inner.bias[...] = theirs.inner.bias.detach().numpy()
    report = compare(theirs, ours, (X,), tier="A")
    assert report.status == "equal", str(report)
