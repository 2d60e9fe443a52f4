"""Measures the time of blocks as bench_*_rank does."""

import time

import torch
import torch.distributed as dist


def slowest(value):
    box = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return box.item()


def time_block(count, work):
    """Milliseconds per call, of the slowest rank."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        work()
    return slowest(1e3 * (time.perf_counter() - begin) / count)
