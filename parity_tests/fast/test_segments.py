"""Causes in rows that are reduced by segments, as the messages along the edges of a graph."""

import pytest
import torch

from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between
from parity_tests.zoo.programs import NODES, D, Graph


class CountsSources(Graph):
    def counted(self):
        return self.edges[0]


class TakesLargest(Graph):
    def gathered(self, rows):
        index = self.edges[1][:, None].expand(rows.shape)
        return rows.new_zeros(NODES, D).scatter_reduce(0, index, rows, "amax", include_self=False)


class TakesMeans(Graph):
    def pooled(self, x):
        return x.view(2, 3, D).mean(1)


class NormalizesBySources(Graph):
    def forward(self, x):
        source, target = self.edges
        weights = self.score(torch.cat([x[source], x[target]], -1)).exp()[:, 0]
        weights = weights / weights.new_zeros(NODES).index_add(0, source, weights)[source]
        count = x.new_zeros(NODES).index_add(0, target, weights.new_ones(len(weights))) + 2
        return self.pooled(x + self.gathered(weights[:, None] * self.message(x)[source]) / count[:, None])


CAUSES = {
    CountsSources: "...len(weights)))` (programs.py:219); jax reads part 1 of `source, target`",
    TakesLargest: "dges[1], rows)` (programs.py:230); jax takes the largest of each segment",
    TakesMeans: "(NODES, D), x)` (programs.py:233); jax takes the mean of each segment",
    NormalizesBySources: "jax reads part 1 of `source, target` (programs.py:215) for the index of both",
}


@pytest.mark.parametrize("port", CAUSES)
def test_causes_of_segments(port):
    assert CAUSES[port] in cause_between(Graph(), port(), noise(NODES, D, seed=1))
