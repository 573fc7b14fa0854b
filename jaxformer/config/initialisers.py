"""Initial distribution of each tensor of a model, one function per scheme, used by both frameworks. Imports no jax.

A tensor is known by its path in the JAX model (`stack.blocks.attention.query.kernel`) and by its shape without the layer axis;
a kernel's shape is (in, out), (experts, in, out) of experts and (width, in, out) of a convolution."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.models import EncoderDecoderConfig, ModelConfig
from jaxformer.config.vision import VisionEncoderConfig

Shapes = Mapping[str, tuple[int, ...]]
StackConfig = ModelConfig | VisionEncoderConfig
"""Configuration of a model with `init`."""


@dataclass(frozen=True)
class Initialiser:
    """Distribution: normal with deviation `value`, uniform in +-`value`, or the constant `value`; `zero_row` is set to zero."""

    kind: Literal["normal", "uniform", "constant"]
    value: float
    zero_row: int | None = None

    def __str__(self) -> str:
        formats = {"normal": "normal(0, {:.4g})", "uniform": "uniform(+-{:.4g})", "constant": "{:g}"}
        return formats[self.kind].format(self.value) + ("" if self.zero_row is None else f", row {self.zero_row} zero")


ZEROS, ONES = Initialiser("constant", 0.0), Initialiser("constant", 1.0)


def kernel_of(path: str) -> str:
    """Return the path of the kernel that a bias belongs to; other paths are returned unchanged."""
    return path.removesuffix("bias") + "kernel" if path.endswith(".bias") else path


def fans(path: str, shapes: Shapes) -> tuple[int, ...]:
    """Return the sizes of a kernel that make its fans: (in, out), and of a convolution (width, in, out)."""
    shape = shapes[path]
    return shape if path.startswith("stem.") else shape[-2:]


def torch_default(path: str, shapes: Shapes, config: StackConfig) -> Initialiser:
    """Defaults of torch.nn.Linear, U(+-1/sqrt(fan_in)) for kernels and biases, and of torch.nn.Embedding, N(0, 1)."""
    if path.endswith(".table"):
        return Initialiser("normal", 1.0)
    return Initialiser("uniform", 1 / math.sqrt(math.prod(fans(kernel_of(path), shapes)[:-1])))


def normal(path: str, shapes: Shapes, config: StackConfig) -> Initialiser:
    """N(0, 0.02), biases zero (BERT)."""
    return ZEROS if path.endswith(".bias") else Initialiser("normal", 0.02)


def gpt2(path: str, shapes: Shapes, config: StackConfig) -> Initialiser:
    """`normal`, with the kernels that write to the residual stream scaled by 1/sqrt(number of residual additions) (Radford et
    al. 2019, section 2.3)."""
    if not path.endswith((".out.kernel", ".down.kernel", ".layer_input.up.kernel")):
        return normal(path, shapes, config)
    sums = (2 + bool(config.layer_embedding)) * config.n_layers
    if isinstance(config, EncoderDecoderConfig) and path.startswith("decoder."):
        sums = 3 * config.decoder.n_layers
    return Initialiser("normal", 0.02 / math.sqrt(sums))


def xavier(path: str, shapes: Shapes, config: StackConfig) -> Initialiser:
    """U(+-sqrt(6 / (in + out))) for kernels and tables, biases zero (Glorot and Bengio 2010, equation 16)."""
    if path.endswith(".bias"):
        return ZEROS
    *field, n_in, n_out = fans(path, shapes)
    return Initialiser("uniform", math.sqrt(6 / (math.prod(field) * (n_in + n_out))))


SCHEMES = {"torch": torch_default, "normal": normal, "gpt2": gpt2, "xavier": xavier}


def initialisers(config: AnyModelConfig, shapes: Shapes) -> dict[str, Initialiser]:
    """Return the initialiser of every tensor by its path.

    Norms start as the identity. A bias without a kernel and the row of `padding_idx` start at zero. The towers of a dual
    encoder start by their own configurations, and its projections by the texts'.
    """
    if isinstance(config, DualEncoderConfig):
        vision = {path: shape for path, shape in shapes.items() if path.startswith("vision.")}
        rest = {path: shape for path, shape in shapes.items() if path not in vision and "logit_" not in path}
        logits = {"logit_scale": config.logit_scale, "logit_bias": config.logit_bias or 0.0}
        scalars = {path: Initialiser("constant", logits[path]) for path in shapes if path in logits}
        return initialisers(config.vision, vision) | initialisers(config.text, rest) | scalars

    def of(path: str) -> Initialiser:
        if path.endswith("_layer_scale.scale"):
            return Initialiser("constant", config.layer_scale or 1.0)
        if path.endswith(("output_scale.scale", "expert_scale.scale")):
            return ONES
        if path.endswith(".scale"):
            return ZEROS if config.norm_unit_offset else ONES
        if path.endswith(".bias") and kernel_of(path) not in shapes:
            return ZEROS
        scheme = SCHEMES[config.init](path, shapes, config)
        if not path.endswith(".token.table") or not isinstance(config, ModelConfig):
            return scheme
        start = scheme if config.embedding_std is None else Initialiser("normal", config.embedding_std)
        return replace(start, zero_row=config.padding_idx)

    return {path: of(path) for path in shapes}
