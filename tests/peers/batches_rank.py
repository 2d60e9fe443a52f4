#!/usr/bin/env python3
"""One rank of batches_test: trains with lockstep.BatchSampler under PyTorch's DistributedDataParallel over Gloo, or as one process
without it, and writes each step's gradients.

The loop is that of docs/start/python.md. Labels are shifted, so a sample of L tokens has L - 1 that count."""

import json
import sys

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import lockstep

IGNORED = -100


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.mixing = nn.GRU(16, 16, batch_first=True)
        self.output = nn.Linear(16, 50)

    def forward(self, tokens):
        return self.output(self.mixing(self.embedding(tokens))[0])


def sample_of(number, length):
    return torch.randint(50, (length,), generator=torch.Generator().manual_seed(number))


def collate(samples):
    tokens = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    targets = nn.utils.rnn.pad_sequence([sample[1:] for sample in samples], batch_first=True, padding_value=IGNORED)
    return tokens, functional.pad(targets, (0, tokens.shape[1] - targets.shape[1]), value=IGNORED)


def loss_sum(model, tokens, targets):
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def main():
    chosen = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    rank, ranks = chosen["rank"], chosen["ranks"]
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{chosen['store']}", rank=rank, world_size=ranks)
    lengths = chosen["lengths"]
    data = [sample_of(number, length) for number, length in enumerate(lengths)]
    torch.manual_seed(3)
    model = Tagger().double()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sampler = lockstep.BatchSampler(lengths, loss_tokens=[length - 1 for length in lengths], **chosen["options"])
    if chosen["state"]:
        saved = torch.load(chosen["state"])
        sampler.load_state_dict(saved["sampler"])
        model.load_state_dict(saved["model"])
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=chosen["workers"])
    gradients, seen, empty, done = [], [], 0, 0
    for (tokens, targets), micro in sampler.micro_batches(loader):
        if ranks > 1:
            with micro.no_sync_unless_last(ddp):
                (loss_sum(ddp, tokens, targets) * micro.scale).backward()
        else:
            (loss_sum(model, tokens, targets) * micro.scale).backward()
        seen += micro.samples
        empty += not micro.samples
        if micro.last_of_step:
            gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).numpy().copy())
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == chosen["steps"]:
                break
    numpy.save(f"{chosen['out']}.{rank}.npy", gradients)
    if rank == 0:
        torch.save({"sampler": sampler.state_dict(), "model": model.state_dict()}, f"{chosen['out']}.state")
    print(json.dumps({"seen": seen, "empty": empty, "torch": torch.__version__}))


main()
