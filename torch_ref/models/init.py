"""A freshly initialised model, from the same table of initialisers as the JAX one."""

import torch
from torch import Tensor, nn

from jaxformer.config import GPTConfig
from jaxformer.initialisers import Initialiser, initialisers
from torch_ref.models.gpt import GPT
from torch_ref.nn.embeddings import Embedding

LEAVES = {nn.Linear: "kernel", Embedding: "table"}


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Every parameter under its name in the initialiser table; a kernel is seen as (in, out)."""
    found = []
    for path, module in model.named_modules():
        for leaf, tensor in module.named_parameters(recurse=False):
            if leaf == "weight":
                leaf = LEAVES.get(type(module), "scale")
            found.append((f"{path}.{leaf}", tensor.data.T if leaf == "kernel" else tensor.data))
    return found


def init(config: GPTConfig, generator: torch.Generator) -> GPT:
    """The model with every tensor drawn from its initialiser."""
    model = GPT(config)
    tensors = named_tensors(model)
    table = initialisers(config.init, {name: tuple(tensor.shape) for name, tensor in tensors}, config.n_layers)
    for name, tensor in tensors:
        draw_(tensor, table[name], generator)
    return model


def draw_(tensor: Tensor, initialiser: Initialiser, generator: torch.Generator) -> None:
    """Fill in place."""
    match initialiser.kind:
        case "normal":
            tensor.normal_(0, initialiser.value, generator=generator)
        case "uniform":
            tensor.uniform_(-initialiser.value, initialiser.value, generator=generator)
        case "constant":
            tensor.fill_(initialiser.value)
