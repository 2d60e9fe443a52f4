#!/usr/bin/env python3
"""Draws docs/images/imbalance.svg: the cost imbalance over the number of ranks for each list of lengths. It reads the lines
of bench_planner --peers --json from standard input or a file."""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

NAMES = {"lockstep": "Lockstep", "fairseq": "fairseq's way", "multipack": "multipack's way",
         "greedy_with_swaps": "greedy with swaps"}
LISTS = {"azure_conv": "Azure conversations, 19 k", "wikipedia": "Wikipedia", "squad": "SQuAD 1.1",
         "azure_conv_drawn": "Azure conversations, drawn with replacement"}


def main():
    source = open(sys.argv[1], encoding="utf-8") if len(sys.argv) > 1 else sys.stdin
    lines = [json.loads(line) for line in source]
    plt.rcParams["svg.hashsalt"] = "lockstep"
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), constrained_layout=True)
    for axis, (name, title) in zip(axes.flat, LISTS.items()):
        for implementation, label in NAMES.items():
            points = sorted((line["ranks"], line["imbalance_cost"] - 1) for line in lines
                            if line["lengths"] == name and line["implementation"] == implementation
                            and not line.get("padded"))
            if points:
                axis.plot(*zip(*points), marker="o", markersize=3, label=label)
        bound = sorted((line["ranks"], line["lower_bound_cost"] - 1) for line in lines
                       if line["lengths"] == name and line["implementation"] == "lockstep"
                       and not line.get("padded"))
        if any(value > 1e-6 for _, value in bound):
            axis.plot(*zip(*bound), color="0.5", linestyle="--", linewidth=1, label="bound on Lockstep's steps")
        axis.set_title(title, fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_ylim(1e-5, 1)
        axis.set_xlabel("ranks")
        axis.set_ylabel("time lost: greatest ÷ mean cost − 1")
        axis.grid(True, alpha=0.3)
    axes.flat[0].legend(fontsize=7)
    target = pathlib.Path(__file__).resolve().parents[2] / "docs/images/imbalance.svg"
    figure.savefig(target, metadata={"Date": None})
    print(target)


if __name__ == "__main__":
    main()
