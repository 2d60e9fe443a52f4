"""The model of tests/bench/transformer.h, with the same operations."""

import math

import torch
from torch import nn

WIDTH = 512
HEADS = 8
LAYERS = 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, hidden):
        sequences, tokens, _ = hidden.shape
        heads = self.qkv(hidden).view(sequences, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.matmul(heads[0] / math.sqrt(WIDTH // HEADS), heads[1].transpose(-2, -1))
        mixed = torch.matmul(torch.softmax(scores, -1), heads[2]).transpose(1, 2).reshape(sequences, tokens, WIDTH)
        attended = self.norm1(hidden + self.out(mixed))
        return self.norm2(attended + self.contract(torch.relu(self.expand(attended))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, hidden):
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden
