"""Training in PyTorch: the twin as it is, at its best, and compiled."""

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from types import MethodType
from typing import Any

import safetensors.torch
import torch
from torch.nn.functional import scaled_dot_product_attention

from jaxformer.bench.problems import WEIGHTS, Arrays, Training
from jaxformer.bench.torch_gpt import GPT, use_faster_count
from jaxformer.config.models import GPTConfig
from jaxformer.runtime.cores import cores
from torch_ref.models import build
from torch_ref.nn.attention import MultiHeadAttention
from torch_ref.nn.cache import merge_heads
from torch_ref.nn.masks import causal_mask, combine
from torch_ref.training.loop import draw_windows, fit, next_token_loss
from torch_ref.training.optimizers import make_optimizer
from torch_ref.training.pairs import pair_loss
from torch_ref.training.step import evaluate

TRIAL = 4
"""Number of steps timed with each number of threads, unless a tenth of a round is more."""


class Twin:
    """Side of the torch twin, eager."""

    fused = False
    """True to use torch's fused attention and optimizer."""

    def __init__(self, folder: Path, problem: Training, count: int):
        self.problem, self.count, self.threads = problem, count, cores()
        torch.set_num_threads(self.threads)
        torch.manual_seed(problem.seed)
        self.model = self.build()
        self.model.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
        optimizer, scheduler = make_optimizer(self.model, problem.optimizer, problem.schedule)
        for group in optimizer.param_groups:
            group["fused"] = self.fused
        self.loss: Any = next_token_loss
        if problem.pad is not None:
            self.loss = partial(pair_loss, pad=problem.pad, smoothing=problem.smoothing)
        self.settings: Any = {"optimizer": optimizer, "scheduler": scheduler, "clip_norm": problem.optimizer.clip_norm}
        self.draw = self.make_draw()
        self.trained = self.to_train()

    def build(self) -> Any:
        """Build the model."""
        return build(self.problem.model)

    def to_train(self) -> Any:
        """Return the callable that a step trains."""
        return self.model

    def make_draw(self) -> Any:
        """Return draw() -> batch: random windows of a text, or the ready batches in turn."""
        problem = self.problem
        if problem.text is None:
            batches = cycle([tensors(batch) for batch in problem.batches])
            return lambda: next(batches)
        generator, shape = torch.Generator().manual_seed(problem.seed), problem.batches[0][0].shape
        return partial(draw_windows, torch.from_numpy(problem.text).long(), *shape, generator)

    def check(self) -> list[float]:
        """Return the loss on the first batch."""
        return [self.mean_loss(self.problem.batches[:1])]

    def mean_loss(self, batches: Sequence[Arrays]) -> float:
        """Mean loss over these batches, without dropout."""
        return evaluate(self.model, map(tensors, batches), loss=self.loss)

    def warm_up(self) -> None:
        """Run every shape once, then choose the number of threads."""
        self.go(self.problem.shapes)
        self.threads = use_faster_count(lambda: self.go(min(self.count, max(TRIAL, self.count // 10))))

    def run(self) -> None:
        """Run one round."""
        self.go(self.count)

    def go(self, n: int) -> None:
        """Train n steps."""
        self.last_loss = fit(self.trained, self.draw, loss=self.loss, steps=n, **self.settings)

    def figures(self) -> dict[str, Any]:
        """Return the mean loss of the last round, and the number of threads."""
        return {"loss": self.last_loss, "threads": self.threads}


class Best(Twin):
    """Side of torch at its best: fused attention and optimizer, with a plain torch GPT or the twin's encoder-decoder layers."""

    fused = True

    def build(self) -> Any:
        if isinstance(self.problem.model, GPTConfig):
            return GPT(self.problem.model)
        model = build(self.problem.model)
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.extend = MethodType(fused_extend, module)
        return model


class Compiled(Best):
    """Side of torch at its best, with torch.compile."""

    def to_train(self) -> Any:
        return torch.compile(self.model)


def fused_extend(self: Any, x: Any, cache: Any, memory: Any = None, mask: Any = None, *, bias: Any = None, place: Any) -> Any:
    """Compute the twin's attention by torch's scaled_dot_product_attention."""
    causal = self.causal and cache is None and memory is None
    (*read, mask), _, cache = self._attended(x, cache, memory, mask, bias, place)
    if causal and mask is not None:
        causal, mask = False, combine(causal_mask(x.shape[1]), mask)
    q, k, v = (heads.transpose(1, 2) for heads in read)
    rate = self.dropout.p if self.training else 0.0
    y = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate, is_causal=causal)
    y = merge_heads(y.transpose(1, 2))
    return (y if self.out is None else self.out(y)), cache


def tensors(batch: Arrays) -> tuple[torch.Tensor, ...]:
    """Convert a batch to int64 tensors, which torch's embeddings read."""
    return tuple(torch.from_numpy(array).long() for array in batch)
