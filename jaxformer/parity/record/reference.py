"""Everything that torch says about a model on some inputs, as arrays: what JAX is compared with."""

import copy
import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from jaxformer.errors import JaxformerError, ParityError
from jaxformer.parity.capture.call_records import Record, Trace, arrays_in, is_array, replaced
from jaxformer.parity.capture.call_sites import CALL, Observer, Site, watch_torch, without_fast_path
from jaxformer.parity.capture.source_lines import definition_of
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.record.rounding import Rounding
from jaxformer.parity.record.torch_state import thawed, torch_state

Call = Callable[..., Any]
"""call(module, *inputs) -> output"""
Tier = Literal["A", "B", "C"]
LOW_PRECISION: dict[Tier, tuple[str, ...]] = {"A": (), "B": ("float32",), "C": ("float32", "bfloat16")}
"""In which types each tier judges the output, besides float64."""
NARROWED = {"float32": "float", "bfloat16": "bfloat16"}
"""torch's methods that give a module in such a type; unlike its `to`, they leave complex numbers as they are."""

REFUSALS = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)
"""How a model refuses arrays."""

RECENT = 8
"""Among so many arrays, an equal one is looked for."""

HINTS = (
    (
        ["index out of range in self"],
        "an id or a position lies behind a table's last row: give smaller ids (on the command line --vocab), or shorter "
        "inputs (--length)",
    ),
    (["Reverse-mode differentiation does not work"], "or leave out the checks of gradients"),
    (["int32", "int64"], "the run in float64 has JAX's x64 on, in which integers are int64 unless told their type: tell yours"),
    (["traced array"], "jax.grad cannot go through numpy: compute it with jnp, or leave out the checks of gradients"),
)
"""What to do about an error of torch's or JAX's, by parts of what it says."""


def apply(module: Any, *inputs: Any) -> Any:
    """module(*inputs)"""
    return module(*inputs)


@dataclass(frozen=True)
class Reference:
    """The gradients are those of the sum of output * cotangent."""

    inputs: tuple[np.ndarray, ...]
    """Integer and boolean arrays, and float ones, which are differentiated too."""
    weights: Mapping[str, np.ndarray]
    """float32, by torch's names."""
    output: np.ndarray
    """float64, on the same float32 weights and inputs."""
    cotangent: np.ndarray
    """Noise of the output's shape."""
    gradients: Mapping[str, np.ndarray]
    """float64: of every weight that is trained by name, and of float inputs as 'input 0', 'input 1', ...; empty if none were
    asked for."""
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Those of floats, float32, by torch's names."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Every further name of a weight -> the one that it goes by."""
    frozen: frozenset[str] = frozenset()
    """Weights that torch does not train."""
    low_precision: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The output in 'float32' and 'bfloat16', as far as the tier goes."""
    calls: Trace = field(default_factory=dict)
    """Every call of every module in float64, if it was watched."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """How many heads an attention module has, by its path, if it was watched."""
    rounding: Rounding = field(default_factory=Rounding)
    """How far rounding moves all that, where that is more than the lines leave room for."""
    not_covered: tuple[str, ...] | None = None
    """What no comparison with this could notice, if that was asked for."""
    environment: Mapping[str, str] = field(default_factory=dict)


def run_torch(
    module: Any,
    inputs: tuple[np.ndarray, ...],
    call: Call = apply,
    *,
    seed: int = 0,
    tier: Tier = "B",
    watch: bool = False,
    gradients: bool = True,
) -> Reference:
    """Run a float32 torch module in float64, and in the types of the tier; it is left as it was.

    In training mode `call` has to give it the dropout masks. Raises ParityError where there is no one output array.
    """
    import torch

    recorder = Recorder()
    with saying("torch in float64"):
        output, cotangent, found = run_float64(
            module, inputs, call, recorder if watch else None, seed=seed, gradients=gradients
        )
    heads = {path: n for path, each in module.named_modules() if watch and (n := _heads(each))}
    low_precision = {}
    for name in LOW_PRECISION[tier]:
        typed = getattr(copy.deepcopy(module), NARROWED[name])()
        with torch.no_grad(), without_fast_path(), saying(f"torch in {name}"):
            given = call(typed, *_tensors(inputs, getattr(torch, name)))
            low_precision[name] = host(given if given.is_complex() else given.float())
    calls = {**recorder.records(), CALL: Record((), (output,), (), (cotangent,))} if watch else {}
    environment = {
        "torch": str(torch.__version__),
        "torch matmul precision": torch.get_float32_matmul_precision(),
        "python": platform.python_version(),
    }
    return Reference(
        inputs=inputs,
        **vars(torch_state(module)),
        output=output,
        cotangent=cotangent,
        gradients=found,
        low_precision=low_precision,
        calls=calls,
        heads=heads,
        environment=environment,
    )


def run_float64(
    module: Any, inputs: tuple[np.ndarray, ...], call: Call, observer: Observer | None, *, seed: int = 0, gradients: bool
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """One run of a copy of the module in float64: the output, the noise that stands for its gradient, and the gradients."""
    import torch

    wide, tensors = thawed(copy.deepcopy(module).double()), _tensors(inputs, torch.float64)
    with torch.set_grad_enabled(gradients), torch_float64(), watch_torch(wide, observer) if observer else nullcontext():
        leaves = _leaves(wide, tensors) if gradients else {}
        output = one_array(call(wide, *tensors), "call_torch", call)
        if gradients and (output.is_complex() or not output.requires_grad):
            raise ParityError(
                "no gradient comes from what call_torch gives: it is detached, or holds no floats; leave out "
                "the checks of gradients"
            )
        cotangent = np.random.default_rng(seed).standard_normal(output.shape)
        return host(output), cotangent, _gradients(output, cotangent, leaves) if gradients else {}


def _heads(module: Any) -> int | None:
    """Under any of the names that it goes by."""
    found = (getattr(module, name, None) for name in ("num_heads", "n_heads", "num_attention_heads", "n_head", "heads"))
    return next((n for n in found if isinstance(n, int)), None)


def one_array(output: Any, name: str, call: Call) -> Any:
    """The output of `call`, or ParityError if it is no array."""
    if not is_array(output):
        among = f" of {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        at = f" (at {place})" if (place := definition_of(call)) else ""
        raise ParityError(
            f"{name} gave a {type(output).__name__}{among}, no array; give {name}=lambda model, *inputs: ... that picks one{at}"
        )
    return output


def _tensors(inputs: tuple[np.ndarray, ...], floating: Any) -> list[Any]:
    import torch

    tensors = [torch.tensor(array) for array in inputs]
    return [tensor.to(floating) if tensor.is_floating_point() else tensor for tensor in tensors]


def _leaves(model: Any, tensors: list[Any]) -> dict[str, Any]:
    """What is differentiated."""
    floats = {f"input {i}": tensor.requires_grad_() for i, tensor in enumerate(tensors) if tensor.is_floating_point()}
    return floats | {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}


def _gradients(output: Any, cotangent: np.ndarray, leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Zeros for what has no influence."""
    import torch

    total = (output * torch.from_numpy(cotangent)).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, map(host, found), strict=True))


@contextmanager
def saying(where: str) -> Iterator[None]:
    """Whatever goes wrong inside is one line that says where."""
    try:
        yield
    except JaxformerError:
        raise
    except Exception as error:
        line = str(error).strip().split("\n")[0]
        hint = next((f"; {hint}" for known, hint in HINTS if all(each in str(error) for each in known)), "")
        raise ParityError(f"{where}: {type(error).__name__}: {line.rstrip('.:') if hint else line}{hint}") from error


class Recorder:
    """Keeps what goes in and out of torch's calls, and catches the gradients on their way back."""

    def __init__(self) -> None:
        self.begun: dict[Site, list[np.ndarray]] = {}
        self.calls: dict[Site, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        self.gradients: dict[tuple[Site, bool, int], np.ndarray] = {}
        self.recent: deque[np.ndarray] = deque(maxlen=RECENT)

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """A call gets copies, so that the gradients they send back are its own."""
        arguments, self.begun[site] = self._note(site, arguments, is_input=True)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        """Calls without an array in what they give are no part of the forward pass."""
        given = self.begun.pop(site)
        output, arrays = self._note(site, output, is_input=False)
        if arrays:
            self.calls[site] = given, arrays
        return output

    def _note(self, site: Site, value: Any, *, is_input: bool) -> tuple[Any, list[np.ndarray]]:
        tensors = arrays_in(value)
        copies = [tensor.clone() if getattr(tensor, "requires_grad", False) else tensor for tensor in tensors]
        for i, tensor in enumerate(copies):
            if getattr(tensor, "requires_grad", False):
                key = site, is_input, i
                tensor.register_hook(lambda gradient, key=key: self.gradients.__setitem__(key, host(gradient).copy()))
        return replaced(value, tensors, copies), [self._kept(host(tensor)) for tensor in copies]

    def _kept(self, array: np.ndarray) -> np.ndarray:
        """A copy, or an equal one that is there: what a module gives goes into the next."""
        for known in self.recent:
            if known.dtype == array.dtype and np.array_equal(known, array, equal_nan=array.dtype.kind in "fc"):
                return known
        self.recent.append(array.copy())
        return self.recent[-1]

    def records(self) -> dict[Site, Record]:
        """In the order in which calls end."""

        def gradients(site: Site, arrays: list[np.ndarray], is_input: bool) -> tuple[np.ndarray | None, ...]:
            return tuple(self.gradients.get((site, is_input, i)) for i in range(len(arrays)))

        return {
            site: Record(tuple(given), tuple(output), gradients(site, given, True), gradients(site, output, False))
            for site, (given, output) in self.calls.items()
        }
