#!/usr/bin/env python3
"""Times what a failure costs under lockstep-run: text_lm on an embedded cluster of three nodes, one of them a spare, with
two ranks on each node. One job for each fault. The parts follow each other: detect (from the fault to srun's first
message), restart (until the next srun), start (until the program runs), load (until its first step), first_step. With --kills N one
training is killed N times at random moments, and must end with the parameters of an undisturbed one."""

import hashlib
import json
import pathlib
import random
import re
import shutil
import struct
import time

import program
from ranks import EmbeddedCluster, run, say, Failure

SCRIPT = """#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --no-kill --requeue --open-mode=append
mkdir -p out-$SLURM_JOB_ID
export LOCKSTEP_REPORT_DIR=$PWD OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 LOCKSTEP_TIMEOUT={timeout}
lockstep-run --restarts {restarts} --pause 0 --spares 1 --mpi=pmix --cpu-bind=none sh -c '
  LOCKSTEP_RECORD=/mnt/local/records/$SLURM_JOB_ID.$SLURM_STEP_ID exec text_lm "$@"' text_lm \\
  --data /mnt/shared/data/manpages --heldout /mnt/shared/data/manpages-heldout {model} {length} --save out-$SLURM_JOB_ID/model.pt --json \\
  --checkpoint checkpoints-$SLURM_JOB_ID --checkpoint-local /mnt/local/checkpoints --checkpoint-steps {every} --deterministic
"""
FAULTS = ("rank", "node", "first_node", "stopped", "exception", "disk")


def arguments():
    parser = program.parser("bench_recovery", __doc__)
    parser.add_argument("--faults", default=",".join(FAULTS), help="some of: " + ", ".join(FAULTS))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--checkpoint-steps", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=20, help="LOCKSTEP_TIMEOUT, which finds a stopped rank")
    parser.add_argument("--kills", type=int, default=0, help="only this: kill one training so often, a rank and all ranks of a node by turns")
    parser.add_argument("--wait", type=int, default=400, help="seconds that one job may take")
    chosen = parser.parse_args()
    chosen.model = "--cap 64" if chosen.quick else "--cap 64 --width 512 --layers 6 --heads 8"
    chosen.faults = ["rank"] if chosen.quick else chosen.faults.split(",")
    return chosen


def tokens(folder):
    """Raw files of tokens, for lockstep-pack."""
    folder.mkdir(parents=True)
    for i in range(300):
        (folder / f"{i}.tokens").write_bytes(b"".join(struct.pack("<H", (3 * i + t) % 50) for t in range(20 + i % 40)))


class Record:
    """A rank's record (exporters/record/layout.h): its process, when it began, and when its steps ended."""

    def __init__(self, path):
        data = path.read_bytes()
        self.process, self.began_ns, mono = struct.unpack_from("<qqQ", data, 48)
        (first,) = struct.unpack_from("<Q", data, 1024 + 20 * 8)
        self.steps = max(struct.unpack_from("<Q", data, at)[0] for at in (4096, 4096 + 362 * 8))
        self.first_step = (self.began_ns + first - mono) * 1e-9 if first else None
        ends = [struct.unpack_from("<QQ", data, 12288 + 128 * i)[1] for i in range(min(self.steps, 512))]
        self.ends = [(self.began_ns + end - mono) * 1e-9 for end in ends]
        self.began = self.began_ns * 1e-9


class Cluster(EmbeddedCluster):
    def __init__(self, programs):
        super().__init__("recovery", 3, "--cpus", "2", "--kill-wait", "30")
        self.state = self.folder / "state"
        self.home = self.state / "shared/home/alice"
        self.programs = programs
        self.options += ["--prefix", self.folder / "prefix"]
        (self.folder / "prefix/bin").mkdir(parents=True)
        for name in ("lockstep-run", "text_lm"):
            shutil.copy2(programs / name, self.folder / "prefix/bin")

    def fill(self):
        for name in ("manpages", "manpages-heldout"):
            tokens(self.folder / name)
            run([self.programs / "lockstep-pack", "create", self.folder / name, "--token-bytes", "2", "--out",
                 self.state / "shared/data" / name], "lockstep-pack")  # fmt: skip
        for node in ("n1", "n2", "n3"):
            for name in ("records", "checkpoints"):
                (self.state / "machines" / node / "local" / name).mkdir()
                (self.state / "machines" / node / "local" / name).chmod(0o777)

    def on(self, node, *words):
        return self.call("exec", "--user", "root", "--node", node, "--", *words)

    def record(self, job, step, node, rank):
        return Record(self.state / f"machines/{node}/local/records/{job}.{step}/rank-{rank:06}.record")


class Job:
    def __init__(self, cluster, chosen, length):
        self.cluster, self.deadline = cluster, time.time() + chosen.wait
        script = SCRIPT.format(timeout=chosen.timeout, length=length, model=chosen.model, every=chosen.checkpoint_steps, restarts=10 + chosen.kills)
        (cluster.home / "job.sh").write_text(script)
        self.id = cluster.call("exec", "--", "sbatch", "--parsable", "--output=job-%j.out", "job.sh").strip()

    def output(self):
        path = self.cluster.home / f"job-{self.id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def log(self):
        path = self.cluster.home / f"restarts-{self.id}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, what, condition):
        while True:
            try:
                found = condition()
            except (OSError, struct.error):
                found = None
            if found:
                return found
            if time.time() > self.deadline:
                raise Failure(f"job {self.id}: no {what} in time: {self.output()[-600:]}")
            time.sleep(0.02)

    def count(self, key):
        return sum(key in line for line in self.log())

    def saved(self):
        names = (self.cluster.home / f"checkpoints-{self.id}").glob("step-*")
        return max((int(path.name[5:]) for path in names), default=0)


def signal_ranks(cluster, node, signal, *which):
    """All processes of the cluster are in one PID namespace; those of a node share its mount namespace."""
    cluster.on(node, "sh", "-c", f"pkill -{signal} {' '.join(which)} --ns $$ --nslist mnt -x text_lm || true")


def strike(cluster, fault):
    """Makes the fault. Returns what takes it away again."""
    if fault in ("rank", "stopped"):
        signal_ranks(cluster, "n2", "KILL" if fault == "rank" else "STOP", "--newest")
    elif fault in ("node", "first_node"):
        node = "n2" if fault == "node" else "n1"
        cluster.call("kill", node, "--all")
        return lambda: cluster.call("restart", node)
    elif fault == "exception":  # a damaged sample: each one is compared with its digest
        shard = next((cluster.state / "shared/data/manpages").glob("*.tar"))
        whole = shard.read_bytes()
        with shard.open("r+b") as file:
            file.write(bytes(len(whole)))
        return lambda: shard.open("r+b").write(whole)
    elif fault == "disk":  # of the node-local copies
        cluster.on("n2", "mount", "-t", "tmpfs", "-o", "size=1M,mode=1777", "tmpfs", "/mnt/local/checkpoints")
        return lambda: cluster.on("n2", "umount", "-l", "/mnt/local/checkpoints")
    return lambda: None


def measure(cluster, chosen, fault):
    job = Job(cluster, chosen, f"--steps {chosen.steps}")
    job.until("checkpoint", lambda: job.saved() >= 2 and cluster.record(job.id, 0, "n1", 0).steps >= 4)
    struck = time.time()
    heal = strike(cluster, fault)
    if fault == "first_node":
        job.until("requeue", lambda: " Restarts=1 " in cluster.call("exec", "--", "scontrol", "-o", "show", "job", job.id))
    else:
        job.until("failure", lambda: job.count("end"))
    dead = cluster.record(job.id, 0, "n1", 0)
    heal()
    starts = job.until("restart", lambda: (lines := [x for x in job.log() if "start" in x])[1:] and lines)
    failed = next((line["failed"] for line in job.log() if "end" in line), starts[1]["at"])
    # A requeued job numbers its steps from 0 again.
    step = 0 if fault == "first_node" else 1
    again = job.until("new step", lambda: (r := cluster.record(job.id, step, "n1", 0)).steps and r.began > struck and r)
    resumed = int(re.findall(r": (\d+) steps were done", job.output())[-1])
    yield {
        "bench": "recovery", "fault": fault, "ranks": 4, "nodes": 2, "detect_seconds": round(failed - struck, 2),
        "restart_seconds": round(starts[1]["at"] - failed, 2), "start_seconds": round(again.began - starts[1]["at"], 2),
        "load_seconds": round(again.first_step - again.began, 2), "first_step_seconds": round(again.ends[0] - again.first_step, 2),
        "step_seconds": round((dead.ends[-1] - dead.ends[0]) / (dead.steps - 1), 2), "steps_lost": dead.steps - resumed,
    }  # fmt: skip
    cluster.call("exec", "--", "scancel", job.id)
    job.until("idle node", lambda: set(cluster.call("exec", "--", "sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"})


def killed(cluster, chosen):
    """A training that is killed, and one that is not: what they end with."""
    ends = []
    for kills in (0, chosen.kills):
        job = Job(cluster, chosen, "--epochs 1")
        for kill in range(kills):
            job.until("start", lambda: job.count("start") > kill)
            time.sleep(random.uniform(0, 8))
            if "perplexity_after" in job.output():
                raise Failure(f"the training ended after {kill} kills")
            if kill % 2:
                signal_ranks(cluster, "n2", "KILL", "--newest")
            else:
                signal_ranks(cluster, random.choice(("n1", "n2")), "KILL")
            job.until("end", lambda: job.count("end") > kill)
        job.until("end", lambda: "perplexity_after" in job.output())
        model = job.until("model", (cluster.home / f"out-{job.id}/model.pt").read_bytes)
        ends.append((hashlib.sha256(model).hexdigest(), json.loads(job.output().splitlines()[-1]), job.count("start") - 1))
    (plain, _, _), (digest, result, restarts) = ends
    yield {"bench": "recovery", "fault": "kills", "ranks": 4, "restarts": restarts, "equal": plain == digest, "samples": result["samples"],
           "samples_seen_once": result["samples_seen_once"], "samples_not_seen": result["samples_not_seen"]}  # fmt: skip


def main():
    chosen = arguments()
    with Cluster(pathlib.Path(chosen.programs).resolve()) as cluster:
        for fault in chosen.faults if not chosen.kills else ():
            say(fault)
            program.show(measure(cluster, chosen, fault))
        if chosen.kills:
            program.show(killed(cluster, chosen))


if __name__ == "__main__":
    program.run("bench_recovery", main)
