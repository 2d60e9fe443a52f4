#!/usr/bin/env python3
"""Times a training step with and without DistributedDataParallel and, with --peers, with PyTorch's.

The model is a Transformer of 18.9 M parameters (transformer.h). Modes (bare, no_sync, sync) take turns within a
launch; implementations and allocators take turns from launch to launch."""

import collections
import itertools
import statistics

import program
import ranks as starting
from ranks import Failure, say

MODES = ["bare", "no_sync", "sync"]


def arguments():
    parser = program.parser("bench_ddp", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run PyTorch's DDP over Gloo, if it is installed")
    parser.add_argument("--ranks", type=int, default=2, help="total number of ranks (default 2)")
    parser.add_argument("--nodes", type=int, default=1, help="more than 1: on an embedded Slurm cluster")
    parser.add_argument("--tokens", default="4x128,1x32", help="sequences x length, per rank and step")
    parser.add_argument("--allocators", default="default,tuned")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each mode in a launch")
    parser.add_argument("--steps", type=int, default=2, help="steps of 512 tokens in a block; smaller steps are more")
    parser.add_argument("--measure", default="step,hooks,memory", help="a list of step, hooks, memory and trace")
    parser.add_argument("--compress", choices=["fp16", "bf16"], help="gradients travel in this type, in measure step")
    parser.add_argument("--peer-options", default="", help="options for the peer, such as --gradient-as-bucket-view")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.launches, chosen.blocks, chosen.steps = 1, 1, 1
        chosen.tokens, chosen.allocators = "1x32", "tuned"
    if min(chosen.ranks, chosen.nodes, chosen.launches, chosen.blocks, chosen.steps) < 1:
        parser.error("--ranks, --nodes, --launches, --blocks and --steps must be at least 1")
    if chosen.ranks % chosen.nodes != 0:
        parser.error(f"--ranks ({chosen.ranks}) must be a multiple of --nodes ({chosen.nodes})")
    for name in chosen.allocators.split(","):
        if name not in starting.PEER_ALLOCATOR:
            parser.error(f"--allocators: '{name}' must be default or tuned")
    chosen.measure = chosen.measure.split(",")
    for name in chosen.measure:
        if name not in ("step", "hooks", "memory", "trace"):
            parser.error(f"--measure: '{name}' must be step, hooks, memory or trace")
    return chosen


def implementations(chosen):
    return ["lockstep", *starting.peers(chosen, "bench_ddp", "pytorch")]


def launch(site, chosen, implementation, allocator, what):
    options = ["--measure", what, "--tokens", chosen.tokens, "--blocks", str(chosen.blocks), "--steps", str(chosen.steps)]
    options += ["--compress", chosen.compress] if chosen.compress else []
    if implementation == "lockstep":
        command = site.program("bench_ddp_rank") + options
        environment = starting.LOCKSTEP_ALLOCATOR[allocator]
    else:
        command = site.peer("ddp_rank.py") + options + chosen.peer_options.split()
        environment = starting.PEER_ALLOCATOR[allocator]
    lines = site.start(command, chosen.ranks, environment)
    if not lines:
        raise Failure(f"{command[0]} measured nothing")
    return lines


def common_keys(chosen, implementation, line):
    return {
        "implementation": implementation,
        "ranks": chosen.ranks,
        "nodes": chosen.nodes,
        **{key: line[key] for key in ("threads", "blas", "torch", "parameters") if key in line},
    }


def ratio(over, under):
    """The median ratio of blocks of the same round: it varies less than the ratio of medians."""
    return round(statistics.median(a / b for a, b in zip(over, under)), 4)


def measure_steps(site, chosen):
    blocks = collections.defaultdict(list)  # (implementation, allocator, tokens, mode) -> milliseconds
    steps = collections.Counter()
    of = {}
    allocators = chosen.allocators.split(",")
    runs = list(itertools.product(range(chosen.launches), allocators, implementations(chosen)))
    for number, (_, allocator, implementation) in enumerate(runs, 1):
        say(f"launch {number} of {len(runs)}: {implementation}, {allocator} allocator")
        for line in launch(site, chosen, implementation, allocator, "step"):
            key = (implementation, allocator, line["tokens"], line["mode"])
            blocks[key] += line["blocks"]
            steps[key] += line["steps"]
            of[key] = line
    for key, times in blocks.items():
        implementation, allocator, tokens, mode = key
        line = {"bench": "ddp", "mode": mode, "tokens": tokens, **common_keys(chosen, implementation, of[key])}
        line.update(allocator=allocator, launches=chosen.launches, steps=steps[key])
        line.update({"compress": chosen.compress} if chosen.compress else {})
        line["milliseconds"] = round(statistics.median(times), 3)
        before = {"no_sync": "bare", "sync": "no_sync"}.get(mode)
        if before:
            line[f"over_{before}"] = ratio(times, blocks[key[:3] + (before,)])
        peer = blocks.get(("pytorch",) + key[1:])
        if implementation == "lockstep" and peer:
            line["over_pytorch"] = round(statistics.median(times) / statistics.median(peer), 4)
        yield line


def measure_hooks(site, chosen):
    """The cost of a parameter's hook: the step of a model with many tiny parameters, minus the bare model's step."""
    for implementation in implementations(chosen):
        times = collections.defaultdict(list)
        for _ in range(chosen.launches):
            for line in launch(site, chosen, implementation, "tuned", "hooks"):
                times[line["mode"]] += line["blocks"]
        for mode in MODES[1:]:
            added = statistics.median(times[mode]) - statistics.median(times["bare"])
            result = {"bench": "ddp_hooks", "mode": mode, **common_keys(chosen, implementation, line)}
            result["nanoseconds"] = round(added * 1e6 / line["parameters"], 1)
            yield result


def measure_memory(site, chosen):
    for implementation in implementations(chosen):
        lines = [
            line for _ in range(chosen.launches) for line in launch(site, chosen, implementation, "default", "memory")
        ]
        result = {"bench": "ddp_memory", **common_keys(chosen, implementation, lines[0])}
        for key in ("gradient_bytes", "bucket_bytes", "bare_bytes", "beyond_bytes"):
            result[key] = int(statistics.median(line[key] for line in lines))
        yield result


def measure_trace(site, chosen):
    for line in launch(site, chosen, "lockstep", "tuned", "trace"):
        yield {"bench": "ddp_trace", **common_keys(chosen, "lockstep", line), **line}


MEASURES = {"step": measure_steps, "hooks": measure_hooks, "memory": measure_memory, "trace": measure_trace}


def main():
    chosen = arguments()
    with starting.site(chosen.programs, chosen.nodes) as site:
        for what in chosen.measure:
            program.show(MEASURES[what](site, chosen))


if __name__ == "__main__":
    program.run("bench_ddp", main)
