#!/usr/bin/env python3
"""bench_main_job works from one end to the other: both programs train the same model (it compares their untrained losses
itself) on the same pages, and the loss of each falls. Usage: bench_main_job_test.py BENCH_MAIN_JOB"""

import json
import subprocess
import sys

import ranks

KEYS = {"bench", "implementation", "batches", "torch", "width", "layers", "cap", "ranks", "tokens_per_second", "fill"}
KEYS |= {"loss", "tokens"}


def lines_of(*options):
    done = subprocess.run([sys.argv[1], "--quick", "--json", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(line):
    assert line["tokens_per_second"] > 0 and 0.3 < line["fill"] <= 1, line
    # Three rounds of 6,000 tokens, each longer by less than a step of two ranks with a cap of 1,024.
    assert 18_000 <= line["tokens"] < 18_000 + 3 * 2048, line
    assert line["loss"] < line["loss_before"] - 0.1, line


def main():
    missing = ranks.peer_is_missing()
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    lines = lines_of("--peers")
    assert [line["batches"] for line in lines[:3]] == ["planned", "random", "sorted"], lines
    for line in lines:
        assert KEYS <= line.keys(), KEYS - line.keys()
        check(line)
    assert lines[0]["fill"] == 1, lines[0]
    techniques = lines_of("--techniques")
    for line in techniques:
        check(line)
    padded = [line for line in techniques if line["technique"].startswith("packed") and line["state"] == "off"]
    assert padded[0]["fill"] < 1, padded


main()
