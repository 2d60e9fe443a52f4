"""Makes the tables of docs/benchmarks.md on packing, staging and reading, with the figures that miss their goals."""

from lines import only, select


def _seconds(lines, **which):
    line = only(lines, bench="stage", **which)
    return line["seconds"] if line else None


def _ratio(upper, lower):
    return upper / lower if upper and lower else None


def _bandwidth_of(line):
    """Share of the metered source's bandwidth that was used."""
    return line["bytes"] / line["seconds"] / line["bandwidth"] if line else None


def goals(lines, show, verdict, table):
    rows = []

    def row(what, value, limit, text, form="{:.2f}", at_least=False):
        rows.append([what, show(value, form), verdict(value, limit, text, at_least)])

    ours = _seconds(lines, case="cold", implementation="lockstep")
    for peer in ("cp", "rsync"):
        speed = _ratio(_seconds(lines, case="cold", implementation=peer), ours)
        row(
            f"cold staging, speed ÷ that of {peer} with fsync",
            speed,
            1.0 if peer == "cp" else None,
            "≥ 1.0" if peer == "cp" else "–",
            at_least=True,
        )
    one, *more = sorted(
        select(lines, bench="stage", case="cooperative", implementation="lockstep"), key=lambda line: line["nodes"]
    ) or [None]
    row("one node, source limited: share of its bandwidth", _bandwidth_of(one), 0.95, "≥ 0.95", at_least=True)
    for many in more:
        row(
            f"{many['nodes']} nodes together: bytes read from the source ÷ the data",
            _ratio(many["from_source"], many["bytes"]),
            1.02,
            "≤ 1.02",
            "{:.3f}",
        )
        row(f"{many['nodes']} nodes together: time ÷ one node's", _ratio(many["seconds"], one["seconds"]), 1.3, "≤ 1.3")
    for line in select(lines, bench="stage", case="warm", implementation="lockstep"):
        limit = 20 if line["latency_ms"] == 0 else 100
        what = f"warm hit on {line['shards']:,} shards"
        if line["latency_ms"]:
            what += f", {line['latency_ms']:g} ms per operation at the source"
        row(what, 1e3 * line["seconds"], limit, f"≤ {limit} ms", "{:.1f} ms")
    small = only(lines, bench="stage", case="small_files", implementation="lockstep")
    if small:
        row(
            f"{small['files']:,} files of 2 KB, pack and stage ÷ cp -r",
            _ratio(small["seconds"], _seconds(lines, case="small_files", implementation="cp")),
            0.3,
            "≤ 0.3",
        )
    memory = [line["memory_bytes"] for line in select(lines, bench="stage") if "memory_bytes" in line and line["case"] not in FAULTS]
    most = max(memory) / 1e6 if memory else None
    row("peak memory of lockstep-stage in all of these", most, 256, "≤ 256 MB", "{:.0f} MB")
    reader = only(lines, bench="reader", implementation="lockstep", access="random", threads=1)
    row(
        "random reads of samples from a mapped pack, one core",
        reader and reader["samples_per_second"] / 1e6,
        2.0,
        "≥ 2 M/s",
        "{:.1f} M/s",
        True,
    )
    return table(["what", "measured", "to reach"], rows)


def staging(lines, table):
    rows = []
    for line in select(lines, bench="stage"):
        if line["case"] in FAULTS:
            continue
        source = []
        if line.get("latency_ms"):
            source.append(f"{line['latency_ms']:g} ms per operation")
        if line.get("bandwidth"):
            source.append(f"{line['bandwidth'] / 1e6:g} MB/s")
        rows.append(
            [
                line["case"].replace("_", " "),
                line["implementation"],
                str(line["nodes"]),
                f"{line['bytes'] / 1e6:,.0f} MB",
                ", ".join(source) or "local disk",
                f"{line['seconds']:.3f} s",
                f"{line['bytes'] / line['seconds'] / 1e6:,.0f} MB/s",
                f"{line['from_source'] / 1e6:,.0f} MB",
            ]
        )
    head = ["case", "by", "nodes", "data", "source", "time", "speed", "read from the source"]
    return table(head, rows)


def packing(lines, table):
    rows = [
        [
            line.get("source", ""),
            line["implementation"] + (f", {line['threads']} threads" if line.get("threads") else ""),
            f"{line['files']:,}",
            f"{line['bytes'] / 1e6:,.0f} MB",
            f"{line['seconds']:.2f} s",
            f"{line['files'] / line['seconds'] / 1e3:,.1f} k/s",
        ]
        for line in select(lines, bench="pack")
    ]
    return table(["source", "by", "files", "data", "time", "files"], rows)


def reading(lines, table):
    rows = [
        [
            line["access"],
            line["implementation"],
            str(line["threads"]),
            f"{line['samples_per_second'] / 1e6:.3f} M/s",
            f"{line['bytes_per_second'] / 1e9:.2f} GB/s",
        ]
        for line in select(lines, bench="reader")
    ]
    return table(["access", "by", "threads", "samples", "bytes"], rows)


def _mark(value, limit, form):
    return form.format(value) + ("" if value <= limit else ": missed")


def scale(lines, table):
    """Staging on many simulated nodes; the bounds are those of the last row."""
    rows = []
    for line in select(lines, bench="stage_scale"):
        lost, held = "lost" in line["case"], line["holders"] > 0
        rows.append([
            str(line["nodes"]),
            line["case"],
            f"{line['bytes'] / 1e9:g} GB",
            f"{line['seconds']:.3g}",
            _mark(line["bound_ratio"], (1.5 if lost else 1.4) if line["bytes"] > 1e10 else 1e9, "{:.2f}"),
            _mark(line["sent_max_ratio"], 1.1, "{:.3f}"),
            _mark(line["source_ratio"], 2.02 - float(line["case"].split("@")[1]) if lost else 0 if held else 1.01, "{:.3f}"),
            _mark(line["rounds"], 4, "{}"),
            f"{line['rendezvous_bytes'] / 1e6:.3g} MB, " + _mark(line["rendezvous_share"], 1, "{:.2f}"),
            str(line["opens"]),
            f"{line['helper_seconds']:.2g}",
        ])  # fmt: skip
    head = [
        "nodes", "case", "data", "seconds", "÷ the bound", "busiest node sends ÷ the data", "source ÷ the data", "rounds",
        "bytes at the rendezvous, ÷ the bound", "opens at the source",
        "seconds of a core at srun",
    ]  # fmt: skip
    rows.append(["", "to reach", "100 GB", "", "≤ 1.4; lost 1.5", "≤ 1.1", "≤ 1.01; held 0; lost 1 + what the successor lacks + 0.02", "≤ 4", "≤ 1", "", ""])
    return table(head, rows)


def nodes(lines, table):
    """Staging on many real Slurm nodes of one machine."""
    rows = [
        [
            str(line["nodes"]), line["case"].replace("_", " "), f"{line['bytes'] / (1 << 20):.0f} MiB", f"{line['seconds']:.1f}",
            _mark(line["sent_max_ratio"], 1.1, "{:.3f}"), f"{line['source_ratio']:.3f}", str(line["copies"]),
        ]
        for line in select(lines, bench="stage_nodes")
    ]  # fmt: skip
    head = ["nodes", "case", "data", "seconds", "busiest node sends ÷ the data", "source ÷ the data", "nodes with a copy"]
    return table(head, rows)


FAULTS = {
    "slow_fsync": "each fsync takes 200 ms longer",
    "slow_holder": "the first node has the data, and reads it at 100 MB/s",
    "busy_node": "another process copies it on the last node, at 1 MB/s",
    "network_away": "no network between the nodes for 20 s",
    "node_killed": "the middle node is killed (in the background)",
}


def faults(lines, table):
    rows = []
    for case, text in FAULTS.items():
        for line in select(lines, bench="stage", case=case):
            without = f"{line['seconds_without']:.2f} s" if "seconds_without" in line else "–"
            ratios = [f"{line['from_source'] / line['bytes']:.3f}", f"{line['sent_max_ratio']:.3f}"]
            rows.append([text, str(line["nodes"]), f"{line['bytes'] / 1e6:.0f} MB", without, f"{line['seconds']:.2f} s", *ratios])
    return table(["what is wrong", "nodes", "data", "without", "with", "read ÷ data", "most sent ÷ data"], rows)
