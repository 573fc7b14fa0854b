"""Draw a model's tensors when it is built, from the same table of initialisers as jaxformer's."""

import torch
from torch import Tensor, nn

from jaxformer.config.initialisers import Initialiser, initialisers
from jaxformer.config.models import ModelConfig
from torch_ref.nn.embeddings import Embedding, Head
from torch_ref.nn.experts import ExpertLinear
from torch_ref.nn.positions import RelativeBias

KERNELS = nn.Linear, nn.Conv1d, ExpertLinear, Head
LEAVES = dict.fromkeys(KERNELS, "kernel") | {Embedding: "table", RelativeBias: "table"}


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return every parameter with its name in the initialiser table; a kernel is viewed as (in, out), and a convolution's as
    (width, in, out)."""
    found = []
    for path, module in model.named_modules():
        for leaf, tensor in module.named_parameters(recurse=False):
            if leaf == "weight":
                leaf = LEAVES.get(type(module), "scale")
            of_convolution = leaf == "kernel" and isinstance(module, nn.Conv1d)
            viewed = tensor.data.mT if leaf == "kernel" else tensor.data
            found.append((f"{path}.{leaf}", tensor.data.permute(2, 1, 0) if of_convolution else viewed))
    return found


def initialise(model: nn.Module, config: ModelConfig, generator: torch.Generator | None) -> None:
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
