"""Small programs of torch's, of every kind that operators know: models as they are written, and what they are given."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from parity_tests.support.helpers import noise

B, T, D, N, H, V = 2, 7, 12, 3, 4, 17
NODES = 6
IDS = np.random.default_rng(0).integers(0, V, (B, T))
X = noise(B, T, D, seed=1)


class Rotary(nn.Module):
    """A block with rotary positions, shared keys and values, norms of heads, a gate, and a window."""

    def __init__(self):
        super().__init__()
        self.before, self.behind = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(D, n, bias=False) for n in (2 * N * H, N * H, N * H, D))
        self.o = nn.Linear(2 * N * H, D, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(H), nn.RMSNorm(H)
        self.gate, self.up, self.down = nn.Linear(D, 20), nn.Linear(D, 20), nn.Linear(20, D)

    def heads(self, x):
        return x.view(*x.shape[:2], -1, H).transpose(1, 2)

    def rotate(self, x, cos, sin):
        half = torch.cat([-x[..., H // 2 :], x[..., : H // 2]], -1)
        return x * cos + half * sin

    def attend(self, x):
        rates = 10000.0 ** -(torch.arange(0, H, 2).to(x.dtype) / H)
        angles = torch.arange(x.shape[1]).to(x.dtype)[:, None] * rates
        angles = torch.cat([angles, angles], -1)
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        q, k = (self.rotate(each, angles.cos(), angles.sin()) for each in (self.q_norm(q), self.k_norm(k)))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = q @ k.transpose(-1, -2) * H**-0.5
        apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        scores = scores.masked_fill((apart < 0) | (apart >= 5), -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.before(x))
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Packed(nn.Module):
    """A GPT of two layers with queries, keys and values in one product, learned positions and a tied head."""

    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(V, D), nn.Embedding(31, D)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(D),
                    "qkv": nn.Linear(D, 3 * D),
                    "out": nn.Linear(D, D),
                    "norm2": nn.LayerNorm(D),
                    "up": nn.Linear(D, 20),
                    "down": nn.Linear(20, D),
                }
            )
            for _ in range(2)
        )
        self.last = nn.LayerNorm(D)

    def forward(self, ids):
        x = self.token(ids) * math.sqrt(D) + self.place(torch.arange(ids.shape[1]) + 2)
        for layer in self.layers:
            q, k, v = (each.view(*ids.shape, N, H).transpose(1, 2) for each in layer["qkv"](layer["norm"](x)).split(D, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](y.transpose(1, 2).reshape(*ids.shape, D))
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x)), approximate="tanh"))
        return self.last(x) @ self.token.weight.T


class Encoder(nn.Module):
    """torch's own layers under a mask of padding, pooled by a mean."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, N, 20, batch_first=True, activation="gelu")
        self.cross = nn.MultiheadAttention(D, N, batch_first=True)
        self.head = nn.Linear(D, 5)

    def forward(self, x, padded):
        y = self.layer(x, src_key_padding_mask=padded.bool())
        y, _ = self.cross(x, y, y, key_padding_mask=padded.bool())
        kept = (~padded.bool())[..., None].to(y.dtype)
        return torch.tanh(self.head((y * kept).sum(1) / kept.sum(1).clamp(min=1e-9)))


class Biased(nn.Module):
    """T5's buckets of distances, ALiBi's slopes, a cap of scores, and a norm that is written out."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.table, self.scale = nn.Embedding(8, N), nn.Parameter(torch.ones(D))
        self.register_buffer("slopes", 2.0 ** -(8 * torch.arange(1, N + 1) / N))

    def forward(self, x):
        q, k, v = (each(x).view(B, T, N, H).transpose(1, 2) for each in (self.q, self.k, self.v))
        apart = torch.arange(T)[None] - torch.arange(T)[:, None]
        near = apart.abs().clamp_(max=3) + 4 * (apart > 0)
        bias = self.table(near).permute(2, 0, 1) + self.slopes[:, None, None] * -apart.abs()
        scores = torch.einsum("bnth,bnsh->bnts", q, k) / 2.0 + bias
        scores = 20 * torch.tanh(scores / 20)
        y = torch.einsum("bnts,bnsh->bnth", F.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).flatten(2)
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * (1 + self.scale)


class Picture(nn.Module):
    """Convolutions, norms of channels, poolings, pads and resizing."""

    def __init__(self):
        super().__init__()
        self.first, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2)
        self.batch, self.group = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.up, self.head = nn.ConvTranspose2d(8, 4, 3, 2, 1), nn.Linear(4, 5)

    def forward(self, x):
        y = F.relu(self.batch(self.first(x)))
        y = F.max_pool2d(y, 3, 2, 1) + F.avg_pool2d(y, 3, 2, padding=1)
        y = self.group(self.deep(F.pad(y, (1, 0, 1, 0))))
        y = F.interpolate(self.up(y), scale_factor=2, mode="bilinear", align_corners=False)
        y = F.pixel_unshuffle(y[..., : y.shape[-2] // 2 * 2, : y.shape[-1] // 2 * 2], 2)[:, :4]
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Recurrent(nn.Module):
    """An LSTM both ways, a GRU, and a state space in a loop."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(D, 5, batch_first=True, bidirectional=True), nn.GRU(10, 6, batch_first=True)
        self.dt, self.a = nn.Linear(6, 6), nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x):
        y, _ = self.gru(self.lstm(x)[0])
        steps, state, out = F.softplus(self.dt(y)), torch.zeros(B, 6), []
        for t in range(T):
            state = torch.exp(-steps[:, t] * self.a) * state + steps[:, t] * y[:, t]
            out.append(state * torch.sigmoid(y[:, t]))
        return torch.stack(out, 1)


class Experts(nn.Module):
    """A router that chooses two of four experts, whose weights are normalised."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(D, 4), nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        weights, chosen = torch.topk(self.router(x).softmax(-1), 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = y + ((chosen == i) * weights).sum(-1, keepdim=True) * expert(x)
        return y


class Loss(nn.Module):
    """A smoothed cross-entropy with targets that do not count."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(D, V)

    def forward(self, x, ids):
        targets = torch.where(ids == ids[0, 0], -100, ids)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten(), label_smoothing=0.1)


class Policy(nn.Module):
    """A clipped policy loss whose three terms are means by a mask, and a fourth one without."""

    def __init__(self):
        super().__init__()
        self.head, self.value = nn.Linear(D, V), nn.Linear(D, 1)

    def forward(self, x, ids, mask):
        def mean(each):
            return (each * mask).sum() / (mask.sum() + 1e-6)

        log_p, value = self.head(x).log_softmax(-1), self.value(x)[..., 0]
        ratio = (log_p.gather(-1, ids[..., None])[..., 0] + 3).exp()
        gain = torch.min(ratio, ratio.clamp(1 - 0.2, 1 + 0.2))
        entropy = -(log_p.exp() * log_p).sum(-1)
        errors = (value - 0.3).square()[mask.bool()].mean()
        return -mean(gain) + 0.5 * errors - 0.01 * mean(entropy) + F.mse_loss(self.head(x), x[..., :1].expand(B, T, V))


class Graph(nn.Module):
    """One layer of attention over the edges that come in, divided by their number, and a sum over two graphs."""

    def __init__(self):
        super().__init__()
        self.score, self.message = nn.Linear(2 * D, 1), nn.Linear(D, D)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4, 5], [1, 2, 0, 5, 3, 4, 2, 1, 5, 3]]))
        self.register_buffer("graph", torch.arange(NODES) // 3)

    def forward(self, x):
        source, target = self.edges
        weights = self.score(torch.cat([x[source], x[target]], -1)).exp()[:, 0]
        total = weights.new_zeros(NODES).index_add(0, target, weights)
        weights = weights / self.total_of_each(total)
        count = x.new_zeros(NODES).index_add(0, self.counted(), weights.new_ones(len(weights))) + 2
        gathered = self.gathered(weights[:, None] * self.message(x)[source]) / count[:, None]
        return self.pooled(x + gathered)

    def total_of_each(self, total):
        return total[self.edges[1]]

    def counted(self):
        return self.edges[1]

    def gathered(self, rows):
        return torch.zeros(NODES, D, dtype=rows.dtype).index_add(0, self.edges[1], rows)

    def pooled(self, x):
        return x.new_zeros(2, D).scatter_add(0, self.graph[:, None].expand(NODES, D), x)


class Windows(nn.Module):
    """Windows of a picture that is rolled, as Swin's, and patches."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, D, 2, 2), nn.LayerNorm(D)
        self.place = nn.Parameter(torch.randn(1, 4, 4, D))
        self.merge = nn.Linear(4 * D, D)

    def forward(self, x):
        y = self.norm(self.patches(x).permute(0, 2, 3, 1)) + self.place
        y = torch.roll(y, shifts=(-1, -1), dims=(1, 2)).view(B, 2, 2, 2, 2, D).permute(0, 1, 3, 2, 4, 5)
        y = self.merge(y.reshape(B, 4, 4 * D))
        first, others = y[:, 0], y[:, 1:]
        return torch.cat([first, others.mean(1), others.amax(1)], -1)


class Waves(nn.Module):
    """Sinusoidal times, a spectrum, and a joined table."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(T)[:, None] * torch.exp(-math.log(10000.0) * torch.arange(0, D, 2) / D)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], -1))
        self.first = nn.Linear(D, D)

    def forward(self, x, times):
        rates = torch.exp(-math.log(10000.0) * torch.arange(3).to(x.dtype) / 3)
        angles = times[:, None] * rates
        y = self.first(x + self.table) + torch.cat([angles.cos(), angles.sin(), angles.cos(), angles.sin()], -1)[:, None]
        y = y * torch.full((D,), 2.0, dtype=x.dtype)
        spectrum = torch.stft(y.flatten(1), 16, 4, window=torch.hann_window(16).to(x.dtype), return_complex=True).abs()
        return torch.log(spectrum.clamp(min=1e-5)).mean(-1)


class Ordered(nn.Module):
    """An order with equal entries, large whole numbers, a loop whose rounds share weights, and windows of a padded array."""

    def __init__(self):
        super().__init__()
        self.place, self.up, self.down = nn.Embedding(31, D), nn.Linear(D, 20), nn.Linear(20, D)

    def forward(self, x, ids):
        order = torch.sort(ids // 4, dim=-1, descending=True, stable=True).indices
        x = x.gather(1, order[..., None].expand_as(x)) + self.place((40 * ids).cumsum(-1) % 31)
        for _ in range(3):
            x = x + self.down(torch.tanh(self.up(x)))
        x = F.pad(x, (0, 0, 0, 3))
        return torch.stack([x[:, i : i + 4] for i in range(0, T, 3)], 1).mean(2)


PICTURE, PADDED = noise(B, 3, 8, 8, seed=3), (np.arange(T) >= np.array([[7], [5]])).astype(np.float64)
PROGRAMS: dict[str, tuple[Callable[[], Any], tuple[np.ndarray, ...]]] = {
    "rotary": (Rotary, (X,)),
    "packed": (Packed, (IDS,)),
    "encoder": (Encoder, (X, PADDED)),
    "biased": (Biased, (X,)),
    "picture": (Picture, (noise(B, 3, 17, 17, seed=2),)),
    "recurrent": (Recurrent, (X,)),
    "experts": (Experts, (X,)),
    "loss": (Loss, (X, IDS)),
    "policy": (Policy, (X, IDS, np.arange(T) < np.array([[4], [6]]))),
    "graph": (Graph, (noise(NODES, D, seed=5),)),
    "windows": (Windows, (PICTURE,)),
    "ordered": (Ordered, (X, IDS)),
    "waves": (Waves, (X, noise(B, seed=4))),
}
