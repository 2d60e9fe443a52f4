"""The model of gpt.h, with the same operations."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, hidden):
        sequences, tokens, _ = hidden.shape
        parts = [
            part.view(sequences, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(hidden)).chunk(3, -1)
        ]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        attended = hidden + self.out(mixed.transpose(1, 2).reshape(hidden.shape))
        return attended + self.contract(functional.gelu(self.expand(self.norm2(attended)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary=50304, context=1024, width=768, heads=12, layers=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.02)

    def forward(self, rows):
        hidden = self.tokens(rows) + self.positions(torch.arange(rows.size(1), device=rows.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = functional.linear(self.norm(hidden), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), rows.roll(-1, 1).view(-1))
