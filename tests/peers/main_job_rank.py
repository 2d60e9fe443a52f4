#!/usr/bin/env python3
"""One rank of bench_main_job's peer: trains a language model under PyTorch's DistributedDataParallel over Gloo, with
padded batches of at most `cap` tokens, padding included. It takes turns as bench_main_job_rank.cpp does.

Batches are random (neighbours in the shuffled order) or sorted, as in fairseq: neighbours in length, and then the
batches are shuffled. Several are accumulated under no_sync where a batch of each rank has too few tokens for a step. Or they are
lockstep.BatchSampler's, and nothing else differs."""

import argparse
import contextlib
import json
import math
import pathlib
import random
import resource
import time

import process_group
import torch
import torch.distributed as dist
from language_model import LanguageModel
from timing import slowest
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

IGNORED = -100


class Pages(Dataset):
    def __init__(self, folder):
        self.pages = []
        for path in sorted(folder.glob("*.tok")):
            ids = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.int16)
            self.pages.append(ids.long().bitwise_and_(0xFFFF))

    def __len__(self):
        return len(self.pages)

    def __getitem__(self, number):
        return self.pages[number]


def collate(pages):
    """Padded to the longest. A target is the next token; padding and the last token of a page have none."""
    length = max(len(page) for page in pages)
    tokens = torch.zeros(len(pages), length, dtype=torch.int64)
    targets = torch.full((len(pages), length), IGNORED, dtype=torch.int64)
    for row, page in enumerate(pages):
        tokens[row, : len(page)] = page
        targets[row, : len(page) - 1] = page[1:]
    return tokens, targets


def batches_of(lengths, chosen, epoch):
    """Lists of page numbers."""
    generator = random.Random(f"{chosen.seed} {epoch}")
    order = list(range(len(lengths)))
    generator.shuffle(order)
    if chosen.batches == "sorted":
        order.sort(key=lambda page: lengths[page])
    batches, batch, longest = [], [], 0
    for page in order:
        if batch and (len(batch) + 1) * max(longest, lengths[page]) > chosen.cap:
            batches.append(batch)
            batch, longest = [], 0
        batch.append(page)
        longest = max(longest, lengths[page])
    batches.append(batch)
    if chosen.batches == "sorted":
        generator.shuffle(batches)
    return batches


def steps_of(batches, lengths, chosen, ranks):
    """[step][rank] is a list of batches. Each step takes as many as keep the steps' mean at --step-tokens."""
    groups = [batches[begin : begin + ranks] for begin in range(0, len(batches) - ranks + 1, ranks)]
    steps, step, tokens = [], [], 0
    for group in groups:
        step.append(group)
        size = sum(lengths[page] for batch in group for page in batch)
        tokens += size
        if tokens + size / 2 >= (len(steps) + 1) * chosen.step_tokens:
            steps.append([[batches[rank] for batches in step] for rank in range(ranks)])
            step = []
    return steps


class Turns:
    def __init__(self, chosen):
        self.file = chosen.turn_file
        self.name = chosen.name
        self.next = 0

    def wait(self):
        mine = f"{self.name} {self.next}"
        self.next += 1
        while self.file.read_text(encoding="ascii") != mine:
            time.sleep(0.01)
        dist.barrier()


class Blocks:
    def __init__(self, chosen, turns):
        self.chosen = chosen
        self.turns = turns
        self.round = 0
        self.trained = 0
        self.begin()

    def begin(self):
        self.turns.wait()
        self.counted = torch.zeros(2, dtype=torch.float64)  # tokens; the same with padding
        self.steps = 0
        self.began = time.perf_counter()

    def over(self):
        return self.round == self.chosen.rounds

    def add(self, tokens, targets):
        # Each page has a token without a target.
        self.counted += torch.tensor([(targets != IGNORED).sum() + len(tokens), tokens.numel()])

    def end_step(self, tokens):
        self.steps += 1
        self.trained += tokens
        if self.trained < (self.round + 1) * self.chosen.round_tokens:
            return
        seconds = slowest(time.perf_counter() - self.began)
        dist.all_reduce(self.counted)
        report(
            {"seconds": seconds, "tokens": self.counted[0].item(), "slots": self.counted[1].item(), "steps": self.steps}
        )
        self.round += 1
        if not self.over():
            self.begin()


def report(line):
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def loss_sum(model, tokens, targets):
    return functional.cross_entropy(
        model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


@torch.no_grad()
def heldout_loss(model, pages):
    """Per token, in nats. Each page is a batch, so that there is no padding."""
    sums = torch.zeros(2, dtype=torch.float64)
    for number in range(dist.get_rank(), len(pages), dist.get_world_size()):
        tokens, targets = collate([pages[number]])
        sums += torch.tensor([loss_sum(model, tokens, targets).item(), tokens.numel() - 1])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def make_optimizer(model, chosen):
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    fused = {"fused": True} if int(torch.__version__.split(".")[0]) >= 2 else {}
    return torch.optim.AdamW(groups, lr=chosen.lr, betas=(0.9, 0.95), **fused)


def learning_rate(chosen, trained):
    """Warm-up, then half a cosine down to a tenth, by trained tokens."""
    total = chosen.rounds * chosen.round_tokens
    warm_up = total // 10 + 1
    if trained < warm_up:
        return chosen.lr * (0.01 + 0.99 * trained / warm_up)
    done = min(1, (trained - warm_up) / (total - warm_up))
    return chosen.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)


def plain_micro_batches(pages, lengths, ddp, chosen):
    """Of each the tensors, its context, the factor for the sum of its losses, and the step's tokens if it is the last one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    epoch = 0
    while True:
        steps = steps_of(batches_of(lengths, chosen, epoch), lengths, chosen, ranks)
        mine = [batch for step in steps for batch in step[rank]]
        loader = iter(DataLoader(pages, batch_sampler=mine, collate_fn=collate))
        for step in steps:
            # Every rank knows the whole step, so the mean over its tokens needs no further communication.
            step_tokens = sum(lengths[page] - 1 for batches in step for batch in batches for page in batch)
            for number in range(len(step[rank])):
                last = number + 1 == len(step[rank])
                # DistributedDataParallel averages over the ranks.
                yield *next(loader), contextlib.nullcontext() if last else ddp.no_sync(), ranks / step_tokens, last and step_tokens
        epoch += 1


def planned_micro_batches(pages, lengths, ddp, chosen):
    """The same from lockstep.BatchSampler."""
    import lockstep

    counted = [length - 1 for length in lengths]
    cost = (5 * chosen.width + 0.4 * chosen.vocabulary / chosen.layers, 1)  # attention computes all pairs: docs/start/python.md
    sampler = lockstep.BatchSampler(lengths, cap=chosen.cap, cost=cost, seed=chosen.seed, loss_tokens=counted, padded=True)
    loader = DataLoader(pages, batch_sampler=sampler, collate_fn=collate)
    while True:
        for (tokens, targets), micro in sampler.micro_batches(loader):
            yield tokens, targets, micro.no_sync_unless_last(ddp), micro.scale, micro.last_of_step and micro.tokens
        sampler.set_epoch(sampler.epoch + 1)


def train(model, pages, chosen, turns):
    lengths = [len(page) for page in pages.pages]
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = make_optimizer(model, chosen)
    blocks = Blocks(chosen, turns)
    micro_batches = planned_micro_batches if chosen.batches == "lockstep" else plain_micro_batches
    for tokens, targets, context, scale, step_tokens in micro_batches(pages, lengths, ddp, chosen):
        with context:
            (loss_sum(ddp, tokens, targets) * scale).backward()
        blocks.add(tokens, targets)
        if not step_tokens:
            continue
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(chosen, blocks.trained)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        blocks.end_step(step_tokens)
        if blocks.over():
            return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--batches", required=True, choices=["random", "sorted", "lockstep"])
    parser.add_argument("--attention", required=True, choices=["explicit", "fused"])
    for name in ("data", "heldout", "turn-file"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True)
    for name in ("rounds", "round-tokens", "vocabulary", "width", "layers", "heads", "cap"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("lr", "step-tokens"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    process_group.join(chosen.store)
    turns = Turns(chosen)
    turns.wait()
    pages, heldout = Pages(chosen.data), Pages(chosen.heldout)
    torch.manual_seed(chosen.seed)
    model = LanguageModel(
        chosen.vocabulary, chosen.width, chosen.layers, chosen.heads, chosen.cap, chosen.attention
    )
    report(
        {
            "loss": heldout_loss(model, heldout),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
    )
    train(model, pages, chosen, turns)
    turns.wait()
    memory = slowest(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0)
    report({"loss": heldout_loss(model, heldout), "memory_bytes": memory})
    dist.barrier()


if __name__ == "__main__":
    main()
