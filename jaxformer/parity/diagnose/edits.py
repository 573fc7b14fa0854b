"""Edits of modules and tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def replaced(owner: Any, attribute: str, other: Any) -> Iterator[None]:
    """Edit, an attribute is another."""
    missing = object()
    before = vars(owner).get(attribute, missing)
    object.__setattr__(owner, attribute, other)
    try:
        yield
    finally:
        if before is missing:
            object.__delattr__(owner, attribute)
        else:
            object.__setattr__(owner, attribute, before)


@contextmanager
def held(tensor: torch.Tensor, other: torch.Tensor) -> Iterator[None]:
    """Edit, a tensor has the numbers of another one."""
    before = tensor.clone()
    tensor.copy_(other.clone())  # it may be another view of the same numbers
    try:
        yield
    finally:
        tensor.copy_(before)
