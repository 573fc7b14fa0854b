"""Disentangled attention (He et al. 2020): scores of contents with the encoding of their distance, which each layer projects.

score(i, j) = q_i k_j + q_i k(i - j) + q(i - j) k_j, where q(d) and k(d) are the query and the key of distance d.
"""

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from torch_ref.nn.norms import make_norm


def log_bucket(distance: Tensor, buckets: int, farthest: int) -> Tensor:
    """Return the bucket of each distance, query - key: near ones have a bucket each, farther ones share them by their logarithm
    (in float32, as in transformers); those before and after a query are of opposite signs."""
    middle = buckets // 2
    size = distance.abs()
    ratio = size.clamp(min=middle).float() / middle
    shared = (ratio.log() / ratio.new_tensor((farthest - 1) / middle).log() * (middle - 1)).ceil() + middle
    return torch.where(size <= middle, distance, shared.long() * distance.sign())


class DistanceEncoding(nn.Module):
    """Encodings of the buckets of distances, one table for all layers of a stack."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2 * config.relative_buckets, config.d_model))
        self.norm = make_norm(config.norm if config.relative_norm else "none", config)

    def forward(self) -> Tensor:
        """Return the encodings: `1 R D`."""
        return self.norm(self.weight)[None]


def distance_scores(q: Tensor, k: Tensor, distances: tuple[Tensor, Tensor], rows: Tensor, scale: float) -> Tensor:
    """Return the scores of queries and keys with the key and the query of their distance, whose row is given for each pair:
    `B N T S`."""
    q_distance, k_distance = distances
    of_queries = torch.einsum("btnh,rnh->bntr", q, k_distance[0])
    of_keys = torch.einsum("bsnh,rnh->bnsr", k, q_distance[0])
    shape = *of_queries.shape[:2], *rows.shape
    found = of_keys.gather(-1, rows.T.expand(*shape[:2], *rows.T.shape)).mT
    return scale * (of_queries.gather(-1, rows.expand(shape)) + found)


def distance_rows(queries: int, keys: int, start: int, buckets: int, farthest: int) -> Tensor:
    """Return the row of the encoding of each pair's distance, for queries at start, start + 1, ... and keys at 0, 1, ...: `T
    S`."""
    distance = (torch.arange(queries) + start)[:, None] - torch.arange(keys)[None, :]
    return (log_bucket(distance, buckets, farthest) + buckets).clamp(0, 2 * buckets - 1)
