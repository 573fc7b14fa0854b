"""Paths of modules and names of tensors: parts that are joined by dots."""

from collections.abc import Iterable, Iterator


def join(*parts: str) -> str:
    """One path of parts, of which some may be empty."""
    return ".".join(filter(None, parts))


def parent(name: str) -> str:
    """The module that a tensor lies in."""
    return name.rpartition(".")[0]


def last(name: str) -> str:
    """What it is called in there."""
    return name.rpartition(".")[2]


def ancestors(name: str) -> Iterator[str]:
    """Modules around a tensor, from the inner one to the model itself, ''."""
    while name:
        name = parent(name)
        yield name


def common_start(names: Iterable[str]) -> str:
    """The innermost module around all of these tensors."""
    paths = [parent(name).split(".") for name in names]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared])


def below(name: str, path: str) -> bool:
    """Whether a parameter lies in a module."""
    return not path or name.startswith(f"{path}.")


def parameters_of(path: str, names: Iterable[str]) -> list[str]:
    """Those that lie in a module. A tap may also be called as a parameter is, or as several begin or end: `q` has `q`, or `q_w`
    and `q_b`, or `wq` and `bq`."""
    names, (around, _, own) = [*names], path.rpartition(".")
    whole = [name for name in names if name == path or below(name, path)]
    called = {join(around, letter + own) for letter in "wbWB"}
    return whole or [name for name in names if name in called or (parent(name) == around and name.startswith(f"{path}_"))]


def depth(path: str) -> tuple[int, str]:
    """For sorting: the model itself first, then its children, then the children of those."""
    return (path.count(".") + 1 if path else 0), path
