"""The tables of docs/benchmarks.md on the main job: beside PyTorch's programs, and each technique on and off."""

from lines import only, select

BATCHES = {"random": "random, padded", "sorted": "sorted by length"}
ATTENTION = {"explicit": "", "fused": ", scaled_dot_product_attention"}
GOALS = {
    ("random", 128): 1.8,
    ("random", 256): 1.8,
    ("random", 512): 1.5,
    ("sorted", 128): 1.5,
    ("sorted", 256): 1.5,
    ("sorted", 512): 1.25,
}


def generation(line):
    """1.13 of 1.13.0a0; Python and C++ name a version differently."""
    return ".".join(line["torch"].split(".")[:2])


def beside_pytorch(lines, table, verdict):
    rows = []
    for line in select(lines, bench="main_job"):
        ours = next(
            other
            for other in select(lines, bench="main_job", implementation="lockstep", width=line["width"])
            if generation(other) == generation(line)
        )
        batches = f"{BATCHES.get(line['batches'], 'planned')}{ATTENTION[line['attention']]}"
        over, goal = line.get("lockstep_over_this"), GOALS.get((line["batches"], line["width"]))
        better = "" if line is ours else f", {ours['loss'] - line['loss']:+.3f}"
        rows.append(
            [
                generation(line),
                f"{line['width']}, {line['cap']}",
                f"{line['implementation']}: {batches}",
                f"{line['tokens_per_second']:,.0f}",
                f"{line['fill']:.2f}",
                f"{line['loss']:.3f}",
                f"{over:.2f}{better}" if over else "",
                verdict(over, goal, f"≥ {goal}", at_least=True) if over else "",
            ]
        )
    head = ["LibTorch", "width, cap", "program: batches", "real tokens per second", "fill", "loss"]
    return table([*head, "Lockstep ÷ this, difference in loss", "to reach"], rows)


def _gain(on, off):
    """What the technique brings, if it is more than noise: rates vary between turns, memory hardly does."""
    found = []
    speed = on["tokens_per_second"] / off["tokens_per_second"] - 1
    memory = 1 - on["memory_bytes"] / off["memory_bytes"]
    for what, part, noise in (("faster", speed, 0.07), ("less memory", memory, 0.03)):
        if part > noise:
            found.append(f"{100 * part:.0f} % {what}")
    return ", ".join(found) or "no gain here"


def techniques(lines, table):
    def change(on, off, key, form, scale=1):
        return " → ".join(form.format(scale * line[key]) for line in (off, on))

    rows = []
    for on in select(lines, bench="main_job_technique", state="on"):
        off = only(lines, bench="main_job_technique", state="off", technique=on["technique"])
        rows.append(
            [
                on["technique"],
                change(on, off, "milliseconds", "{:.0f}"),
                change(on, off, "tokens_per_second", "{:,.0f}"),
                change(on, off, "memory_bytes", "{:.0f}", 2**-20),
                change(on, off, "loss", "{:.3f}"),
                _gain(on, off),
            ]
        )
    return table(["technique, off → on", "ms per step", "tokens per second", "peak memory, MiB", "loss", "gain"], rows)
