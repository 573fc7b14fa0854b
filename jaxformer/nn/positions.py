"""Fixed tables of positions."""

import numpy as np

from jaxformer.config.configuration import FixedTable


def sinusoid(n_positions: int, d_model: int) -> np.ndarray:
    """The table of Vaswani et al. 2017, section 3.5: float64 of shape (n_positions, d_model).

        PE(p, 2i) = sin(p / 10000^(2i / d_model))        PE(p, 2i + 1) = cos(the same angle)

    An odd d_model ends on a sine. The angles are computed in float64 and rounded once, when the table is cast: in
    float32 the power and the exponential form of this formula differ by up to 7.6e-6.
    """
    even = np.arange(0, d_model, 2, dtype=np.float64)
    angles = np.arange(n_positions, dtype=np.float64)[:, None] / 10000.0 ** (even / d_model)
    table = np.empty((n_positions, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)[:, : d_model // 2]
    return table


def sinusoid_blocks(n_positions: int, d_model: int) -> np.ndarray:
    """Sinusoid table with all sines before all cosines (Marian's and fairseq's order)."""
    table = sinusoid(n_positions, d_model)
    return np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)


TABLES = {"sinusoid": sinusoid, "sinusoid_blocks": sinusoid_blocks}


def position_table(positions: str | FixedTable, n_positions: int, d_model: int) -> np.ndarray:
    """Return the first rows of the given table, or of the table of that name, in float64."""
    return positions.array[:n_positions] if isinstance(positions, FixedTable) else TABLES[positions](n_positions, d_model)
