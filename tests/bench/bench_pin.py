#!/usr/bin/env python3
"""Measures memory bandwidth and step time of ranks that are pinned by lockstep-pin and of ranks that are not, without
loader threads and with them, which share the compute CPUs or have their own. The variants take turns. A gain of bandwidth
needs several NUMA nodes: on a machine with one, this benchmark says so."""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import program
from ranks import run

# name: pinned, loader threads run, loader threads have CPUs of their own
VARIANTS = {
    "free": (False, False, False),
    "pinned": (True, False, False),
    "free_loaders": (False, True, False),
    "pinned_loaders": (True, True, False),
    "pinned_loader_cpus": (True, True, True),
}


def arguments():
    cpus = len(os.sched_getaffinity(0))
    parser = program.parser("bench_pin", __doc__)
    parser.add_argument("--ranks", type=int, default=2 if cpus >= 4 else 1, help="ranks on this machine")
    parser.add_argument("--loaders", type=int, default=1, help="loader threads of each rank (default 1)")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30, help="steps of each run (default 30)")
    parser.add_argument("--elements", type=int, default=4 << 20, help="numbers in each array of a thread (default 4 Mi)")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.turns, chosen.steps, chosen.elements = 1, 3, 1 << 14
    if min(chosen.ranks, chosen.loaders, chosen.turns, chosen.steps, chosen.elements) < 1:
        parser.error("--ranks, --loaders, --turns, --steps and --elements must be at least 1")
    return chosen


def command(chosen, folder, rank, variant):
    pinned, loads, own_cpus = VARIANTS[variant]
    programs = pathlib.Path(chosen.programs).resolve()
    share = max(1, len(os.sched_getaffinity(0)) // chosen.ranks)
    threads = max(1, share - chosen.loaders) if loads else share
    words = [programs / "bench_pin_rank", "--ranks", chosen.ranks, "--threads", threads, "--steps", chosen.steps]
    words += ["--elements", chosen.elements, "--barrier", pathlib.Path(folder) / "barrier"]
    if loads:
        words += ["--loaders", chosen.loaders]
    if pinned:
        pin = [programs / "lockstep-pin", "run", "--tasks", chosen.ranks, "--local-rank", rank]
        words = [*pin, *(["--workers", chosen.loaders] if own_cpus else []), "--", *words]
    return threads, words


def turn(chosen, variant):
    """Runs all ranks once. Returns their bandwidth together, the slowest rank's step and the threads of a rank."""
    with contextlib.ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir="/dev/shm"))
        ranks = []
        for rank in range(chosen.ranks):
            threads, words = command(chosen, folder, rank, variant)
            started = program.started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            ranks.append(running.enter_context(started))
        lines = [json.loads(program.finish(rank, "bench_pin_rank")[0]) for rank in ranks]
    together = sum(line["bytes_per_second"] for line in lines)
    return together, max(line["step_milliseconds"] for line in lines), threads


def measure(chosen):
    plan = [pathlib.Path(chosen.programs).resolve() / "lockstep-pin", "plan", "--tasks", str(chosen.ranks), "--json"]
    numa_nodes = json.loads(run(plan, "lockstep-pin"))["topology"]["numa_nodes"]
    if numa_nodes == 1:
        print(
            "bench_pin: this machine has one NUMA node: all memory is local, so the bandwidth shows no gain by pinning",
            file=sys.stderr,
        )
    load = os.getloadavg()[0]
    names = list(VARIANTS)
    turns = []
    for number in range(chosen.turns):
        begin = number % len(names)
        turns.append({name: turn(chosen, name) for name in names[begin:] + names[:begin]})
    for name, (pinned, loads, own_cpus) in VARIANTS.items():
        free = "free_loaders" if loads else "free"
        yield {
            "bench": "pin",
            "variant": name,
            "pinned": pinned,
            "loaders": chosen.loaders if loads else 0,
            "loader_cpus": own_cpus,
            "ranks": chosen.ranks,
            "threads": turns[0][name][2],
            "numa_nodes": numa_nodes,
            "bytes_per_second": statistics.median(each[name][0] for each in turns),
            "step_milliseconds": statistics.median(each[name][1] for each in turns),
            "step_over_free": statistics.median(each[name][1] / each[free][1] for each in turns),
            "runs": chosen.turns,
            "load_before": load,
        }


def main():
    chosen = arguments()
    program.show(measure(chosen))


program.run("bench_pin", main)
