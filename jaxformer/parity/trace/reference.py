"""Recorded reference: everything that torch computes for a model on some inputs, as arrays."""

import copy
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from jaxformer.errors import JaxformerError, ParityError, message_of
from jaxformer.io.on_disk import kept
from jaxformer.parity.numerics.cast_on_use import beside_weights, casts_on_use, state_to_float64
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.float_masks import is_mask
from jaxformer.parity.numerics.metrics import Noise, host
from jaxformer.parity.numerics.products import torch_product
from jaxformer.parity.trace.call_records import Record, Trace
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Observer
from jaxformer.parity.trace.draws import Draw
from jaxformer.parity.trace.low_precision import output_in, tensors_of
from jaxformer.parity.trace.outputs import Call, several, side_by_side
from jaxformer.parity.trace.source_lines import fault_in_callback, is_users, shown
from jaxformer.parity.trace.torch_hooks import Recorder, thawed, torch_state, watch_torch
from jaxformer.runtime.memory import give_back_freed_memory

Tier = Literal["A", "B", "C"]
LOW_PRECISION: dict[Tier, tuple[str, ...]] = {"A": (), "B": ("float32",), "C": ("float32", "bfloat16")}
"""Dtypes in which each tier judges the output, besides float64."""
REFUSALS = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)
"""Errors that a model raises for arrays that it refuses."""

HINTS = (
    (
        ["index out of range in self"],
        "an id or a position lies after a table's last row: give smaller ids (on the command line --vocab), or shorter "
        "inputs (--length)",
    ),
    (
        ["TypeError", "missing", "required positional argument"],
        "it takes more inputs than it was given: return them all as a tuple (on the command line --inputs module:function)",
    ),
    (
        ["not differentiable with respect to argument"],
        "inputs of floats are differentiated, and torch gives that argument no gradient: hold it as a constant on both sides",
    ),
    (["Reverse-mode differentiation does not work"], "or leave out the checks of gradients"),
    (["int32", "int64"], "the run in float64 has JAX's x64 on, in which integers are int64 unless told their type: tell yours"),
    (
        ["UnexpectedTracerError"],
        "the model kept it from an earlier call: compute it in every call, with numpy, or hold it in an nnx.Variable",
    ),
    (
        ["traced array"],
        "jax.grad cannot go through numpy or Python's numbers: compute it with jnp, or leave out the checks of gradients",
    ),
)
"""Advice on errors of torch and JAX, by parts of their message."""


def apply(module: Any, *inputs: Any) -> Any:
    """Return module(*inputs)."""
    return module(*inputs)


Perturbed = Mapping[ArrayKey, Noise]
"""Noise by which rounding alone perturbs torch's arrays."""


@dataclass(frozen=True)
class Rounding:
    """Noise in all arrays of an ill-conditioned model; empty if rounding stays far below the tolerances."""

    run: Perturbed = field(default_factory=dict)
    """Noise along the normal run."""
    alone: Perturbed = field(default_factory=dict)
    """Noise in each module that holds parameters, given torch's own arrays."""
    output: Perturbed = field(default_factory=dict, compare=False)
    """Noise in the output alone, for any model, ill-conditioned or not."""


@dataclass(frozen=True)
class Source:
    """Recorded torch model, which can run again."""

    module: Any
    call: Call
    inside: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """Context manager in which the model, or a part of it, runs as in the call."""


@dataclass(frozen=True)
class Reference:
    """Recorded run of a torch model; gradients are those of sum(output * cotangent)."""

    inputs: tuple[np.ndarray, ...]
    """Integer, boolean and float arrays; float ones are differentiated too unless they are masks."""
    weights: Mapping[str, np.ndarray]
    """Weights in float32, by torch's names."""
    output: np.ndarray
    """Output in float64, on the same float32 weights and inputs; several arrays are side by side."""
    cotangent: np.ndarray
    """Noise of the output's shape."""
    gradients: Mapping[str, np.ndarray]
    """Gradients in float64: of every trained weight by name, and of float inputs that are not masks as 'input 0', 'input 1',
    ...; empty if none were requested."""
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Float buffers as float32, by torch's names."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Further name of a weight -> its first name."""
    frozen: frozenset[str] = frozenset()
    """Names of weights that torch does not train."""
    padding: Mapping[str, int] = field(default_factory=dict)
    """Row of an embedding that gets no gradient because of torch's `padding_idx`, by the embedding's path."""
    low_precision: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Output in 'float32' and 'bfloat16', as the tier requires."""
    keeps_buffers: bool = True
    """True if torch's buffers stayed in float32 in those runs."""
    outputs: tuple[str, ...] = ("",)
    """Names of the output's arrays in the result of torch's call; '' if the result is an array."""
    calls: Trace = field(default_factory=dict)
    """Records of every call of every module in float64, if recorded."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """Number of heads of an attention module, by its path, if recorded."""
    rounding: Rounding = field(default_factory=Rounding)
    """Noise by which rounding perturbs all of these arrays, if it exceeds what the tolerances allow."""
    not_covered: tuple[str, ...] | None = None
    """Parts that no comparison with this reference covers, if requested."""
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""
    """Modules that a selection leaves out, in words."""
    draws: tuple[Draw, ...] | None = None
    """torch's draws in training mode; None in inference mode."""
    source: Source | None = None
    """Recorded torch model; None if the reference was loaded from a folder."""

    @property
    def by_all_names(self) -> dict[str, np.ndarray]:
        """Weights, tied ones by all their names."""
        return {**self.weights, **{name: self.weights[first] for name, first in self.tied.items() if first in self.weights}}


def run_torch(
    module: Any,
    inputs: tuple[np.ndarray, ...],
    call: Call = apply,
    *,
    tier: Tier = "B",
    watch: bool = False,
    gradients: bool = True,
) -> Reference:
    """Run a float32 torch module in float64, and in the dtypes of the tier; the module is left as it was.

    In training mode `call` has to give the module its dropout masks. Raises ParityError if the output is not one or more
    arrays.
    """
    recorder = Recorder()
    with saying("torch in float64"):
        outputs, cotangents, found = run_float64(module, inputs, call, recorder if watch else None, gradients=gradients)
    heads = {path: n for path, each in module.named_modules() if watch and (n := _heads(each))}
    sent = tuple(each if array.dtype.kind == "f" else None for each, array in zip(cotangents, outputs, strict=True))
    calls = {**recorder.records(), CALL: Record((), tuple(map(recorder.kept, outputs)), (), sent)} if watch else {}
    low = {name: saying(f"torch in {name}")(output_in)(module, inputs, call, name) for name in LOW_PRECISION[tier]}
    return Reference(
        inputs=inputs,
        **vars(torch_state(module)),
        output=side_by_side(outputs),
        cotangent=side_by_side(cotangents),
        gradients=kept(found),
        padding=_padding(module),
        low_precision={name: output for name, (output, _) in low.items()},
        keeps_buffers=all(keeps for _, keeps in low.values()),
        calls=calls,
        heads=heads,
        environment=torch_environment(),
        source=Source(module, call),
    )


def run_float64(
    module: Any, inputs: tuple[np.ndarray, ...], call: Call, observer: Observer | None, *, gradients: bool
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], dict[str, np.ndarray]]:
    """Run a copy of the module in float64; return the output arrays, their cotangents, and the gradients.

    Gradients are zeros for tensors that the output does not depend on.
    """
    import torch

    give_back_freed_memory()  # of the run before
    copied = state_to_float64(beside_weights(module)) if casts_on_use() else thawed(copy.deepcopy(module).double())
    tensors = tensors_of(inputs, torch.float64)
    watched = watch_torch(copied, observer) if observer else nullcontext()
    with torch.set_grad_enabled(gradients), torch_float64(), watched:
        floats = {
            f"input {i}": tensor for i, tensor in enumerate(tensors) if tensor.is_floating_point() and not is_mask(inputs[i])
        }
        leaves = floats | {name: tensor for name, tensor in copied.named_parameters() if tensor.requires_grad}
        for tensor in floats.values():
            tensor.requires_grad_(gradients)
        outputs = several(call(copied, *tensors), "call_torch", call)
        random = np.random.default_rng(0)
        cotangents = tuple(random.standard_normal(output.shape) for output in outputs)
        arrays = tuple(map(host, outputs))
        if not gradients:
            return arrays, cotangents, {}
        if any(output.is_complex() for output in outputs):
            raise ParityError(
                "the output of call_torch is complex, and gradients are taken of real numbers; leave out the checks of "
                "gradients, or give call_torch with torch.view_as_real and call_jax with the real and imaginary parts"
            )
        if not any(output.requires_grad for output in outputs):
            raise ParityError(
                "no gradient comes from what call_torch gives: it is detached, or holds no floats; leave out "
                "the checks of gradients"
            )
        both = zip(outputs, cotangents, strict=True)
        total = torch.stack([(output * torch.from_numpy(each)).sum() for output, each in both]).sum()
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return arrays, cotangents, dict(zip(leaves, map(host, found), strict=True))


def torch_environment() -> dict[str, str]:
    """Return the versions and precision of torch's side."""
    import torch

    return {
        "torch": str(torch.__version__),
        "torch matmul precision": torch.get_float32_matmul_precision(),
        "torch float32 product": str(torch_product()),
        "python": platform.python_version(),
    }


def _padding(module: Any) -> dict[str, int]:
    """Return the padding rows of embeddings, by path."""
    import torch

    tables = ((path, each) for path, each in module.named_modules() if isinstance(each, torch.nn.Embedding))
    return {path: each.padding_idx for path, each in tables if each.padding_idx is not None}


def _heads(module: Any) -> int | None:
    """Return the number of heads, under any of its usual attribute names."""
    found = (getattr(module, name, None) for name in ("num_heads", "n_heads", "num_attention_heads", "n_head", "heads"))
    return next((n for n in found if isinstance(n, int)), None)


def first_line(text: str) -> str:
    """Return the first line of an error message.

    For an error in a callback, its own message; for an array kept from an earlier call, the line that made the array.
    """
    if fault := fault_in_callback(text):
        return fault
    frames = re.findall(r"^(\S+):(\d+):\d+ \((.*)\)$", text, re.MULTILINE)
    made = [f"an array that {function} made ({shown(file, int(line))})" for file, line, function in frames if is_users(file)]
    return made[-1] if made else text.split("\n")[0]


@contextmanager
def saying(where: str) -> Iterator[None]:
    """Turn any error inside into a ParityError of one line that begins with `where`."""
    try:
        yield
    except JaxformerError:
        raise
    except Exception as error:
        name, message = type(error).__name__, message_of(error)
        line = first_line(message.strip())
        hint = next((f"; {hint}" for known, hint in HINTS if all(each in f"{name} {message}" for each in known)), "")
        raise ParityError(f"{where}: {name}: {line.rstrip('.:') if hint else line}{hint}") from error
