#!/usr/bin/env python3
"""One rank of the equality test: runs the trainings in cases.json under PyTorch's DistributedDataParallel over Gloo, and
writes the results. equality_rank.cpp does the same with our DistributedDataParallel."""

import argparse
import contextlib
import json
import pathlib

import process_group
import torch
import torch.distributed as dist
from model import VOCABULARY, Model, loss_of
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

ITERATIONS, MAX_RANKS, SEQUENCES, LENGTH = 12, 4, 3, 5


def make_data():
    """The input of both sides: initial weights, and tokens and targets of each iteration and rank."""
    torch.manual_seed(20)
    data = {"weight/" + name: tensor.detach().clone() for name, tensor in Model().state_dict().items()}
    shape = (ITERATIONS, MAX_RANKS, SEQUENCES, LENGTH)
    for name in ("tokens", "targets"):
        data[name] = torch.randint(VOCABULARY, shape)
    return data


def branches(case, rank, step):
    kind = case.get("branch", "both")
    if kind == "both":
        return True, True
    if kind == "first":
        return True, False
    return [(True, False), (False, True), (False, False), (True, True)][(rank + step) % 4]


def bf16_through_f32(_, bucket):
    """bf16_compress_hook, which PyTorch refuses without NCCL. Gloo has no bfloat16, so the values are sent as f32."""
    buffer = bucket.buffer()
    rounded = (buffer / dist.get_world_size()).to(torch.bfloat16).to(torch.float32)
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return future.then(lambda done: buffer.copy_(done.value()[0].to(torch.bfloat16)))


def register_hook(ddp, case):
    hook = case.get("hook")
    if hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "bf16":
        ddp.register_comm_hook(None, bf16_through_f32)


def run_case(case, data, rank, ranks):
    results = {}
    # PyTorch has no option for it; DistributedDataParallel reads this when it is made.
    dist._DEFAULT_FIRST_BUCKET_BYTES = case.get("first_bucket_bytes", 1024 * 1024)
    model = Model()
    model.load_state_dict({name[7:]: tensor for name, tensor in data.items() if name.startswith("weight/")})
    model.train(case.get("training", True))
    ddp = DistributedDataParallel(
        model,
        bucket_cap_mb=case.get("bucket_cap_mb", 25),
        broadcast_buffers=case.get("broadcast_buffers", True),
        find_unused_parameters=case.get("find_unused_parameters", False),
        static_graph=case.get("static_graph", False),
        gradient_as_bucket_view=case.get("peer_views", False),
    )
    register_hook(ddp, case)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=case.get("momentum", 0.9))
    micro_batches = case.get("micro_batches", 1)
    steps = case.get("steps", 4)
    joined = contextlib.nullcontext()
    if case.get("uneven"):
        steps += rank
        joined = ddp.join(divide_by_initial_world_size=case["divide_by_initial_world_size"])
    iteration = 0
    with joined:
        for step in range(steps):
            for micro_batch in range(micro_batches):
                last = micro_batch + 1 == micro_batches and (step + 1) % case.get("sync_every", 1) == 0
                with contextlib.nullcontext() if last else ddp.no_sync():
                    logits = ddp(data["tokens"][iteration, rank], *branches(case, rank, step))
                    loss = loss_of(logits, data["targets"][iteration, rank])
                    (loss / micro_batches).backward()
                results[f"loss/{iteration}"] = loss.detach()
                iteration += 1
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    results[f"gradient/{step}/{name}"] = parameter.grad.detach().clone()
            if (step + 1) % case.get("sync_every", 1) == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=case.get("zero", "zero") == "none")
    for name, tensor in model.state_dict().items():
        results[f"after/{name}"] = tensor.detach().clone()
    return {f"{case['name']}/{key}": value for key, value in results.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--make", help="write weights and batches, then exit")
    parser.add_argument("--store")
    parser.add_argument("--data", action="append")
    parser.add_argument("--out", help="the results for DATA number i on rank r are written to OUT.i.r")
    parser.add_argument("--cases", default=str(pathlib.Path(__file__).with_name("cases.json")))
    chosen = parser.parse_args()
    if chosen.make:
        torch.save(make_data(), chosen.make)
        return
    torch.set_num_threads(1)
    rank, ranks = process_group.join(chosen.store)
    with open(chosen.cases, encoding="utf-8") as file:
        cases = json.load(file)
    for number, path in enumerate(chosen.data):
        data = torch.load(path, weights_only=False)  # has C++ lists
        results = {}
        for case in cases:
            results.update(run_case(case, data, rank, ranks))
        torch.save(results, f"{chosen.out}.{number}.{rank}")
    dist.barrier()


main()
