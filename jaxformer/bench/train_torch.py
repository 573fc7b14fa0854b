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

from jaxformer.bench.limits import cores
from jaxformer.bench.problems import WEIGHTS, Arrays, Training
from jaxformer.bench.torch_gpt import GPT, use_faster_count
from jaxformer.config.models import GPTConfig
from torch_ref.models import build
from torch_ref.nn.attention import MultiHeadAttention, merge_heads
from torch_ref.training.loop import draw_windows, fit, next_token_loss
from torch_ref.training.optimizers import make_optimizer
from torch_ref.training.pairs import pair_loss
from torch_ref.training.step import evaluate

TRIAL = 4
"""Steps that are timed with each number of threads, or a tenth of a round."""


class Twin:
    """The twin, eager."""

    fused = False
    """Whether attention and the optimizer are torch's fused ones."""

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
        """The model."""
        return build(self.problem.model)

    def to_train(self) -> Any:
        """What is called in a step."""
        return self.model

    def make_draw(self) -> Any:
        """draw() -> batch: of a text at random, otherwise those that are ready, in turn."""
        problem = self.problem
        if problem.text is None:
            batches = cycle([tensors(batch) for batch in problem.batches])
            return lambda: next(batches)
        generator, shape = torch.Generator().manual_seed(problem.seed), problem.batches[0][0].shape
        return partial(draw_windows, torch.from_numpy(problem.text).long(), *shape, generator)

    def check(self) -> list[float]:
        """The loss on the first batch."""
        return [self.mean_loss(self.problem.batches[:1])]

    def mean_loss(self, batches: Sequence[Arrays]) -> float:
        """Over these batches, without dropout."""
        return evaluate(self.model, map(tensors, batches), loss=self.loss)

    def warm_up(self) -> None:
        """See every shape, then choose the number of threads."""
        self.go(self.problem.shapes)
        self.threads = use_faster_count(lambda: self.go(min(self.count, max(TRIAL, self.count // 10))))

    def run(self) -> None:
        """One round."""
        self.go(self.count)

    def go(self, n: int) -> None:
        """n steps."""
        self.last_loss = fit(self.trained, self.draw, loss=self.loss, steps=n, **self.settings)

    def figures(self) -> dict[str, Any]:
        """The mean loss of the last round, and the number of threads."""
        return {"loss": self.last_loss, "threads": self.threads}


class Best(Twin):
    """Fused attention and a fused optimizer: a GPT in plain torch, an encoder-decoder by the twin's layers."""

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
    """The same behind torch.compile."""

    def to_train(self) -> Any:
        return torch.compile(self.model)


def fused_extend(self: Any, x: Any, cache: Any, memory: Any = None, mask: Any = None, *, bias: Any = None, place: Any) -> Any:
    """The twin's attention by one function of torch's."""
    (*read, mask), cache = self._attended(x, cache, memory, mask, place)
    q, k, v = (heads.transpose(1, 2) for heads in read)
    rate = self.dropout.p if self.training else 0.0
    y = merge_heads(scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate).transpose(1, 2))
    return (y if self.out is None else self.out(y)), cache


def tensors(batch: Arrays) -> tuple[torch.Tensor, ...]:
    """Of int64, which torch's embeddings read."""
    return tuple(torch.from_numpy(array).long() for array in batch)
