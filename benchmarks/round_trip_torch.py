"""torch sides of the round trip."""

from typing import Any

import torch
import transformers

import torch_ref.models
from benchmarks import round_trip_ports as ports
from jaxformer.evaluation.ladder import call_torch as call_twin
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.reference import apply

__all__ = ["apply", "call_gpt2", "call_twin", "dropped", "gpt2", "layers", "translator"]


def gpt2() -> torch.nn.Module:
    """Make a small GPT-2 of transformers."""
    sizes: dict[str, Any] = {"n_positions": 32, "n_embd": 48, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=ports.VOCAB, **sizes)
    return excite(transformers.GPT2LMHeadModel(config).eval(), seed=0)


def call_gpt2(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Call GPT-2 and return its logits."""
    return model(ids.long()).logits


def translator() -> torch.nn.Module:
    """Make the twin of an encoder-decoder."""
    model = excite(abstract(ports.SEQ2SEQ), seed=1)
    return load_torch(torch_ref.models.build(ports.SEQ2SEQ), model).eval()


class Layers(torch.nn.Module):
    """Feed-forward block: norm, wider layer, gelu, dropout and back, with a residual connection."""

    def __init__(self, rate: float):
        super().__init__()
        self.norm = torch.nn.LayerNorm(ports.WIDTH)
        self.up, self.down = torch.nn.Linear(ports.WIDTH, ports.WIDER), torch.nn.Linear(ports.WIDER, ports.WIDTH)
        self.drop = torch.nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.drop(torch.nn.functional.gelu(self.up(self.norm(x)))))


def layers() -> torch.nn.Module:
    """Make the block without dropout."""
    return excite(Layers(0.0).eval(), seed=2)


def dropped() -> torch.nn.Module:
    """Make the block with dropout, for training mode."""
    return excite(Layers(ports.RATE), seed=2)
