"""Python expressions of a model, of its settings and of the function that calls it; what has none is pickled.

Classes and functions that have a name in a module are always imported by it, so that the source as it is now counts. Lambdas
and functions inside of functions are pickled as they are, and only what they call is imported.
"""

import enum
import io
import math
import pickle
import sys
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from flax import nnx

from jaxformer.errors import first_line
from jaxformer.parity.reduce.constructor import PLAIN, Seed, arguments_of
from jaxformer.parity.trace.pytree_modules import is_module
from jaxformer.parity.trace.source_lines import is_users, shown

LINENS_OWN = ("parent", "name")
"""Fields of a Linen module that no constructor needs."""


class IrreducibleError(Exception):
    """Reason why a call cannot be written as a file that runs by itself."""


@dataclass
class Source:
    """Expressions of one file, and what they need."""

    imports: set[str] = field(default_factory=set)
    pickled: dict[str, Any] = field(default_factory=dict)
    """Values without an expression."""
    modules: set[str] = field(default_factory=set)
    """Modules that pickled values need."""
    fixed: list[CodeType] = field(default_factory=list)
    """Code of functions that are pickled as they are."""

    def of(self, value: Any, name: str) -> str:
        """Return an expression of a value; `name` is its name if it has to be pickled."""
        try:
            return self.expression(value)
        except LookupError:
            self.pickled[name] = value
            return f"kept(__file__)[{name!r}]"

    def expression(self, value: Any) -> str:
        """Return an expression of a value; LookupError if it has none."""
        if type(value) in PLAIN:
            return f"float({str(value)!r})" if type(value) is float and not math.isfinite(value) else repr(value)
        if type(value) is list:
            return f"[{', '.join(map(self.expression, value))}]"
        if type(value) is tuple:
            return f"({''.join(f'{self.expression(each)}, ' for each in value).strip()})"
        if type(value) is dict:
            return f"{{{', '.join(f'{self.expression(key)}: {self.expression(each)}' for key, each in value.items())}}}"
        if (found := place_of(value)) is not None:
            self.imports |= {found[0]} - {"builtins"}
            return ".".join(found).removeprefix("builtins.")
        if isinstance(value, Seed):
            self.imports.add("flax.nnx" if value.is_rngs else "jax")
            return "flax.nnx.Rngs(0)" if value.is_rngs else "jax.random.key(0)"
        if isinstance(value, np.dtype):
            self.imports.add("numpy")
            return f"numpy.dtype({value.name!r})"
        if isinstance(value, enum.Enum):
            return f"{self.expression(type(value))}.{value.name}"
        if type(value) is partial:
            self.imports.add("functools")
            named = [f"{name}={self.expression(each)}" for name, each in value.keywords.items()]
            return f"functools.partial({', '.join([self.expression(value.func), *map(self.expression, value.args), *named])})"
        if isinstance(value, nnx.Module) or is_module(value):
            return self._module(value)
        if is_dataclass(value) and not isinstance(value, type):
            kept = [each.name for each in fields(value) if each.init and each.name not in LINENS_OWN]
            return self._call(type(value), {name: getattr(value, name) for name in kept})
        raise LookupError

    def _call(self, kind: type, arguments: dict[str, Any]) -> str:
        return f"{self.expression(kind)}({', '.join(f'{name}={self.expression(each)}' for name, each in arguments.items())})"

    def _module(self, module: Any) -> str:
        """Return the call of the class that makes a module again."""
        name = named(type(module))
        if place_of(type(module)) is None:
            raise IrreducibleError(f"its class {name} cannot be imported; define it at the top level of a module")
        arguments = arguments_of(module)
        if arguments is None:
            raise IrreducibleError(
                f"a module does not keep what {name} was made with; give reduce_to a function that makes the model, too"
            )
        return self._call(type(module), arguments)

    def pickle(self) -> bytes:
        """Return the values without an expression, pickled; IrreducibleError if that is impossible."""
        if not self.pickled:
            return b""
        source, kind = self, pickler()

        class Noting(kind):
            """Pickler that notes where classes and functions come from."""

            def reducer_override(self, obj: Any) -> Any:
                source.note(obj)
                return super().reducer_override(obj) if hasattr(kind, "reducer_override") else NotImplemented

        file = io.BytesIO()
        try:
            Noting(file).dump(self.pickled)
        except IrreducibleError:
            raise
        except Exception as error:
            hint = "; cloudpickle may: pip install 'jaxformer[torch]'" if kind is pickle.Pickler else ""
            names = " and ".join(self.pickled)
            raise IrreducibleError(f"its {names} cannot be pickled ({first_line(error)}){hint}") from None
        return file.getvalue()

    def note(self, value: Any) -> None:
        """Note the module of a class or function that is pickled by its name, or the line of a function that is not."""
        if not isinstance(value, type | FunctionType):
            return
        if place_of(value) is not None:
            self.modules.add(value.__module__)
        elif isinstance(value, FunctionType):
            self.fixed.append(value.__code__)
        elif value.__module__ == "__main__" or "<locals>" in value.__qualname__:
            raise IrreducibleError(f"class {named(value)} cannot be imported; define it at the top level of a module")

    def keeps(self, line: str) -> bool:
        """True if a line, 'port.py:12', is part of a function that is pickled as it is."""
        return any(line in {shown(code.co_filename, n) for *_, n in code.co_lines() if n} for code in self.fixed)

    def kept(self) -> str:
        """Lines where the functions that are pickled as they are begin."""
        return ", ".join(shown(code.co_filename, code.co_firstlineno) for code in self.fixed)

    def folders(self) -> list[str]:
        """Folders of the user's modules, for Python's search path; IrreducibleError for a module that cannot be found there."""
        modules = [sys.modules[name] for name in sorted(self.imports | self.modules) if name in sys.modules]
        return [*dict.fromkeys(folder for module in modules if (folder := folder_of(module)))]


def pickler() -> Any:
    """Return cloudpickle's pickler, which takes functions without a name; Python's own where there is no cloudpickle."""
    if find_spec("cloudpickle") is None:
        return pickle.Pickler
    import cloudpickle

    return cloudpickle.Pickler


def place_of(value: Any) -> tuple[str, str] | None:
    """Return module and name of a class, a function or another object that can be imported by its own name; None for
    others."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (module, name) if found is value else None


def named(kind: type) -> str:
    """Name of a class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def folder_of(module: ModuleType) -> str:
    """Return the folder from which a user's module is imported; '' for a library's."""
    file = getattr(module, "__file__", None)
    if file is None or not is_users(file):
        return ""
    path, parts = Path(file).absolute().with_suffix(""), module.__name__.split(".")
    path = path.parent if path.name == "__init__" else path
    if [*path.parts[-len(parts) :]] != parts:
        raise IrreducibleError(f"module {module.__name__} was loaded from {file}, where no import would find it")
    return str(path.parents[len(parts) - 1])
