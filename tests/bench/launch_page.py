"""The tables of docs/benchmarks.md on launching with the plugin, and on pinning."""

from lines import select

OPTIONS = {
    "no_plugin": "no plugin",
    "none": "plugin, no option",
    "pin": "`--pin=auto`",
    "stage": "`--stage`, data on the node",
}
GOALS = {"none": 10, "pin": 20, "stage": 20}


def launch(lines, table, verdict):
    rows = []
    for line in select(lines, bench="launch"):
        goal = GOALS.get(line["options"])
        added = line["added_milliseconds"]
        rows.append(
            [
                OPTIONS[line["options"]],
                f"{line['milliseconds']:.0f} ms",
                f"{added:.1f} ms" if goal else "–",
                verdict(added, goal, f"≤ {goal} ms") if goal else "–",
            ]
        )
    return table(["srun of one task", "time", "added", "goal"], rows)


def pinning(lines, table):
    measured = select(lines, bench="pin")
    rows = []
    for line in measured:
        loaders = "none"
        if line["loaders"]:
            loaders = f"{line['loaders']}, {'own CPUs' if line['loader_cpus'] else 'on the compute CPUs'}"
        rows.append(
            [
                "yes" if line["pinned"] else "no",
                loaders,
                f"{line['ranks']} × {line['threads']}",
                f"{line['bytes_per_second'] / 1e9:.1f} GB/s",
                f"{line['step_milliseconds']:.1f} ms",
                f"{line['step_over_free']:.3f}",
            ]
        )
    head = ["pinned", "loader threads of a rank", "ranks × threads", "bandwidth", "step", "step ÷ unpinned"]
    text = table(head, rows)
    if measured and measured[0]["numa_nodes"] == 1:
        text += "\n\nThe machine has one NUMA node: all memory is local, so these numbers show no gain by pinning."
    return text
