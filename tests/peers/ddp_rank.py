#!/usr/bin/env python3
"""One rank of bench_ddp's peer: PyTorch's DistributedDataParallel over Gloo, measured as bench_ddp_rank.cpp does."""

import argparse
import ctypes
import json

import process_group
import torch
import torch.distributed as dist
from timing import slowest, time_block
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from transformer import WIDTH, Transformer

MODES = ["bare", "no_sync", "sync"]


def blas():
    """The library that LibTorch calls, as comm::find_blas() says it."""
    try:
        config = ctypes.CDLL("libblas.so.3").openblas_get_config
    except (OSError, AttributeError):
        return "another BLAS"
    config.restype = ctypes.c_char_p
    return " ".join(config().decode().split()[:2])


def report(rank, line):
    if rank == 0:
        line.update(torch=torch.__version__, threads=torch.get_num_threads(), blas=blas())
        print(json.dumps(line), flush=True)


def elements_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


class Batch:
    def __init__(self, text):
        self.sequences, self.length = map(int, text.split("x"))
        self.inputs = torch.randn(self.sequences, self.length, WIDTH)
        self.targets = torch.randn(self.sequences, self.length, WIDTH)
        self.tokens = self.sequences * self.length

    def step(self, model):
        nn.functional.mse_loss(model(self.inputs), self.targets).backward()
        model.zero_grad()

    def step_without_sync(self, ddp):
        with ddp.no_sync():
            self.step(ddp)


def measure_steps(rank, chosen):
    alone = Transformer()
    ddp = DistributedDataParallel(Transformer(), **chosen.options)
    if chosen.compress:
        ddp.register_comm_hook(None, getattr(default_hooks, f"{chosen.compress}_compress_hook"))
    for text in chosen.tokens.split(","):
        batch = Batch(text)
        steps = chosen.steps * min(max(512 // batch.tokens // 4, 1), 8)
        step_of = [lambda: batch.step(alone), lambda: batch.step_without_sync(ddp), lambda: batch.step(ddp)]
        for step in step_of:
            for _ in range(2):
                step()
        times = {mode: [] for mode in MODES}
        for _ in range(chosen.blocks):
            for mode, step in zip(MODES, step_of):
                times[mode].append(time_block(steps, step))
        for mode in MODES:
            line = {"mode": mode, "tokens": batch.tokens, "parameters": elements_of(alone)}
            report(rank, {**line, "steps": steps * chosen.blocks, "blocks": times[mode]})


class ManyParameters(nn.Module):
    COUNT = 2048

    def __init__(self):
        super().__init__()
        self.list = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(self.COUNT))
        self.cached = list(self.list)

    def forward(self):
        return torch.cat(self.cached).sum()


def measure_hooks(rank, chosen):
    alone = ManyParameters()
    shared = ManyParameters()
    ddp = DistributedDataParallel(shared, **chosen.options)

    def without_sync():
        with ddp.no_sync():
            ddp().backward()

    step_of = [lambda: alone().backward(), without_sync, lambda: ddp().backward()]
    times = {mode: [] for mode in MODES}
    for block in range(-1, 5 * chosen.blocks):
        for mode, step in zip(MODES, step_of):
            alone.zero_grad()
            shared.zero_grad()
            milliseconds = time_block(20, step)
            if block >= 0:
                times[mode].append(milliseconds)
    for mode in MODES:
        report(rank, {"mode": mode, "parameters": ManyParameters.COUNT, "blocks": times[mode]})


def proportional_set_size():
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def measure_memory(rank, chosen):
    batch = Batch(chosen.tokens.split(",")[-1])

    def after_steps(model):
        for _ in range(4):
            batch.step(model)
        dist.barrier()
        used = proportional_set_size()
        dist.barrier()
        return slowest(float(used))

    bare = after_steps(Transformer())
    model = Transformer()
    with_ddp = after_steps(DistributedDataParallel(model, **chosen.options))
    count = elements_of(model)
    line = {"parameters": count, "gradient_bytes": 4 * count, "bucket_bytes": 25 << 20}
    report(rank, {**line, "bare_bytes": bare, "beyond_bytes": with_ddp - bare})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--measure", required=True, choices=["step", "hooks", "memory"])
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--compress", choices=["fp16", "bf16"])
    parser.add_argument("--gradient-as-bucket-view", action="store_true")
    chosen = parser.parse_args()
    chosen.options = {"gradient_as_bucket_view": chosen.gradient_as_bucket_view}
    torch.set_num_threads(1)
    rank, _ = process_group.join(chosen.store)
    {"step": measure_steps, "hooks": measure_hooks, "memory": measure_memory}[chosen.measure](rank, chosen)
    dist.barrier()


main()
