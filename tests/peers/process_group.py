"""Joins PyTorch's process group over Gloo, on ranks that mpirun or srun has started."""

import datetime
import os

import torch.distributed as dist


def _first(*names):
    for name in names:
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit("none of " + ", ".join(names) + " is set: start this with mpirun or srun")


def join(store):
    """`store` is file:///PATH on one node, or tcp://HOST:PORT on several; HOST is the node of the first rank."""
    rank = _first("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
    size = _first("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timeout)
    return rank, size
