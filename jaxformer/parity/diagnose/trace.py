"""Operations of torch's code: listing them, finding their lines in the source, and rewriting what they compute."""

import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jaxformer.parity.diagnose.calls import bound, holds_tensors, safe, writes
from jaxformer.parity.diagnose.computes import Compute, a_little_more
from jaxformer.parity.diagnose.mutation import Change, Edit, Free, Proposal, Target, propose, together

Frame = tuple[CodeType, int]
"""Code object, and the offset of an instruction in it."""
Place = tuple[Frame, ...]
"""Place of an operation: frames of torch's own functions, the inner ones first, then the first frame that is not torch's."""
LIBRARY = os.path.dirname(torch.__file__) + os.sep
HERE = os.path.dirname(__file__) + os.sep
PARITY = os.path.dirname(os.path.dirname(__file__)) + os.sep
WATCHING = os.path.join(PARITY, "trace") + os.sep
"""Folder of the functions through which observed modules are called: their frames belong to no code."""
STAND_IN = "_stand_in"
"""Name of the method of a replay that gives a child's recorded output: what it copies counts as the call of the child."""
GENERATED = ("<@", "<frozen")
"""Beginnings of the file names of code that beartype and Python make. Others with < hold a user's code: typed in, or traced."""
OPENED = (functional.multi_head_attention_forward,)
"""torch functions whose inner operations are listed one by one."""
LAYERS = os.path.join("nn", "modules", "transformer.py")
"""File of torch's modules whose own lines are shown."""
LITTLE, LONGEST, FIRST = 1e-4, 60, 43
"""Relative size of a nudge; largest number of source characters that are shown, and how many of them are the first: the end
tells an expression from those inside it."""


@dataclass(frozen=True)
class Run:
    """One run of an operation."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    around: Frame | None
    """Frame that calls the code in which the operation stands."""
    number: int
    """Number of the run among all runs of all operations."""
    module: int
    """Id of torch's module whose code it is; 0 if it is no module's."""


@dataclass
class Op:
    """Operation: a place in the code, and its runs."""

    place: Place
    function: Callable[..., Any]
    runs: list[Run] = field(default_factory=list)
    only: int | None = None
    """Number of the run that is mutated; None: all."""

    @property
    def name(self) -> str:
        """Name of the function without outer underscores: 'mul' for `x * y`, `x.mul(y)` and `x *= y`."""
        return getattr(self.function, "__name__", "").strip("_")

    @property
    def run(self) -> Run:
        """Run that is mutated, or the first one."""
        return self.runs[self.only or 0]

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments of that run; `kwargs` and `output` are that run's too."""
        return self.run.args

    @property
    def kwargs(self) -> dict[str, Any]:
        return self.run.kwargs

    @property
    def output(self) -> Any:
        return self.run.output

    @property
    def target(self) -> Target:
        """Target of mutations: words for the operation, and its file, line and column."""
        code, line, column = self.position
        known = not (is_ours(code.co_filename) or code.co_filename.startswith(PARITY))
        return Target(self.source, code.co_filename, line, column) if known else Target(self.source)

    def rewrite(self, compute: Compute) -> "Rewrite":
        """Return an edit: the operation computes something else."""
        if self.only is None:
            return Rewrite({self.place: compute})
        return Rewrite({self.place: lambda f, a, k, n: compute(f, a, k, n) if n == self.only else f(*a, **k)})

    def instead(self, change: Change, compute: Compute, near: tuple[Callable[[], Edit], ...] = (), **args: Any) -> Proposal:
        """Propose that the operation computes something else. `near`: edits with neighbouring numbers."""
        return propose(change, self.target, partial(self.rewrite, compute), near=near, **args)

    def solving(self, change: Change, free: Free, compute: Callable[[Any], Compute], **args: Any) -> Proposal:
        """Propose that the operation computes something else, with a free parameter."""
        return propose(change, self.target, lambda number: self.rewrite(compute(number)), free, **args)

    @property
    def is_inner(self) -> bool:
        """True for an operation inside one of torch's functions in `OPENED`."""
        codes = [code for code, _ in self.place]
        return any(function.__code__ in codes for function in OPENED)

    @property
    def position(self) -> tuple[CodeType, int, int]:
        """Code object that is shown, with the line and column of the operation."""
        code, at = shown(self.place)
        line, _, column, _ = [*code.co_positions()][at // 2]
        return code, line or 0, column or 0

    @property
    def source(self) -> str:
        """Source text and place, as '`q * cos` (modeling_llama.py:131)'."""
        if is_ours(file := shown(self.place)[0].co_filename) or file.startswith(PARITY):
            return self.name  # the replay itself calls torch's module: no user code to show
        text, where = text_of(shown(self.place))
        says = f"`{text}` ({where})" if text else f"{self.name} ({where})"
        says += f" of `{text_of(self.place[-1])[0].partition('(')[0]}`" if is_inside(self.place) else ""
        if self.only is None:
            return says
        around = text_of(self.run.around)[0] if self.run.around else ""
        others = [text_of(run.around)[0] for run in self.runs if run.around]
        return f"{says} in `{around}`" if others.count(around) == 1 else f"{says}, time {self.only + 1} of {len(self.runs)}"


def text_of(frame: Frame) -> tuple[str, str]:
    """Return the source text and the place of a frame: 'q * cos', 'modeling_llama.py:131'."""
    code, at = frame
    first, last, start, end = [*code.co_positions()][at // 2]
    lines = [linecache.getline(code.co_filename, n) for n in range(first or 0, (last or 0) + 1)]
    text = lines[0][start:end] if len(lines) == 1 else "".join([lines[0][start:], *lines[1:-1], lines[-1][:end]])
    text = " ".join(text.split())
    where = f"{os.path.basename(code.co_filename)}:{first}"
    return text if len(text) <= LONGEST else f"{text[:FIRST]}...{text[FIRST - LONGEST + 3 :]}", where


def place_of() -> tuple[Place, FrameType | None]:
    """Return the place of the operation that runs now, and the first frame that is not torch's."""
    frame, found = sys._getframe(1), []
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None:
        stands_in = frame.f_code.co_name == STAND_IN and is_ours(frame.f_code.co_filename)
        if not stands_in and not frame.f_code.co_filename.startswith((__file__, WATCHING)):  # `opened` runs below this file
            found.append((frame.f_code, frame.f_lasti))
            if not frame.f_code.co_filename.startswith(LIBRARY):
                break
        frame = frame.f_back
    return tuple(found), frame


def around(frame: FrameType | None) -> Frame | None:
    """Return the frame that calls this one."""
    outer = frame and frame.f_back
    return outer and (outer.f_code, outer.f_lasti)


def module_of(frame: FrameType | None) -> int:
    """Return the id of the innermost torch module whose method is on the stack; 0 if there is none."""
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, torch.nn.Module):
            return id(first)
        frame = frame.f_back
    return 0


def shown(place: Place) -> Frame:
    """Return the frame to be shown: torch's own inside `OPENED` functions and `LAYERS`, else the first that is not torch's."""
    codes = [code for code, _ in place[:-1]]
    if any(function.__code__ in codes for function in OPENED):
        own = [frame for frame in place if frame[0].co_filename == functional.__file__]
        return next((frame for frame in own if not text_of(frame)[0].startswith("handle_torch_function")), own[-1])
    return next((frame for frame in place[:-1] if frame[0].co_filename.endswith(LAYERS)), place[-1])


def is_inside(place: Place) -> bool:
    """True if torch's own code is shown, and the user's code calls it."""
    file = place[-1][0].co_filename
    return shown(place) is not place[-1] and not is_ours(file) and not file.startswith(PARITY)


@contextmanager
def opened(mode: TorchFunctionMode) -> Iterator[None]:
    """Run an `OPENED` function under a mode that sees each of its operations."""
    with mock.patch.object(functional, "has_torch_function", return_value=False), mode:
        yield


def is_ours(file: str) -> bool:
    """True for code of this folder, and checks of argument types in tests."""
    return file.startswith((HERE, *GENERATED)) or f"{os.sep}jaxtyping{os.sep}" in file


class Listing(TorchFunctionMode):
    """Context manager: lists the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[Place, Op] = {}
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in OPENED:
            with opened(self):
                return func(*args, **kwargs)
        args, kwargs = bound(func, args, kwargs)
        (place, frame), held = place_of(), tuple(kept(each) for each in args)
        output = func(*args, **kwargs)
        if holds_tensors(output):
            found = self.operations.setdefault(place, Op(place, func))
            found.runs.append(Run(held, kwargs, kept(output), around(frame), self.count, module_of(frame)))
            self.count += 1
        return output


class Rewrite(TorchFunctionMode):
    """Context manager: operations at these places compute something else."""

    def __init__(self, altered: Mapping[Place, Compute]) -> None:
        super().__init__()
        self.altered, self.runs = altered, Counter[Place]()

    def nudged(self, part: float) -> "Rewrite":
        """Return the same rewrite with nudged outputs, by the relative amount `part`."""
        return Rewrite({place: partial(a_little_more, compute, part) for place, compute in self.altered.items()})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in OPENED:
            with opened(self):
                return func(*args, **kwargs)
        place, _ = place_of()
        compute = self.altered.get(place)
        if compute is None:
            return safe(func)(*args, **kwargs)
        args, kwargs = bound(func, args, kwargs)
        func = safe(func)
        self.runs[place] += 1
        result = compute(func, args, kwargs, self.runs[place] - 1)
        into = args[0] if writes(func) else kwargs.get("out")
        is_other = isinstance(into, torch.Tensor) and isinstance(result, torch.Tensor) and result is not into
        return into.copy_(result) if is_other and result.shape == into.shape else result


def at_once(several: Iterable[Any]) -> Rewrite:
    """Merge several rewrites: a mode nested in another would not recognise its places."""
    return Rewrite({place: compute for each in several for place, compute in each.altered.items()})


def both(one: Edit, other: Edit) -> Edit:
    """Return one edit that applies both; two rewrites have to be of different operations."""
    if isinstance(one, Rewrite) and isinstance(other, Rewrite):
        return at_once((one, other))
    return together(one, other)


def same(x: Any, y: Any) -> bool:
    """True for tensors that are equal, shapes included."""
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.shape == y.shape and torch.equal(x, y)


def entries(value: Any) -> int:
    """Number of entries of a tensor, or of several tensors."""
    return value.numel() if isinstance(value, torch.Tensor) else sum(each.numel() for each in value)


def kept(value: Any) -> Any:
    """Copy tensors, since later code may change them in place; return other values as they are."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(map(torch.clone, value)) if type(value) in (tuple, list) and holds_tensors(value) else value
