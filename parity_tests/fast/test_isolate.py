"""Comparisons in a process of their own, of models that end it."""

import os
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxformer.errors import ConfigError, InputError
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap

pytestmark = pytest.mark.foreign
VALUES = ("weights", "forward")
X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 3)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def torch_model():
    return excite(Two(), seed=0)


def parameters():
    return {name: jnp.asarray(value.detach().numpy()) for name, value in torch_model().named_parameters()}


def two(p, x):
    x = tap("up", x @ p["up.weight"].T + p["up.bias"])
    return tap("down", jax.nn.relu(x) @ p["down.weight"].T + p["down.bias"])


def crashing(p, x):
    """Ends the process in `down`, whenever it runs."""
    os.kill(os.getpid(), signal.SIGSEGV) if "down.bias" in p else None
    return two(p, x)


def crashing_under_jit(p, x):
    """Ends the process while jit traces it."""
    if type(x).__name__ == "DynamicJaxprTracer":
        os.kill(os.getpid(), signal.SIGSEGV)
    return two(p, x)


def isolated(call, **options):
    return compare(torch_model(), parameters(), (X,), call_jax=call, checks=VALUES, tier="A", isolate=True, **options)


@pytest.mark.slow
def test_equal():
    assert isolated(two).verdict == "EQUAL: weights, forward (tier A)"


@pytest.mark.slow
def test_a_crash_is_told():
    report = isolated(crashing)
    assert report.exit_code == 2
    said = (
        "COULD NOT COMPARE: forward: the JAX program crashed the process (SIGSEGV) while running the model; `jaxformer doctor`"
    )
    assert report.verdict.startswith(said)


@pytest.mark.slow
def test_what_crashes_compiled_is_judged_by_its_operations():
    report = isolated(crashing_under_jit)
    assert report.exit_code == 0
    assert "XLA, not the port: the JAX program crashed the process (SIGSEGV) while running the model" in report.verdict


@pytest.mark.slow
def test_a_refusal_is_the_same():
    with pytest.raises(ConfigError, match="mode = 'other'"):
        isolated(two, mode="other")


def test_what_cannot_be_handed_over_is_refused():
    lock = threading.Lock()
    with pytest.raises(InputError, match="isolate = True hands both models to another process"):
        isolated(lambda p, x: two(p, x) if lock else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "said"),
    [
        ("crashing_side", "the JAX program crashed the process (SIGSEGV) while running the model; `jaxformer doctor` lists"),
        ("ending_side", "the JAX program ended the process (an exit with code 0) while running the model; take that out"),
    ],
)
def test_the_command_survives_what_ends_the_process(side, said, tmp_path):
    names = [f"parity_tests.fast.test_isolate:{name}" for name in ("torch_model", side, "inputs")]
    command = [sys.executable, "-m", "jaxformer", "parity", "compare", *names[:2], "--inputs", names[2], "--tier", "A"]
    done = subprocess.run([*command, "--json", str(tmp_path / "r.json")], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stdout.splitlines()[-1]
    assert done.stderr == ""
    assert (tmp_path / "r.json").is_file()


def crashing_side():
    return parameters(), crashing


def ending(p, x):
    """Ends the process as if all were well."""
    os._exit(0) if "down.bias" in p else None


def ending_side():
    return parameters(), ending


def inputs():
    return (X,)
