"""Reports made by hand: what a comparison of a model of three blocks could have found."""

import math
from dataclasses import replace

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.data import Module, Stage, Status, Step
from jaxformer.parity.report.report import Report

PARTS = ("attention_norm", "attention.query", "attention", "feed_forward_norm", "feed_forward.up", "feed_forward")
SAME = Error(3e-16, 2e-15)
EPSILON = "torch epsilon 1e-05; jax epsilon 1e-06 (residual 6e-17)"
ENVIRONMENT = {"jax": "0.10.2", "torch": "2.13.0", "device": "cpu", "matmul precision": "jax highest, torch highest"}


def calls() -> list[Module]:
    """What both sides have, all of it equal; the first call is equal to the bit."""
    names = ["embed", *(f"stack.blocks.{block}.{part}" for block in range(12) for part in PARTS), "norm", "head", ""]
    modules = [Module(name, f"torch.{name}" if name else "the model", SAME, SAME, "output", False) for name in names]
    modules[0] = replace(modules[0], propagated=Error(0.0, 0.0), local=Error(0.0, 0.0))
    return modules


def equal() -> Report:
    """Nothing differs."""
    names = ("weights", "forward", "local", "gradients", "float32")
    stages = [Stage(name, "equal", "all of it") for name in names]
    return Report("A", 1e-13, stages, calls(), not_covered=["stack.*.attention.key.bias"], environment=ENVIRONMENT)


def found(report: Report, *statuses: Status) -> Report:
    """Stages with other results, in their order."""
    says: dict[Status, str] = {
        "equal": "all of it",
        "different": "output 1.1e-04; first at the second block",
        "failed": "RuntimeError: no kernel",
    }
    stages = [Stage(stage.name, status, says[status]) for stage, status in zip(report.stages, statuses, strict=False)]
    return replace(report, stages=stages)


def different() -> Report:
    """An epsilon in block 1, something unknown in block 10; what is after them is off too."""
    report, modules = equal(), []
    for i, module in enumerate(report.modules):
        off = 0.0 if i < 7 else 1.7e-7 * 1.1**i
        module = replace(module, propagated=Error(off, 10 * off)) if off else module
        if module.jax.endswith("attention"):
            heads = [2e-16, 0.0, 3.1e-4, 8e-9] if off else [2e-16] * 4
            module = replace(module, heads=heads)
        if not module.jax.endswith("query"):
            module = replace(module, positions=[off * place / 40 if place > 4 else 1e-16 for place in range(66)])
        modules.append(module)
    modules[7] = replace(modules[7], local=Error(1.7e-4, 2e-3), diverging=True, cause=EPSILON)
    modules[63] = replace(modules[63], local=Error(0.3, 1.9), diverging=True, what="input of stack.blocks.10.attention.out")
    found_now = found(report, "equal", "different", "different", "different", "different")
    return replace(found_now, modules=modules, jax_only=["rope"], taps=["rope"], torch_only=["drop", "drop (call 1)"])


def backward() -> Report:
    """Right forwards everywhere; the gradient of one module is its own fault."""
    report, quiet = equal(), Error(4e-15, 4e-14)
    modules = [replace(module, gradient=quiet, local_gradient=quiet) for module in report.modules]
    for i in range(15):
        modules[i] = replace(modules[i], gradient=Error(2e-3, 3e-3))
    modules[14] = replace(modules[14], local_gradient=Error(2e-3, 3.1e-3), diverging=True)
    stages = [
        Stage("local", "equal", "0 diverging"),
        Stage("activation gradients", "different", "1 diverging"),
        Stage("gradients", "different", "x"),
    ]
    return replace(report, modules=modules, stages=stages)


def failed() -> Report:
    """Nothing could be run."""
    stages = [Stage("weights", "equal", "40 of 40 tensors"), Stage("forward", "failed", "RuntimeError: no kernel")]
    return Report("A", 1e-13, stages, environment=ENVIRONMENT)


def trained() -> Report:
    """Forty steps, of which number 17 is the worst."""
    steps = [Step(n, 3.2 * math.exp(-n / 20), 1e-16 * n, 1e-15 * 1.1**n) for n in range(40)]
    steps[17] = replace(steps[17], loss_error=4.4e-9)
    stages = [*equal().stages, Stage("train", "different", "step 17: loss off by 4.4e-09")]
    return replace(equal(), steps=steps, stages=stages)


def infinite() -> Report:
    """Shapes do not agree, a loss is lost, and names are adversarial."""
    report = different()
    wrong = Error(math.inf, math.nan)
    positions = [1e-16, math.inf, math.nan, 0.0]
    bad = Module(
        "<script>alert(1)</script>|x",
        "`a|b`",
        wrong,
        wrong,
        "output",
        True,
        "</title><b>\"'&",
        positions=positions,
        heads=[math.inf],
    )
    return replace(report, modules=[bad, *report.modules], steps=[Step(3, math.nan, math.inf, -math.inf)])


REPORTS = {
    "equal": equal,
    "different": different,
    "backward": backward,
    "failed": failed,
    "trained": trained,
    "infinite": infinite,
}
