"""Draw a model's tensors when it is built, from the same table of initialisers as jaxformer's."""

import torch
from torch import Tensor, nn

from jaxformer.config.dual import AnyModelConfig
from jaxformer.config.initialisers import Initialiser, initialisers
from torch_ref.nn.embeddings import Embedding
from torch_ref.nn.experts import ExpertLinear
from torch_ref.nn.heads import Head
from torch_ref.nn.images import PatchProjection
from torch_ref.nn.positions import RelativeBias

KERNELS = nn.Linear, nn.Conv1d, ExpertLinear, Head, PatchProjection
LEAVES = dict.fromkeys(KERNELS, "kernel") | {Embedding: "table", RelativeBias: "table"}


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return every parameter with its name in the initialiser table; a kernel is viewed as (in, out), and a convolution's as
    (width, in, out)."""
    found = []
    for path, module in model.named_modules():
        for leaf, tensor in module.named_parameters(recurse=False):
            if leaf == "weight":
                leaf = LEAVES.get(type(module), "scale")
            data = tensor.data.flatten(1) if isinstance(module, PatchProjection) and leaf == "kernel" else tensor.data
            if leaf == "kernel":
                data = data.permute(2, 1, 0) if isinstance(module, nn.Conv1d) else data.mT
            found.append((f"{path}.{leaf}" if path else leaf, data))
    return found


def initialise(model: nn.Module, config: AnyModelConfig, generator: torch.Generator | None) -> None:
    """Draw every tensor of a model under construction; without a generator, from torch's default one."""
    tensors = named_tensors(model)
    table = initialisers(config, {name: tuple(tensor.shape) for name, tensor in tensors})
    for name, tensor in tensors:
        draw_(tensor, table[name], generator)


def draw_(tensor: Tensor, initialiser: Initialiser, generator: torch.Generator | None) -> None:
    """Fill a tensor in place."""
    match initialiser.kind:
        case "normal":
            tensor.normal_(0, initialiser.value, generator=generator)
        case "uniform":
            tensor.uniform_(-initialiser.value, initialiser.value, generator=generator)
        case "constant":
            tensor.fill_(initialiser.value)
    if initialiser.zero_row is not None:
        tensor[initialiser.zero_row].zero_()
