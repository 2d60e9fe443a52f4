#!/usr/bin/env python3
"""PyTorch's side of bench_gpu: the same model and step, bare and with torch's DistributedDataParallel on one rank.
Prints the same lines, with "implementation":"pytorch"."""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from gpt import Gpt
from torch.nn.parallel import DistributedDataParallel


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--name", default="?")
    parser.add_argument("--peak-tflops", type=float, required=True, help="as bench_gpu has measured it")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main():
    chosen = arguments()
    device = torch.device(chosen.device, 0) if chosen.device == "cuda" else torch.device("cpu")
    sizes = {"vocabulary": 50304, "context": 1024, "width": 768, "heads": 12, "layers": 12}
    warm_up = 5
    if chosen.quick:
        sizes = {"vocabulary": 512, "context": 64, "width": 64, "heads": 4, "layers": 2}
        chosen.batch, chosen.blocks, chosen.steps, warm_up = 4, 3, 3, 1
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", init_method=f"file://{folder}/ranks", rank=0, world_size=1
        )
        alone = Gpt(**sizes).to(device)
        wrapped = Gpt(**sizes).to(device)
        ids = [0] if device.type == "cuda" else None
        ddp = DistributedDataParallel(wrapped, device_ids=ids, gradient_as_bucket_view=True)
        rows = torch.randint(sizes["vocabulary"], (chosen.batch, sizes["context"])).to(device)

        def synchronise():
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        def step(module):
            module.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = module(rows)
            loss.backward()
            return loss

        modes = {"bare": alone, "ddp": ddp}
        milliseconds = {mode: [] for mode in modes}
        losses = {}
        for block in range(chosen.blocks + 1):
            for mode, module in modes.items():
                steps = chosen.steps if block else warm_up
                synchronise()
                begin = time.perf_counter()
                for _ in range(steps):
                    loss = step(module)
                synchronise()
                if block:
                    milliseconds[mode].append(1e3 * (time.perf_counter() - begin) / steps)
                losses[mode] = loss.item()
        parameters = sum(parameter.numel() for parameter in alone.parameters())
        weights = parameters - alone.positions.weight.numel()
        operations = 6 * weights + 12 * sizes["layers"] * sizes["width"] * sizes["context"]
        for mode, values in milliseconds.items():
            median = statistics.median(values)
            line = {
                "bench": "gpu",
                "device": chosen.name,
                "torch": torch.__version__,
                "implementation": "pytorch",
                "mode": mode,
                "parameters": parameters,
                "type": "bfloat16",
                "milliseconds": median,
                "peak_share": operations * rows.numel() / (median / 1e3) / (chosen.peak_tflops * 1e12),
                "peak_tflops": chosen.peak_tflops,
                "loss": losses[mode],
            }
            print(json.dumps(line), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
