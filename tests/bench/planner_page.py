"""Makes the planner's and the loader's tables in docs/benchmarks.md."""

from lines import select

WAYS = {
    "lockstep": "Lockstep",
    "fairseq": "fairseq's way",
    "multipack": "multipack's way",
    "greedy_with_swaps": "greedy with swaps",
}
LISTS = {
    "azure_conv": "azure_conv",
    "wikipedia": "wikipedia",
    "squad": "squad",
    "azure_conv_drawn": "azure_conv, drawn",
    "heavy_tail": "heavy tail",
}


def planner(lines, table):
    rows = []
    for line in select(lines, bench="planner"):
        if line["lengths"] not in LISTS:
            continue
        if line.get("padded"):
            continue
        rows.append(
            [
                f"{LISTS[line['lengths']]}, {line['samples']:,}",
                f"{line['ranks']} × {line['accumulate']}",
                f"{line['stretch']:g}" if line["implementation"] == "lockstep" else "",
                WAYS.get(line["implementation"], line["implementation"]),
                f"{line['imbalance_cost']:.4f} ({line['lower_bound_cost']:.4f})",
                f"{line['step_mean_ratio']:.2f}",
                f"{line['steps']} ({line['minimum_steps']})",
                str(line["dropped"]),
                f"{line['seconds']:.4f}",
                f"{1e9 * line['seconds'] / line['samples']:.0f}",
            ]
        )
    head = ["lengths", "ranks × accumulate", "stretch", "way", "cost imbalance (bound)", "step-mean ratio"]
    head += ["steps (minimum)", "samples lost"]
    text = table([*head, "seconds", "ns per sample"], rows)
    padded = [
        [
            f"{line['ranks']} × {line['accumulate']}",
            f"{100 * line['padding']:.1f} %",
            f"{line['imbalance_cost']:.4f}",
            f"{line['steps']} ({line['minimum_steps']})",
            f"{line['micro_batches']:.1f}",
        ]
        for line in select(lines, bench="planner", implementation="lockstep")
        if line.get("padded")
    ]
    padded = list(dict.fromkeys(map(tuple, padded)))  # two measurements may have the same rows
    if padded:
        columns = ["ranks × accumulate", "padding", "cost imbalance", "steps (minimum)", "micro-batches of a rank"]
        text += "\n\nPadded batches of azure_conv:\n\n" + table(columns, padded)
    for line in select(lines, bench="planner", lengths="stream"):
        text += (
            f"\n\nA stream of {line['samples']:,} lengths on {line['ranks']} ranks: {line['seconds']:.0f} s, "
            f"{line['samples_per_second'] / 1e6:.1f} M lengths/s, the whole program at most "
            f"{line['peak_bytes'] / 2**20:.0f} MiB."
        )
    return text


def balance(lines, table):
    rows = [
        [
            f"{LISTS[line['lengths']]}, {'padded' if line['padded'] else 'packed'}",
            str(line["width"]),
            str(line["ranks"]),
            {**WAYS, "random": "random batches"}[line["implementation"]],
            f"{line['cost'][0]:,.0f},{line['cost'][1]:g}",
            f"{line['imbalance_model']:.3f}",
            f"{line['imbalance_cpu_time']:.3f}",
            f"{line['floor']:.3f}",
        ]
        for line in select(lines, bench="balance")
    ]
    head = ["lengths", "width", "ranks", "way", "cost", "imbalance by the cost", "on the clock", "floor"]
    return table(head, rows)


def loader(lines, table):
    rows = []
    for line in select(lines, bench="loader"):
        part = line["bytes_per_second"] / line["workers"] / line["memcpy_bytes_per_second"]
        rows.append(
            [
                line["implementation"],
                str(line["workers"]),
                f"{line['tokens_per_second'] / 1e6:.1f}",
                f"{line['bytes_per_second'] / 1e9:.2f}",
                f"{part:.2f}",
            ]
        )
    return table(["loader", "workers", "M tokens/s", "GB/s of batches", "of memcpy's bandwidth, per worker"], rows)
