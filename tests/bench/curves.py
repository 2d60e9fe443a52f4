#!/usr/bin/env python3
"""Draws the time of an all-reduce over its size, for each number of ranks and nodes, from bench_allreduce's lines, with
the time that reading and writing every rank's buffer once takes at the memory bandwidth measured in the same run."""

import argparse

from lines import COLOURS, only, pyplot, read, save, select

CURVES = [
    ("lockstep", True, "Lockstep, registered", COLOURS["blue"], "o-"),
    ("lockstep", False, "Lockstep, any memory", COLOURS["sky"], "o-"),
    ("mpi", False, "MPI_Allreduce", COLOURS["orange"], "s-"),
    ("gloo", False, "Gloo", COLOURS["red"], "^-"),
]


def draw(axes, lines, nodes, ranks):
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", nargs="+")
    parser.add_argument("--out", required=True)
    chosen = parser.parse_args()
    lines = read(chosen.lines)
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
        draw(place, lines, *panel)
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
    save(figure, chosen.out)


main()
