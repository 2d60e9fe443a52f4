"""The tables of docs/benchmarks/recovery.md."""

from lines import select

FAULTS = {
    "rank": "a rank is killed",
    "node": "a node is lost",
    "first_node": "the first node is lost, and comes back at once",
    "stopped": "a rank is stopped (SIGSTOP)",
    "exception": "damaged samples: an exception",
    "disk": "the disk of the checkpoints is full",
}
PARTS = ["detect", "restart", "staging", "start", "load", "first_step", "all"]


def faults(lines, table):
    rows = []
    for fault, text in FAULTS.items():
        for line in select(lines, bench="recovery", fault=fault)[-1:]:
            parts = [f"{line[part + '_seconds']:.2f}" for part in PARTS]
            rows.append([text, *parts, f"{line['step_seconds']:.2f}", str(line["steps_lost"])])
    head = ["seconds", "detected", "restarted", "staged", "program's start", "loaded", "first step", "**all**", "a step", "steps lost"]
    return table(head, rows)


def healthy(lines):
    line = select(lines, bench="recovery", fault="none")[-1]
    return (
        f"Without a fault, a step of {line['step_seconds']:.3f} s takes {100 * line['overhead']:+.1f} % under `lockstep-run` (medians of "
        f"{line['turns']} turns of {line['steps']} steps, in turns with srun). A job of {line['wall_seconds']:.1f} s takes "
        f"{line['added_wall_seconds']:+.2f} s; the launcher uses {line['added_processor_seconds']:.2f} s of a processor."
    )
