#!/usr/bin/env python3
"""Kills a training under lockstep-run many times at random moments, a rank and a node by turns. On the same number of ranks
it must end with the same bits as an undisturbed training; on a changing number it must use every sample once. A node that
is killed is started again, for later jobs. When a job has no node left to lose, the next job continues its training."""

import hashlib
import json
import pathlib
import random
import time

import program
from ranks import Failure, say
from recovery_jobs import Cluster, Job

# Nodes of a job, spares among them, and the nodes that it must keep. Without a spare it goes on with fewer ranks.
CASES = {"same": (4, 2, 2), "changing": (3, 0, 1)}
SAMPLES_OF_A_KILL = 80  # about twelve steps; the training does about five between two kills
COMMAND = """\
lockstep-run --restarts 1000 --pause 0 --spares {spares} --min-nodes {kept} ${{start[@]}} text_lm --cap 64 --json --deterministic \\
  --epochs 1 --checkpoint {folder} --checkpoint-steps 1"""


def arguments():
    parser = program.parser("bench_kills", __doc__)
    parser.add_argument("--kills", type=int, default=200, help="of each training")
    parser.add_argument("--cases", default=",".join(CASES), help="same (number of ranks), changing")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims")
    parser.add_argument("--start", type=float, default=6, help="seconds in which the program starts: about half of the kills are in this time")
    parser.add_argument("--wait", type=int, default=300, help="seconds without a kill, until the training counts as hanging")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.kills = 5
    chosen.cases = chosen.cases.split(",")
    if unknown := set(chosen.cases) - CASES.keys():
        parser.error("--cases: unknown: " + ", ".join(sorted(unknown)))
    return chosen


class Training:
    """One training in one folder of checkpoints, by as many jobs as it takes."""

    def __init__(self, cluster, chosen, case, name):
        self.cluster, self.wait, self.folder = cluster, chosen.wait, f"checkpoints-{name}"
        self.nodes, self.spares, self.kept = CASES[case]
        self.jobs, self.job, self.starts, self.down = 0, None, 0, []

    def begin(self):
        """Starts a job if none runs."""
        if self.job and not self.job.has_ended():
            return
        if self.job and self.result():
            raise Failure("the training ended before the last kill: give it more samples")
        self.end_job()
        command = COMMAND.format(spares=self.spares, kept=self.kept, folder=self.folder)
        self.job = Job(self.cluster, command, self.nodes, self.wait)
        self.jobs += 1

    def end_job(self):
        """Starts the killed nodes again, and counts the starts of the job that has ended."""
        for node in self.down:
            self.cluster.call("restart", node)
        self.down = []
        if self.job:
            self.job.deadline = time.time() + self.wait
            self.job.until("idle nodes", self.cluster.all_idle, pause=0.2)
            self.starts += len(self.job.lines("start"))

    def result(self):
        """What text_lm prints at its end; None before."""
        if not self.job:
            return None
        lines = [line for line in self.job.output().splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else None

    def finish(self):
        """Lets it run to its end, without more kills. Returns what text_lm prints."""
        while not self.result():
            before = self.newest()
            self.begin()
            self.job.deadline = time.time() + 10 * self.wait
            self.job.until("end", self.job.has_ended, pause=0.5)
            if not self.result() and self.newest() == before:
                raise Failure(f"job {self.job.id} got no further; its output ends with: {self.job.output()[-600:]}")
        self.end_job()
        return self.result()

    def digests(self):
        """Of the tensors in the newest checkpoint."""
        newest = self.cluster.home / self.folder / self.newest()
        found = {}
        for file in ("model.safetensors", "optimizer.safetensors"):
            data = (newest / file).read_bytes()
            found[file] = hashlib.sha256(data[8 + int.from_bytes(data[:8], "little") :]).hexdigest()  # the header names the run
        return found

    def newest(self):
        """The name of the newest checkpoint."""
        return max((path.name for path in (self.cluster.home / self.folder).glob("step-*")), default="")


def wait_for_moment(training, chosen, chance, start):
    """Half of the moments are while the program starts and loads, the others in and between its steps."""
    job, before = training.job, training.newest()
    if chance.random() < 0.5:
        moment = start["at"] + chance.uniform(0, chosen.start)
        job.until("moment", lambda: time.time() >= moment or training.newest() != before)
        return
    for _ in range(chance.randint(1, 4)):
        job.until("checkpoint", lambda: training.newest() != before or training.result())
        before = training.newest()
    moment = time.time() + chance.uniform(0, 0.2)
    job.until("moment", lambda: time.time() >= moment)


def kill(training, chosen, chance, whole_node):
    """Kills a rank or a node of the running start, and waits for lockstep-run's next start or the job's end."""
    job, cluster = training.job, training.cluster
    job.deadline = time.time() + training.wait
    starts = job.until("start", lambda: (found := job.lines("start")) and len(found) > len(job.lines("end")) and found)
    nodes = starts[-1]["nodes"]
    wait_for_moment(training, chosen, chance, starts[-1])
    if not whole_node:
        job.until("rank", lambda: cluster.signal_ranks(chance.choice(nodes), "KILL", "--newest") or job.has_ended())
    elif len(nodes) > 1:
        node = chance.choice(nodes[1:])  # bench_recovery has the first one, after which Slurm queues the job again
        cluster.call("kill", node, "--all")
        training.down.append(node)
    else:
        cluster.slurm("scancel", "--full", "--signal=KILL", job.id)
    job.until("restart", lambda: len(job.lines("start")) > len(starts) or job.has_ended(), pause=0.2)


def play(cluster, chosen, case):
    begin = time.time()
    plain = Training(cluster, chosen, case, f"{case}-plain") if case == "same" else None
    expected = plain.finish() if plain else None
    killed = Training(cluster, chosen, case, f"{case}-killed")
    chance = random.Random(chosen.seed)
    for number in range(chosen.kills):
        killed.begin()
        say(f"{case}: kill {number + 1} of {chosen.kills}, after {killed.newest() or 'no checkpoint'}")
        kill(killed, chosen, chance, whole_node=number % 2 == 1)
    result = killed.finish()
    line = {"bench": "recovery", "fault": "kills", "case": case, "kills": chosen.kills, "seed": chosen.seed, "jobs": killed.jobs, "starts": killed.starts,
            "steps": result["steps"], "samples": result["samples"], "least_seen": result["least_seen"], "most_seen": result["most_seen"]}  # fmt: skip
    if plain:
        line["equal"] = plain.digests() == killed.digests() and expected["steps"] == result["steps"]
    yield {**line, "seconds": round(time.time() - begin)}
    if not line.get("equal", True) or (line["least_seen"], line["most_seen"]) != (1, 1):
        raise Failure(f"{case}: the killed training ended differently, or did not use every sample once: seed {chosen.seed}")


def main():
    chosen = arguments()
    nodes = max(nodes for nodes, _, _ in CASES.values())
    with Cluster(pathlib.Path(chosen.programs).resolve(), nodes, 60 + SAMPLES_OF_A_KILL * chosen.kills) as cluster:
        for case in chosen.cases:
            program.show(play(cluster, chosen, case))


program.run("bench_kills", main)
