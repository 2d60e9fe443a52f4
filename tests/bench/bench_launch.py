#!/usr/bin/env python3
"""Times srun of `true` on the embedded cluster without the plugin, with it, with --pin, and with --stage of data that is
already on the node. The four take turns; what the plugin adds is the median difference to the same turn without it."""

import os
import pathlib
import shutil
import statistics

import program
from ranks import EmbeddedCluster, json_lines, run

# Runs inside the cluster as root: Slurm reads plugstack.conf at each launch. The first turn warms up and does not count.
TURNS = """
import json, subprocess, sys, time
plugin, turns = "optional /mnt/lockstep/lib/lockstep/lockstep.so conf=/etc/lockstep/lockstep.conf\\n", int(sys.argv[1])
cases = {
    "no_plugin": ("", []),
    "none": (plugin, []),
    "pin": (plugin, ["--pin=auto"]),
    "stage": (plugin, ["--stage=/mnt/shared/pack"]),
}
for turn in range(turns + 1):
    took, order = {}, list(cases)
    for options in order[turn % 4 :] + order[: turn % 4]:
        lines, words = cases[options]
        with open("/etc/slurm/plugstack.conf", "w") as file:
            file.write(lines)
        begin = time.monotonic()
        done = subprocess.run(["srun", "-w", "n1", "-n1", *words, "true"], user="alice", capture_output=True, text=True)
        took[options] = 1e3 * (time.monotonic() - begin)
        if done.returncode != 0:
            sys.exit(f"srun {words}: exit code {done.returncode}: {done.stderr}")
    if turn > 0:
        print(json.dumps(took), flush=True)
"""


def arguments():
    parser = program.parser("bench_launch", __doc__)
    parser.add_argument("--turns", type=int, default=41)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.turns = 2
    if chosen.turns < 1:
        parser.error("--turns must be at least 1")
    return chosen


class Cluster(EmbeddedCluster):
    """One node, with the programs and the plugin of this build tree."""

    def __init__(self, programs):
        super().__init__("launch", 1)
        self.programs = programs
        prefix = self.folder / "prefix"
        self.options += ["--prefix", prefix]
        (prefix / "lib/lockstep").mkdir(parents=True)
        (prefix / "bin").mkdir()
        for name in ("lockstep-stage", "lockstep-pin"):
            shutil.copy2(programs / name, prefix / "bin")
        shutil.copy2(programs.parent / "lib/lockstep.so", prefix / "lib/lockstep")

    def fill(self):
        raw = self.folder / "raw"
        raw.mkdir()
        for number in range(8):
            (raw / f"{number}.bin").write_bytes(os.urandom(1 << 20))
        pack = self.folder / "state/shared/pack"
        run([self.programs / "lockstep-pack", "create", raw, "--out", pack], "lockstep-pack")

    def turns(self, count):
        output = self.call("exec", "--user", "root", "--cwd", "/", "--", "python3", "-c", TURNS, str(count))
        return json_lines(output)


def measure(chosen):
    load = os.getloadavg()[0]
    with Cluster(pathlib.Path(chosen.programs).resolve()) as cluster:
        turns = cluster.turns(chosen.turns)
    for options in turns[0]:
        yield {
            "bench": "launch",
            "options": options,
            "milliseconds": statistics.median(turn[options] for turn in turns),
            "added_milliseconds": statistics.median(turn[options] - turn["no_plugin"] for turn in turns),
            "runs": len(turns),
            "load_before": load,
        }


def main():
    chosen = arguments()
    program.show(measure(chosen))


program.run("bench_launch", main)
