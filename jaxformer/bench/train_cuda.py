"""Training in PyTorch on a GPU, as its users write it: autocast, fused attention and optimizer, and no value read in a step."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from jaxformer.bench import train_torch
from jaxformer.bench.generate_torch import DEVICES
from jaxformer.bench.problems import Arrays
from jaxformer.bench.train_torch import tensors
from torch_ref.training.losses import mean

AUTOCAST = {"float32": False, "bf16": True}
"""Precision of a training -> True if torch casts to bfloat16."""


class Best(train_torch.Best):
    """Side of torch at its best, eager."""

    def build(self) -> Any:
        self.device = DEVICES[self.problem.device]
        return super().build().to(self.device)

    def make_draw(self) -> Any:
        batches = cycle([self.on_device(batch) for batch in self.problem.batches])
        return lambda: next(batches)

    def on_device(self, batch: Arrays) -> tuple[torch.Tensor, ...]:
        """Copy a batch to the device."""
        return tuple(tensor.to(self.device) for tensor in tensors(batch))

    def mean_loss_of(self, model: Any, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Mean loss of a batch, a scalar."""
        with torch.autocast(self.device, torch.bfloat16, enabled=AUTOCAST[self.problem.precision]):
            return mean(*self.loss(model, batch))

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[Arrays]) -> float:
        self.model.eval()
        losses = [float(self.mean_loss_of(self.model, self.on_device(batch))) for batch in batches]
        return sum(losses) / len(losses)

    def warm_up(self) -> None:
        self.go(self.problem.shapes)

    def go(self, n: int) -> None:
        optimizer, clip_norm = self.settings["optimizer"], self.settings["clip_norm"]
        self.model.train()
        total = torch.zeros((), device=self.device)
        for _ in range(n):
            value = self.mean_loss_of(self.trained, self.draw())
            value.backward()
            if clip_norm is not None:
                clip_grad_norm_(self.model.parameters(), clip_norm)
            optimizer.step()
            self.settings["scheduler"].step()
            optimizer.zero_grad()
            total += value.detach()
        self.last_loss = float(total) / n

    def figures(self) -> dict[str, Any]:
        return {"loss": self.last_loss, "memory": torch.cuda.max_memory_allocated()}


class Compiled(Best):
    """Side of torch at its best, with torch.compile."""

    def to_train(self) -> Any:
        return torch.compile(self.model)
