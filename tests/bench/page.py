#!/usr/bin/env python3
"""Rewrites the tables of docs/benchmarks/*.md and the pictures in docs/images from the lines that measure.sh has written.
Marks every figure that misses its goal."""

import json
import pathlib
import re
import subprocess
import sys

import launch_page
import main_job_page
import planner_page
import recovery_page
import staging_page
from lines import DATA, files, only, read, select

HERE = pathlib.Path(__file__).resolve().parent
PAGES = HERE.parents[1] / "docs/benchmarks"

SIZES = {512: "4 × 128", 32: "1 × 32"}


def table(head, rows):
    return "\n".join(["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]])


def milliseconds(line):
    return line["milliseconds"] if line else None


def verdict(value, limit, text, at_least=False):
    """The goal, and whether the value reaches it."""
    if limit is None:
        return text
    if value is None:
        return "not measured"
    reached = value >= limit if at_least else value <= limit
    return text if reached else f"{text}: missed"


class Results:
    def __init__(self, lines):
        self.lines = lines

    def step(self, mode, tokens, allocator="tuned", implementation="lockstep", nodes=1):
        return only(
            self.lines,
            bench="ddp",
            mode=mode,
            tokens=tokens,
            allocator=allocator,
            implementation=implementation,
            ranks=2,
            nodes=nodes,
        )

    def over(self, upper, lower):
        upper, lower = milliseconds(self.step(**upper)), milliseconds(self.step(**lower))
        return upper / lower if upper and lower else None

    def paired(self, key, **which):
        line = self.step(**which)
        return line.get(key) if line else None

    def all_reduce(self, size, implementation="lockstep", registered=True):
        return milliseconds(
            only(
                self.lines,
                bench="allreduce",
                bytes=size,
                implementation=implementation,
                registered=registered,
                ranks=2,
                nodes=1,
            )
        )

    def extra(self, bench, key, **which):
        line = only(self.lines, bench=bench, ranks=2, nodes=1, **which)
        return line[key] if line else None


def show(value, form="{:.3f}"):
    return "–" if value is None else form.format(value)


def goals(results):
    rows = []

    def row(what, ours, theirs, limit, text, form="{:.3f}", at_least=False):
        rows.append([what, show(ours, form), show(theirs, form), verdict(ours, limit, text, at_least)])

    peer = {"implementation": "pytorch"}
    for tokens, allocator, limit in ((512, "default", 1.03), (512, "tuned", 1.03), (32, "tuned", 1.15)):
        which = {"mode": "sync", "tokens": tokens, "allocator": allocator}
        row(
            f"step ÷ the same under no_sync, {SIZES[tokens]} tokens, {allocator} allocator",
            results.paired("over_no_sync", **which),
            results.paired("over_no_sync", **which, **peer),
            limit,
            f"≤ {limit}",
        )
    for tokens in SIZES:
        which = {"mode": "bare", "tokens": tokens}
        row(
            f"for control: the bare step ÷ the same in Python, {SIZES[tokens]} tokens, tuned allocator",
            results.over(which, {**which, **peer}),
            1.0,
            None,
            "about 1",
        )
    for tokens, limit in ((512, 0.93), (32, 0.70)):
        for allocator in ("default", "tuned"):
            which = {"mode": "sync", "tokens": tokens, "allocator": allocator}
            row(
                f"step ÷ PyTorch's, {SIZES[tokens]} tokens, {allocator} allocator on both",
                results.over(which, {**which, **peer}),
                1.0,
                limit,
                f"≤ {limit}",
            )
    for tokens in SIZES:
        added = []
        for implementation in ("lockstep", "pytorch"):
            of = [
                milliseconds(results.step(mode, tokens, implementation=implementation)) for mode in ("sync", "no_sync")
            ]
            added.append(of[0] - of[1] if None not in of else None)
        ratio = added[0] / added[1] if None not in added and added[1] > 0 else None
        row(
            f"time added by synchronising ÷ PyTorch's, {SIZES[tokens]} tokens, tuned allocator",
            ratio,
            1.0,
            0.25,
            "≤ 0.25",
        )
    row(
        "step ÷ PyTorch's as installed (ours with its own settings), 1 × 32 tokens",
        results.over({"mode": "sync", "tokens": 32}, {"mode": "sync", "tokens": 32, "allocator": "default", **peer}),
        1.0,
        0.65,
        "≤ 0.65",
    )
    for tokens in SIZES:
        which = {"mode": "sync", "tokens": tokens, "nodes": 2}
        row(
            f"step ÷ PyTorch's, two nodes with a rank each, TCP, {SIZES[tokens]} tokens",
            results.over(which, {**which, **peer}),
            1.0,
            0.90,
            "≤ 0.90",
        )
    bucket, message = 25 << 20, 4 << 10
    ours, mpi = results.all_reduce(bucket), results.all_reduce(bucket, "mpi", False)
    row("all-reduce of 25 MiB, registered; beside it MPI_Allreduce", ours, mpi, 1.5, "≤ 1.5 ms", "{:.2f} ms")
    row("MPI_Allreduce's time ÷ ours, 25 MiB", mpi / ours if mpi and ours else None, 1.0, 4, "≥ 4", "{:.1f}", True)
    times = [time and 1e3 * time for time in (results.all_reduce(message), results.all_reduce(message, "mpi", False))]
    row("all-reduce of 4 KiB, registered; beside it MPI_Allreduce", *times, 10, "≤ 10 µs", "{:.1f} µs")
    for tokens in SIZES:
        which = {"mode": "no_sync", "tokens": tokens}
        row(
            f"step under no_sync ÷ the bare module's, {SIZES[tokens]} tokens",
            results.paired("over_bare", **which),
            results.paired("over_bare", **which, **peer),
            1.02,
            "≤ 1.02",
        )
    for mode in ("no_sync", "sync"):
        hooks = [
            results.extra("ddp_hooks", "nanoseconds", mode=mode, implementation=name)
            for name in ("lockstep", "pytorch")
        ]
        row(f"hooks' own cost per parameter, {mode}", *hooks, 1000, "≤ 1 µs", "{:.0f} ns")
    beyond = [results.extra("ddp_memory", "beyond_bytes", implementation=name) for name in ("lockstep", "pytorch")]
    beyond = [bytes_ if bytes_ is None else bytes_ / 2**20 for bytes_ in beyond]
    largest = results.extra("ddp_memory", "bucket_bytes", implementation="lockstep") or 0
    row(
        "memory beyond parameters and gradients",
        *beyond,
        largest / 2**20,
        f"≤ one bucket ({largest / 2**20:.1f} MiB)",
        "{:.1f} MiB",
    )
    return table(["what, 2 ranks on one node unless said", "measured", "PyTorch or MPI", "to reach"], rows)


def steps(results):
    rows = []
    for nodes in (1, 2):
        for tokens, size in SIZES.items():
            for allocator in ("default", "tuned"):
                for name in ("lockstep", "pytorch"):
                    of = [results.step(mode, tokens, allocator, name, nodes) for mode in ("bare", "no_sync", "sync")]
                    if None not in of:
                        rows.append(
                            [f"{'one node' if nodes == 1 else f'{nodes} nodes'}, {size} tokens, {allocator}", name]
                            + [f"{line['milliseconds']:.1f}" for line in of]
                        )
    return table(["ms per step", "", "bare", "no_sync", "sync"], rows)


def check(model):
    rows = [
        [
            SIZES.get(row["tokens"], str(row["tokens"])),
            str(row["ranks"]),
            str(row["nodes"]),
            f"{row['measured_ms']:.1f}",
            f"{row['predicted_ms']:.1f}",
            f"{100 * row['error']:+.1f} %" + (" (fitted to it)" if row["fitted"] else ""),
        ]
        for row in model["check"]
    ]
    return table(["tokens", "ranks", "nodes", "measured, ms", "predicted, ms", "error"], rows)


def scaling(model):
    rows = []
    for tokens in sorted({row["tokens"] for row in model["predictions"]}, reverse=True):
        for way in ("hierarchical", "pairwise", "flat"):
            of = {row["ranks"]: row for row in select(model["predictions"], tokens=tokens, way=way)}
            rows.append(
                [SIZES.get(tokens, str(tokens)), way]
                + [
                    f"{of[ranks]['milliseconds']:.0f} ms ({100 * of[ranks]['efficiency']:.0f} %)"
                    for ranks in (8, 64, 512, 4096)
                ]
            )
    return table(["tokens", "way", "8 ranks", "64", "512", "4,096"], rows)


def assumptions(model):
    found = model["network_measured"] or {}
    two = model["on_node"].get("2") or next(iter(model["on_node"].values()))
    text = (
        f"On a node of 2 ranks a bucket costs {1e3 * two['a_ms']:.1f} µs and "
        f"{two['b_ms_per_byte'] * (25 << 20):.2f} ms "
        f"per 25 MiB (median error of the fit {100 * two['median_error']:.0f} %)."
    )
    if found:
        text += (
            f" Between this machine's two nodes a message takes {1e3 * found['latency_ms']:.0f} µs and 25 MiB "
            f"{found['ms_per_byte'] * (25 << 20):.1f} ms (median error {100 * found['median_error']:.0f} %); "
            f"{100 * found['hidden']:.0f} % of that is hidden behind backward."
        )
    return f"{text} Predicted is a cluster with {model['network']['name']}."


def write(name, content):
    """Puts the content between the markers of this name, on the page that has them."""
    begin, end = f"<!-- {name}: written by tests/bench/page.py -->", f"<!-- end of {name} -->"
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if begin in text and end in text:
            text = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{content}\n{end}", text, flags=re.S)
            page.write_text(text, encoding="utf-8")
            return
    sys.exit(f"no page of {PAGES} has markers for '{name}'")


def main():
    measured = [str(path) for path in files() if path.stem != "imbalance"]  # for the picture only
    model = [
        sys.executable,
        str(HERE / "step_model.py"),
        *measured,
        "--collective",
        str(HERE.parents[1] / "build/release/bin/bench_collective_model"),
    ]
    model = json.loads(subprocess.run(model, check=True, stdout=subprocess.PIPE, text=True).stdout)
    (DATA / "step_model.json").write_text(json.dumps(model, indent=1) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, str(HERE / "plot.py")], check=True)
    lines = read(measured)
    results = Results(lines)
    for name, content in {
        "goals": goals(results),
        "steps": steps(results),
        "assumptions": assumptions(model),
        "check": check(model),
        "scaling": scaling(model),
        "staging goals": staging_page.goals(lines, show, verdict, table),
        "staging": staging_page.staging(lines, table),
        "stage scale": staging_page.scale(lines, table),
        "stage nodes": staging_page.nodes(lines, table),
        "packing": staging_page.packing(lines, table),
        "reading": staging_page.reading(lines, table),
    }.items():
        write(name, content)
    for name in ("planner", "balance", "loader"):
        if select(lines, bench=name):
            write(name, getattr(planner_page, name)(lines, table))
    if select(lines, bench="main_job"):
        write("main job", main_job_page.beside_pytorch(lines, table, verdict))
    if select(lines, bench="main_job_technique"):
        write("techniques", main_job_page.techniques(lines, table))
    if select(lines, bench="recovery"):
        write("recovery", recovery_page.faults(lines, table) + "\n\n" + recovery_page.healthy(lines))
    if select(lines, bench="stage", case="slow_fsync"):
        write("staging faults", staging_page.faults(lines, table))
    if select(lines, bench="launch"):
        write("launch", launch_page.launch(lines, table, verdict))
    if select(lines, bench="pin"):
        write("pinning", launch_page.pinning(lines, table))


main()
