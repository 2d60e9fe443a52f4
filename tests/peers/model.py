"""The model of the equality tests; tests/peers/model.h has the same operations in C++."""

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH = 16
VOCABULARY = 40


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        queries, keys, values = self.qkv(hidden).chunk(3, -1)
        scores = torch.softmax(torch.matmul(queries, keys.transpose(1, 2)) / math.sqrt(WIDTH), -1)
        return self.out(torch.matmul(scores, values))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.extra = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = Attention()
        self.norm = nn.LayerNorm(WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.expand = nn.Linear(WIDTH, 2 * WIDTH)
        self.contract = nn.Linear(2 * WIDTH, WIDTH)
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.frozen.weight.requires_grad_(False)
        self.frozen.bias.requires_grad_(False)
        self.double()

    def forward(self, tokens, left, right):
        """Returns logits; `left` and `right` select the branches."""
        hidden = self.embedding(tokens) + self.extra(tokens) * 0.5
        hidden = self.norm(hidden + self.attention(hidden))
        hidden = self.norm(hidden + self.attention(hidden))  # the module is called twice
        rows = self.batch_norm(hidden.flatten(0, 1))
        rows = rows + self.contract(torch.relu(self.expand(rows))) + torch.tanh(self.frozen(rows))
        if left:
            rows = rows + torch.tanh(self.left(rows))
        if right:
            rows = rows + torch.tanh(self.right(rows))
        return functional.linear(rows, self.embedding.weight, self.bias)  # the weight is used in two places


def loss_of(logits, targets):
    return functional.cross_entropy(logits, targets.flatten())
