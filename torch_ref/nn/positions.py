"""Fixed tables of positions."""

import torch
from torch import Tensor

from jaxformer.config.configuration import FixedTable


def sinusoid(n_positions: int, d_model: int) -> Tensor:
    """The table of Vaswani et al. 2017, section 3.5: float64 of shape (n_positions, d_model).

    PE(p, 2i) = sin(p / 10000^(2i / d_model))        PE(p, 2i + 1) = cos(the same angle)
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] / 10000.0 ** (even / d_model)
    table = torch.empty(n_positions, d_model, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : d_model // 2]
    return table


def sinusoid_blocks(n_positions: int, d_model: int) -> Tensor:
    """Sinusoid table with all sines before all cosines (Marian's and fairseq's order)."""
    table = sinusoid(n_positions, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


TABLES = {"sinusoid": sinusoid, "sinusoid_blocks": sinusoid_blocks}


def position_table(positions: str | FixedTable, n_positions: int, d_model: int) -> Tensor:
    """Return the first rows of the given table, or of the table of that name, in float64."""
    if isinstance(positions, FixedTable):
        return torch.tensor(positions.array[:n_positions])
    return TABLES[positions](n_positions, d_model)
