#!/usr/bin/env python3
"""One rank of bench_allreduce's peer: all-reduce through torch.distributed over Gloo."""

import argparse
import json

import process_group
import torch
import torch.distributed as dist
from timing import time_block

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
BLOCK_MILLISECONDS = 20


def parse_bytes(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--blocks", type=int, required=True)
    chosen = parser.parse_args()
    rank, _ = process_group.join(chosen.store)
    for size in map(parse_bytes, chosen.sizes.split(",")):
        data = torch.zeros(size // 4)
        work = lambda: dist.all_reduce(data)  # noqa: E731
        work()
        first = time_block(2, work)
        count = min(max(int(BLOCK_MILLISECONDS / first), 1), 2000)
        blocks = max(1, chosen.blocks // 2) if first > BLOCK_MILLISECONDS else chosen.blocks
        times = [time_block(count, work) for _ in range(blocks)]
        if rank == 0:
            print(json.dumps({"registered": False, "bytes": size, "blocks": times}), flush=True)
    dist.barrier()


main()
