"""L blocks in a row."""

from typing import cast

from torch import Tensor, nn

from jaxformer.config import BlockConfig
from torch_ref.nn.blocks import Block
from torch_ref.nn.cache import KVCache


class Stack(nn.Module):
    """`stack[i]` is layer i."""

    def __init__(self, config: BlockConfig, *, cross: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, cross=cross) for _ in range(config.n_layers))

    def __getitem__(self, i: int) -> Block:
        return cast(Block, self.blocks[i])

    def __len__(self) -> int:
        return len(self.blocks)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        return self.extend(x, None, mask, memory, memory_mask)[0]

    def extend(
        self,
        x: Tensor,
        cache: KVCache | None,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, KVCache | None]:
        """Every layer in turn; the cache comes back with x in it."""
        n_tokens = x.shape[1]
        for i in range(len(self)):
            x, cache = self[i].extend(x, cache, mask, memory, memory_mask)
        return x, None if cache is None else cache.advance(n_tokens)
