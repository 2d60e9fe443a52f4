#!/usr/bin/env python3
"""Draws the pictures of docs/benchmarks.md from the lines in docs/benchmarks: all of them, or those that are named.

Usage: plot.py [allreduce] [imbalance] [step_model]"""

import io
import json
import pathlib
import sys

from lines import DATA, files, only, read, select

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"

# Colours that colour-blind readers can distinguish too (Okabe and Ito).
COLOURS = {
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "orange": "#e69f00",
    "red": "#d55e00",
    "green": "#009e73",
    "grey": "#555555",
}


def pyplot():
    """Returns matplotlib's pyplot with settings by which the same numbers give the same file."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "font.family": "sans-serif",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e4e4e4",
            "legend.frameon": False,
        }
    )
    return plt


def save(figure, path):
    """With a palette, so that a picture has at most 60 KB."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, facecolor="white")
    picture = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


CURVES = [
    ("lockstep", True, "Lockstep, registered", COLOURS["blue"], "o-"),
    ("lockstep", False, "Lockstep, any memory", COLOURS["sky"], "o-"),
    ("mpi", False, "MPI_Allreduce", COLOURS["orange"], "s-"),
    ("gloo", False, "Gloo", COLOURS["red"], "^-"),
]


def draw_panel(axes, lines, nodes, ranks):
    for name, registered, label, colour, style in CURVES:
        found = select(lines, bench="allreduce", implementation=name, registered=registered, nodes=nodes, ranks=ranks)
        found = sorted((line["bytes"], line["milliseconds"]) for line in found)
        if found:
            axes.plot(*zip(*found), style, color=colour, label=label, markersize=3, linewidth=1.2)
    bandwidth = only(lines, bench="memory_bandwidth", kernel="update", nodes=nodes, ranks=ranks)
    if bandwidth and ranks > 1:
        sizes = sorted({line["bytes"] for line in select(lines, bench="allreduce", nodes=nodes, ranks=ranks)})
        limit = [1e3 * 2 * ranks * size / bandwidth["bytes_per_second"] for size in sizes]
        label = "memory bandwidth: every buffer read and written once"
        axes.plot(sizes, limit, "--", color=COLOURS["grey"], linewidth=1, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([2**10, 2**14, 2**18, 2**22, 2**26], ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"])
    axes.minorticks_off()
    where = "one node" if nodes == 1 else f"{'two' if nodes == 2 else nodes} nodes"
    axes.set_title(f"{ranks} rank{'s' if ranks > 1 else ''}, {where}", fontsize=9, loc="left")


def allreduce(lines):
    """The time of an all-reduce over its size, for each number of ranks and nodes, from bench_allreduce's lines, with the
    time that reading and writing every rank's buffer once takes at the memory bandwidth measured in the same run."""
    panels = sorted({(line["nodes"], line["ranks"]) for line in select(lines, bench="allreduce")})
    if not panels:
        raise SystemExit("the input has no line of bench_allreduce")
    plt = pyplot()
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.4 * columns, 2.7 * rows + 0.5), sharex=True, sharey=True, squeeze=False
    )
    for place, panel in zip(axes.flat, panels):
        draw_panel(place, lines, *panel)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    slowest = max(line["milliseconds"] for line in select(lines, bench="allreduce"))
    axes[0][0].set_ylim(2e-4, 2 * slowest)  # cuts off MPI with one rank, which does nothing
    for row in axes:
        row[0].set_ylabel("milliseconds")
    handles = {}
    for place in axes.flat:
        handles.update(dict(zip(*reversed(place.get_legend_handles_labels()))))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncol=3)
    figure.tight_layout(rect=(0, 0.5 / figure.get_figheight(), 1, 1))
    return figure


NAMES = {"lockstep": "Lockstep", "fairseq": "fairseq's way", "multipack": "multipack's way",
         "greedy_with_swaps": "greedy with swaps"}
LISTS = {"azure_conv": "Azure conversations, 19 k", "wikipedia": "Wikipedia", "squad": "SQuAD 1.1",
         "azure_conv_drawn": "Azure conversations, drawn with replacement"}


def imbalance(lines):
    """The cost imbalance over the number of ranks for each list of lengths, from bench_planner's lines."""
    lines = [line for line in select(lines, bench="planner") if not line["padded"]]
    plt = pyplot()
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
    return figure


WAYS = [
    ("hierarchical", COLOURS["blue"], "node first"),
    ("pairwise", COLOURS["green"], "node first, all pairs of nodes"),
    ("flat", COLOURS["red"], "flat"),
]


def step_model(model):
    """The predicted time of a step over the number of ranks: the output of step_model.py --json."""
    plt = pyplot()
    predictions = model["predictions"]
    tokens_of = sorted({row["tokens"] for row in predictions}, reverse=True)
    figure, axes = plt.subplots(1, len(tokens_of), figsize=(4.4 * len(tokens_of), 3.4), squeeze=False)
    for place, tokens in zip(axes.flat, tokens_of):
        for way, colour, label in WAYS:
            rows = select(predictions, tokens=tokens, way=way)
            place.plot(
                [row["ranks"] for row in rows],
                [row["milliseconds"] for row in rows],
                color=colour,
                label=label,
                linewidth=1.3,
            )
        alone = only(model["measured"], tokens=tokens, ranks=0)["milliseconds"]
        place.axhline(alone, color=COLOURS["grey"], linestyle=":", linewidth=1, label="without communication")
        measured = [(row["ranks"], row["milliseconds"]) for row in model["measured"] if row["tokens"] == tokens and row["ranks"]]
        if measured:
            place.plot(*zip(*measured), "o", color=COLOURS["grey"], markersize=4, label="measured, one node")
        place.set_xscale("log", base=2)
        place.set_yscale("log")
        place.set_xticks([1, 4, 16, 64, 256, 1024, 4096], ["1", "4", "16", "64", "256", "1,024", "4,096"])
        place.minorticks_off()
        top = max(row["milliseconds"] for row in select(predictions, tokens=tokens)) / alone
        ticks = [alone * factor for factor in (1, 1.1, 1.25, 1.5, 2, 4, 8, 16) if factor <= 1.3 * top]
        place.set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        place.set_ylim(alone * 0.9, alone * top * 1.2)
        place.set_xlabel("ranks")
        place.set_title(f"{tokens} tokens per rank and step", fontsize=9, loc="left")
    axes.flat[0].set_ylabel("milliseconds per step")
    axes.flat[0].legend(loc="upper left", fontsize=8)
    figure.suptitle(model["network"]["name"], fontsize=9)
    figure.tight_layout()
    return figure


def main():
    lines = read(files())
    model = json.loads((DATA / "step_model.json").read_text(encoding="utf-8"))
    pictures = {
        "allreduce": lambda: allreduce(lines),
        "imbalance": lambda: imbalance(read([DATA / "imbalance.jsonl"])),
        "step_model": lambda: step_model(model),
    }
    for name in sys.argv[1:] or pictures:
        save(pictures[name](), DOCS / f"images/{name}.png")


main()
