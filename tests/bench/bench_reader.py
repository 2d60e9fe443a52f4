#!/usr/bin/env python3
"""Measures how fast samples are read from a pack in the page cache, in order and at random: with Lockstep's mapped
reader, with pread(2) alone (as a program that knows where its samples lie) and, with --peers, with WebDataset, which
reads in order only. The programs take turns, and the medians of the runs are printed."""

import pathlib
import statistics
import subprocess
import sys
import tempfile

import program
from ranks import json_lines, run, say

HERE = pathlib.Path(__file__).resolve().parent

# Implementation, access, --way of bench_reader_lockstep. "lockstep_read" is the reader's pread, with its checks.
WAYS = [
    ("lockstep", "random", "view"),
    ("lockstep_read", "random", "read"),
    ("pread", "random", "pread"),
    ("lockstep", "sequential", "view"),
    ("lockstep_read", "sequential", "read"),
    ("pread", "sequential", "pread"),
]


def arguments():
    parser = program.parser("bench_reader", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run WebDataset, if Python finds it")
    parser.add_argument("--samples", type=int, default=100_000, help="samples of the pack (default 100,000)")
    parser.add_argument("--bytes", type=int, default=2048, help="bytes of a sample (default 2,048)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads that read (default 1,2)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="folder for the pack (default: the folder of temporary files)")
    chosen = parser.parse_args()
    chosen.threads = [int(word) for word in chosen.threads.split(",")]
    chosen.seconds = 0.5
    if chosen.quick:
        chosen.runs, chosen.samples, chosen.seconds, chosen.threads = 1, 2000, 0.05, [1]
    if min(chosen.threads + [chosen.runs, chosen.samples]) < 1:
        parser.error("--threads, --runs and --samples must be at least 1")
    return chosen


def has_webdataset():
    command = [sys.executable, "-c", "import webdataset"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def commands(chosen, folder):
    program = [f"{chosen.programs}/bench_reader_lockstep", "--folder", folder, "--seconds", str(chosen.seconds)]
    for threads in chosen.threads:
        for name, access, way in WAYS:
            options = ["--way", way, "--access", access, "--threads", str(threads)]
            yield (name, access, threads), program + options
    if not chosen.peers:
        return
    if has_webdataset():
        peer = [sys.executable, str(HERE / "bench_reader_peer.py"), "--folder", folder]
        yield ("webdataset", "sequential", 1), peer + ["--seconds", str(chosen.seconds)]
    else:
        print("bench_reader: Python does not find WebDataset (PyPI: webdataset; set PYTHONPATH)", file=sys.stderr)


def measure(chosen, folder):
    make = ["--make", "--samples", str(chosen.samples), "--bytes", str(chosen.bytes)]
    run([f"{chosen.programs}/bench_reader_lockstep", "--folder", folder, *make], "making the pack")
    cases = list(commands(chosen, folder))
    found = {case: [] for case, _ in cases}
    for number in range(chosen.runs):
        say(f"run {number + 1} of {chosen.runs}")
        for case, command in cases:
            found[case] += json_lines(run(command, " ".join(map(str, case))))
    for (name, access, threads), lines in found.items():
        line = {"bench": "reader", "implementation": name, "access": access, "threads": threads}
        for key in ("samples", "sample_bytes", "samples_per_second", "bytes_per_second"):
            line[key] = statistics.median(entry[key] for entry in lines)
        yield {**line, "memory_bytes": max(entry["memory_bytes"] for entry in lines), "runs": chosen.runs}


def main():
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="bench_reader.", dir=chosen.folder) as folder:
        program.show(measure(chosen, folder))


if __name__ == "__main__":
    program.run("bench_reader", main)
