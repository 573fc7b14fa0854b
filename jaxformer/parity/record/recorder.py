"""What torch's calls take and give, and the gradients of both, recorded while the model runs."""

from collections import deque
from functools import partial
from typing import Any

import numpy as np

from jaxformer.convert.host import host
from jaxformer.parity.capture.call_records import Record, arrays_in, replaced
from jaxformer.parity.capture.call_sites import ArrayKey, Site

RECENT = 8
"""How many arrays are searched for an equal one, which is then kept once."""


class Recorder:
    """Records the inputs, outputs and gradients of torch's calls."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[Site, str], list[np.ndarray]] = {}
        """The inputs and outputs."""
        self.gradients: dict[ArrayKey, np.ndarray] = {}
        """By the array that they are of."""
        self.differentiated: set[ArrayKey] = set()
        """Arrays that may get one. Where none comes although others do, it is 0: nothing uses the array, or it is detached."""
        self.recent: deque[np.ndarray] = deque(maxlen=RECENT)

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._note(site, "inputs", arguments)

    def leave(self, site: Site, output: Any) -> Any:
        return self._note(site, "output", output)

    def _note(self, site: Site, part: str, value: Any) -> Any:
        """A call gets copies of what is differentiated, so that the gradients of these are its own."""
        tensors = arrays_in(value)
        copies = [tensor.clone() if getattr(tensor, "requires_grad", False) else tensor for tensor in tensors]
        for i, tensor in enumerate(copies):
            if getattr(tensor, "requires_grad", False):
                self.differentiated.add(ArrayKey(site, part, i))
                tensor.register_hook(partial(self._returned, ArrayKey(site, part, i)))
        self.arrays[site, part] = [self._kept(host(tensor)) for tensor in copies]
        return replaced(value, tensors, copies)

    def _returned(self, key: ArrayKey, gradient: Any) -> None:
        self.gradients[key] = host(gradient).copy()

    def _kept(self, array: np.ndarray) -> np.ndarray:
        """A copy, or an equal array that is kept already: the output of a module is the input of the next."""
        for known in self.recent:
            if known.dtype == array.dtype and np.array_equal(known, array, equal_nan=array.dtype.kind in "fc"):
                return known
        self.recent.append(array.copy())
        return self.recent[-1]

    def _gradients(self, site: Site, part: str) -> tuple[np.ndarray | None, ...]:
        return tuple(self._gradient(ArrayKey(site, part, i), array) for i, array in enumerate(self.arrays[site, part]))

    def _gradient(self, key: ArrayKey, array: np.ndarray) -> np.ndarray | None:
        stops = self.gradients and key in self.differentiated and key not in self.gradients
        return np.zeros(array.shape, array.dtype) if stops else self.gradients.get(key)

    def records(self) -> dict[Site, Record]:
        """In the order in which calls end; a call without an array in its output is not part of the forward pass."""
        ended = [site for (site, part), output in self.arrays.items() if part == "output" and output]
        return {
            site: Record(
                tuple(self.arrays[site, "inputs"]),
                tuple(self.arrays[site, "output"]),
                self._gradients(site, "inputs"),
                self._gradients(site, "output"),
            )
            for site in ended
        }
