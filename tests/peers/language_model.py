"""The model of examples/text_lm for padded batches, written as a PyTorch user would. The order of initialisation is that
of model.h, so that the same seed gives the same parameters."""

import math

import torch
from torch import nn
from torch.nn import functional


def linear(width_in, width_out, deviation=0.02):
    layer = nn.Linear(width_in, width_out, bias=False)
    nn.init.normal_(layer.weight, 0, deviation)
    return layer


def rotate(heads, cosine, sine):
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Block(nn.Module):
    def __init__(self, width, layers, heads, attention):
        super().__init__()
        self.heads = heads
        self.attention = attention
        added = 0.02 / math.sqrt(2 * layers)
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = linear(width, 3 * width)
        self.attention_out = linear(width, width, added)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = linear(width, 4 * width)
        self.contract = linear(4 * width, width, added)

    def attend(self, hidden, cosine, sine, mask):
        rows, length, width = hidden.shape
        heads = self.qkv(hidden).view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4).unbind(0)
        queries, keys = rotate(queries, cosine, sine), rotate(keys, cosine, sine)
        if self.attention == "fused":
            mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            scores = torch.matmul(queries / math.sqrt(width // self.heads), keys.transpose(-2, -1))
            mixed = torch.matmul(torch.softmax(scores.add_(mask), -1), values)
        return self.attention_out(mixed.transpose(1, 2).reshape(rows, length, width))

    def forward(self, hidden, cosine, sine, mask):
        hidden = hidden + self.attend(self.attention_norm(hidden), cosine, sine, mask)
        return hidden + self.contract(functional.gelu(self.expand(self.feed_forward_norm(hidden))))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, longest, attention):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, 0, 0.005)
        self.embedding_norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, layers, heads, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = linear(width, vocabulary)
        # Computed once, for the longest row.
        half = width // heads // 2
        angles = torch.arange(longest).unsqueeze(1) * torch.pow(10_000.0, -torch.arange(half) / half)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        if attention == "explicit":
            self.register_buffer("mask", torch.full((longest, longest), -math.inf).triu(1), persistent=False)

    def forward(self, tokens):
        """[rows, length] to [rows, length, vocabulary]. Attention looks back only, so no token sees the padding."""
        length = tokens.shape[1]
        mask = self.mask[:length, :length] if hasattr(self, "mask") else None
        hidden = self.embedding_norm(self.embedding(tokens))
        for block in self.blocks:
            hidden = block(hidden, self.cosine[:length], self.sine[:length], mask)
        return self.output(self.norm(hidden))
