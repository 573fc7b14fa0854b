"""Small torch models with the names and the formulas of well-known ones, to be read from their state."""

import math

import torch
from torch import nn
from torch.nn import functional

from parity_tests.support.helpers import D, F, N, V


class CausalSelfAttention(nn.Module):
    """nanoGPT's, with the mask as a buffer that is saved."""

    def __init__(self, context, bias):
        super().__init__()
        self.c_attn = nn.Linear(D, 3 * D, bias=bias)
        self.c_proj = nn.Linear(D, D, bias=bias)
        self.register_buffer("bias", torch.tril(torch.ones(context, context)).view(1, 1, context, context))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (each.view(batch, length, N, -1).transpose(1, 2) for each in self.c_attn(x).split(D, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, D))


class GPTBlock(nn.Module):
    """Pre-norm."""

    def __init__(self, context, activation, bias):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D, bias=bias), nn.LayerNorm(D, bias=bias)
        self.attn = CausalSelfAttention(context, bias)
        act = nn.GELU(approximate=activation)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(D, F, bias=bias), "act": act, "c_proj": nn.Linear(F, D, bias=bias)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.mlp["act"](self.mlp["c_fc"](self.ln_2(x))))


class SmallGPT(nn.Module):
    """nanoGPT, whose head is tied and whose `bias` may be off, or minGPT, whose gelu is by tanh."""

    def __init__(self, *, tied=True, activation="none", bias=True, context=11, layers=2):
        super().__init__()
        blocks = nn.ModuleList(GPTBlock(context, activation, bias) for _ in range(layers))
        tables = {"wte": nn.Embedding(V, D), "wpe": nn.Embedding(context, D)}
        self.transformer = nn.ModuleDict({**tables, "h": blocks, "ln_f": nn.LayerNorm(D, bias=bias)})
        self.lm_head = nn.Linear(D, V, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight

    def forward(self, ids):
        x = self.transformer["wte"](ids.long()) + self.transformer["wpe"](torch.arange(ids.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


def rms(x):
    """nanochat's norm, without a gain, and with torch's own epsilon."""
    return functional.rms_norm(x, x.shape[-1:])


class ChatAttention(nn.Module):
    """nanochat's: queries and keys are rotated backwards, and normed then; heads share keys and values."""

    def __init__(self, kv_heads):
        super().__init__()
        self.kv_heads, kv = kv_heads, D // N * kv_heads
        self.c_q, self.c_k, self.c_v = (nn.Linear(D, width, bias=False) for width in (D, kv, kv))
        self.c_proj = nn.Linear(D, D, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (linear(x).view(batch, length, -1, D // N).transpose(1, 2) for linear in (self.c_q, self.c_k, self.c_v))
        q, k = (rms(torch.cat([a * cos + b * sin, b * cos - a * sin], -1)) for a, b in (it.chunk(2, -1) for it in (q, k)))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, D))


class ChatBlock(nn.Module):
    """Pre-norm, with a squared ReLU."""

    def __init__(self, kv_heads):
        super().__init__()
        self.attn = ChatAttention(kv_heads)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(D, F, bias=False), "c_proj": nn.Linear(F, D, bias=False)})

    def forward(self, x, *waves):
        x = x + self.attn(rms(x), *waves)
        return x + self.mlp["c_proj"](functional.relu(self.mlp["c_fc"](rms(x))) ** 2)


class Chat(nn.Module):
    """nanochat as it was in 2025."""

    def __init__(self, *, kv_heads=2, layers=2, softcap=15.0):
        super().__init__()
        self.softcap = softcap
        self.transformer = nn.ModuleDict(
            {"wte": nn.Embedding(V, D), "h": nn.ModuleList(ChatBlock(kv_heads) for _ in range(layers))}
        )
        self.lm_head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x, half = rms(self.transformer["wte"](ids.long())), D // N // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        angles = torch.arange(ids.shape[1], dtype=x.dtype)[:, None] * rates
        for block in self.transformer["h"]:
            x = block(x, angles.cos(), angles.sin())
        return self.softcap * torch.tanh(self.lm_head(rms(x)) / self.softcap)


class ScaleAndShift(nn.Module):
    """A layer norm by the names of Raschka's book."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return (
            self.scale * (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5) + self.shift
        )


class BookAttention(nn.Module):
    """Raschka's, with the mask as a buffer that is saved."""

    def __init__(self, context, qkv_bias):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(D, D, bias=qkv_bias) for _ in range(3))
        self.out_proj = nn.Linear(D, D)
        self.register_buffer("mask", torch.triu(torch.ones(context, context), diagonal=1))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, N, -1).transpose(1, 2) for each in (self.W_query, self.W_key, self.W_value))
        scores = (q @ k.transpose(2, 3)).masked_fill(self.mask.bool()[:length, :length], -torch.inf) / math.sqrt(D // N)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, D))


class BookBlock(nn.Module):
    """Pre-norm."""

    def __init__(self, context, qkv_bias):
        super().__init__()
        self.att = BookAttention(context, qkv_bias)
        layers = nn.Sequential(nn.Linear(D, F), nn.GELU(approximate="tanh"), nn.Linear(F, D))
        self.ff = nn.ModuleDict({"layers": layers})
        self.norm1, self.norm2 = ScaleAndShift(), ScaleAndShift()

    def forward(self, x):
        x = x + self.att(self.norm1(x))
        return x + self.ff["layers"](self.norm2(x))


class Book(nn.Module):
    """The GPT of "Build a Large Language Model (From Scratch)"."""

    def __init__(self, *, qkv_bias=False, context=11, layers=2):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(V, D), nn.Embedding(context, D)
        self.trf_blocks = nn.Sequential(*(BookBlock(context, qkv_bias) for _ in range(layers)))
        self.final_norm, self.out_head = ScaleAndShift(), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.tok_emb(ids.long()) + self.pos_emb(torch.arange(ids.shape[1]))
        return self.out_head(self.final_norm(self.trf_blocks(x)))


class StdNorm(nn.Module):
    """By the standard deviation."""

    def __init__(self):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b_2


class Sublayer(nn.Module):
    """A residual around a norm and a function."""

    def __init__(self):
        super().__init__()
        self.norm = StdNorm()

    def forward(self, x, function):
        return x + function(self.norm(x))


class FourLinears(nn.Module):
    """Attention of four linear layers."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x, memory, mask):
        q, k, v = (
            linear(it).view(it.shape[0], -1, N, D // N).transpose(1, 2)
            for linear, it in zip(self.linears, (x, memory, memory), strict=False)
        )
        scores = (q @ k.transpose(-2, -1) / math.sqrt(D // N)).masked_fill(~mask, -1e9)
        return self.linears[3]((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class TwoLinears(nn.Module):
    """The feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(D, F), nn.Linear(F, D)

    def forward(self, x):
        return self.w_2(functional.relu(self.w_1(x)))


class AnnotatedLayer(nn.Module):
    """Of the encoder, or with attention to a source, of the decoder."""

    def __init__(self, *, cross):
        super().__init__()
        self.self_attn, self.feed_forward = FourLinears(), TwoLinears()
        if cross:
            self.src_attn = FourLinears()
        self.sublayer = nn.ModuleList(Sublayer() for _ in range(3 if cross else 2))

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, mask))
        if memory is not None:
            x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory_mask))
        return self.sublayer[-1](x, self.feed_forward)


class AnnotatedStack(nn.Module):
    """Layers, and a norm after them."""

    def __init__(self, layers, *, cross):
        super().__init__()
        self.layers = nn.ModuleList(AnnotatedLayer(cross=cross) for _ in range(layers))
        self.norm = StdNorm()

    def forward(self, x, *masks_and_memory):
        for layer in self.layers:
            x = layer(x, *masks_and_memory)
        return self.norm(x)


class Lookup(nn.Module):
    """Token embeddings, scaled."""

    def __init__(self, vocabulary):
        super().__init__()
        self.lut = nn.Embedding(vocabulary, D)

    def forward(self, ids):
        return self.lut(ids.long()) * math.sqrt(D)


class Sinusoids(nn.Module):
    """Added to what comes in; the table is saved with the model."""

    def __init__(self, context):
        super().__init__()
        angles = torch.arange(context)[:, None] * torch.exp(torch.arange(0, D, 2) * -(math.log(10000.0) / D))
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], -1).reshape(1, context, D))

    def forward(self, x):
        return x + self.pe[:, : x.shape[1]]


class Projection(nn.Module):
    """To the logits."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(D, V)

    def forward(self, x):
        return self.proj(x)


class Annotated(nn.Module):
    """The Annotated Transformer: source ids, target ids, and which source ids are no padding -> logits."""

    def __init__(self, source_vocabulary, layers=(1, 2), context=17):
        super().__init__()
        self.encoder, self.decoder = AnnotatedStack(layers[0], cross=False), AnnotatedStack(layers[1], cross=True)
        self.src_embed = nn.Sequential(Lookup(source_vocabulary), Sinusoids(context))
        self.tgt_embed = nn.Sequential(Lookup(V), Sinusoids(context))
        self.generator = Projection()

    def forward(self, source, target, valid):
        seen = valid[:, None, None]
        memory = self.encoder(self.src_embed(source), seen)
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        return self.generator(self.decoder(self.tgt_embed(target), causal, memory, seen))


class Translator(nn.Module):
    """Tables around `nn.Transformer`, as tutorials have them, with its defaults: post-norm, and norms after the stacks too."""

    def __init__(self, source_vocabulary, layers=(1, 2), *, norm_first=False):
        super().__init__()
        how = {"batch_first": True, "norm_first": norm_first}
        self.transformer = nn.Transformer(D, N, *layers, F, dropout=0.0, **how)
        self.source, self.target = nn.Embedding(source_vocabulary, D), nn.Embedding(V, D)
        self.head = nn.Linear(D, V)

    def forward(self, source, target, valid):
        later = ~torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        masks = {"src_key_padding_mask": ~valid, "memory_key_padding_mask": ~valid, "tgt_mask": later}
        return self.head(self.transformer(self.source(source.long()), self.target(target.long()), **masks))
