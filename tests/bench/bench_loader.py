#!/usr/bin/env python3
"""Measures how many batches of packed tokens per second Lockstep's loader delivers from the page cache, and with --peers
PyTorch's DataLoader, with the same files, batches and number of workers. The two run in turns."""

import pathlib
import statistics
import sys
import tempfile

import program
import ranks as starting
from ranks import json_lines

HERE = pathlib.Path(__file__).resolve().parent


def arguments():
    parser = program.parser("bench_loader", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run PyTorch's DataLoader, if it is installed")
    parser.add_argument("--tokens", type=int, default=16_000_000, help="tokens of the pack (default 16 million)")
    parser.add_argument("--workers", default="1,2", help="numbers of worker threads or processes (default 1,2)")
    parser.add_argument("--launches", type=int, default=3)
    chosen = parser.parse_args()
    chosen.workers = [int(word) for word in chosen.workers.split(",")]
    chosen.epochs = 5
    if chosen.quick:
        chosen.launches, chosen.epochs, chosen.tokens = 1, 1, 600_000
    if min(chosen.workers + [chosen.launches]) < 1:
        parser.error("--workers and --launches must be at least 1")
    return chosen


def run(command):
    return json_lines(starting.run(command, command[0]))


def measure(chosen, folder):
    ours = [f"{chosen.programs}/bench_loader_lockstep", "--folder", folder]
    run(ours + ["--make", "--tokens", str(chosen.tokens)])
    commands = {"lockstep": ours}
    for peer in starting.peers(chosen, "bench_loader", "pytorch"):
        commands[peer] = [sys.executable, str(HERE / "bench_loader_peer.py"), "--folder", folder]
    for workers in chosen.workers:
        lines = {name: [] for name in commands}
        for _ in range(chosen.launches):
            for name, command in commands.items():
                lines[name] += run(command + ["--workers", str(workers), "--epochs", str(chosen.epochs)])
        memcpy = statistics.median(line["memcpy_bytes_per_second"] for line in lines["lockstep"])
        for name, found in lines.items():
            rates = {key: statistics.median(line[key] for line in found) for key in found[0] if key.endswith("second")}
            rates["memcpy_bytes_per_second"] = memcpy
            yield {"bench": "loader", "implementation": name, "workers": workers, "launches": chosen.launches, **rates}


def main():
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="bench_loader.") as folder:
        program.show(measure(chosen, folder))


if __name__ == "__main__":
    program.run("bench_loader", main)
