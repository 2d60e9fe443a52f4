"""Trainings under lockstep-run on an embedded cluster, for bench_recovery and bench_kills: text_lm on two nodes with two
ranks each, with staged data, records, and a line in restarts-JOB.jsonl for each start, load and end."""

import base64
import json
import os
import shutil
import struct
import time

from ranks import EmbeddedCluster, Failure, run

PROGRAMS = ("lockstep-report", "lockstep-run", "lockstep-stage", "lockstep-pin", "text_lm")
RECORDS = "/run/lockstep/records/6001"  # of alice
# {folder} is kept from job to job; the ranks of a node share all of its cores.
SCRIPT = """#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=2 --cpus-per-task={cores} --no-kill --requeue --open-mode=append --metrics=on
#SBATCH --stage=/mnt/shared/data/manpages,/mnt/shared/data/manpages-heldout
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 LOCKSTEP_TIMEOUT={timeout} LOCKSTEP_REPORT_DIR=$PWD/report-$SLURM_JOB_ID
mkdir -p "$LOCKSTEP_REPORT_DIR"
start=(--mpi=pmix --cpu-bind=none --cpus-per-task={cores})
{commands}
"""


def write_samples(folder, count):
    """Raw files of tokens, for lockstep-pack."""
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"{i}.tokens").write_bytes(b"".join(struct.pack("<H", (3 * i + t) % 50) for t in range(20 + i % 40)))


class Record:
    """Parts of a rank's record (exporters/record/record.h)."""

    def __init__(self, data):
        _, began_unix, began = struct.unpack_from("<qqQ", data, 48)
        self.steps = max(struct.unpack_from("<Q", data, at)[0] for at in (4096, 4096 + 363 * 8))
        ends = [struct.unpack_from("<Q", data, 12288 + 136 * i + 8)[0] for i in range(min(self.steps, 512))]
        self.ends = sorted(1e-9 * (began_unix + end - began) for end in ends)  # of the last 512 steps


class Cluster(EmbeddedCluster):
    """Nodes n1, n2, …, with this build's programs and plugin, and data for `samples` samples."""

    def __init__(self, programs, nodes, samples):
        super().__init__("recovery", nodes, "--kill-wait", "30")
        self.state, self.programs, self.samples = self.folder / "state", programs, samples
        self.home = self.state / "shared/home/alice"
        prefix = self.folder / "prefix"
        self.options += ["--prefix", prefix]
        (prefix / "bin").mkdir(parents=True)
        (prefix / "lib/lockstep").mkdir(parents=True)
        for name in PROGRAMS:
            shutil.copy2(programs / name, prefix / "bin")
        shutil.copy2(programs.parent / "lib/lockstep.so", prefix / "lib/lockstep")

    def fill(self):
        (self.state / "shared/data").mkdir()
        for name, count in (("manpages", self.samples), ("manpages-heldout", 8)):
            write_samples(self.folder / name, count)
            run([self.programs / "lockstep-pack", "create", self.folder / name, "--token-bytes", "2",
                 "--out", self.state / "shared/data" / name], "lockstep-pack")  # fmt: skip
        for node in range(1, self.nodes + 1):
            local = self.disk(f"n{node}") / "checkpoints"
            local.mkdir()
            local.chmod(0o777)

    def disk(self, node):
        return self.state / "machines" / node / "local"

    def slurm(self, *words):
        return self.call("exec", "--", *words).strip()

    def on(self, node, *words):
        return self.call("exec", "--user", "root", "--node", node, "--", *words)

    def record(self, job, step, node, rank):
        """None before there is one."""
        try:
            text = self.on(node, "base64", "-w0", f"{RECORDS}/{job}.{step}/rank-{rank:06}.record")
            return Record(base64.b64decode(text))
        except (Failure, struct.error):
            return None

    def staging_seconds(self, job, step, node):
        return sum(source["seconds"] for source in json.loads(self.on(node, "cat", f"{RECORDS}/{job}.{step}/staging.json"))["sources"])

    def signal_ranks(self, node, signal, *which):
        """Whether a rank was there. All machines share a PID namespace; processes of a node share its mount namespace."""
        answer = self.on(node, "sh", "-c", f"pkill -{signal} {' '.join(which)} --ns $$ --nslist mnt -x text_lm && echo found || true")
        return "found" in answer

    def all_idle(self):
        return set(self.slurm("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}


class Job:
    def __init__(self, cluster, commands, nodes, wait, timeout=20):
        """`wait`: seconds that the job may take."""
        self.cluster, self.deadline = cluster, time.time() + wait
        script = SCRIPT.format(commands=commands, nodes=nodes, timeout=timeout, cores=max(1, os.cpu_count() // 2))
        (cluster.home / "job.sh").write_text(script)
        self.id = cluster.slurm("sbatch", "--parsable", "--output=job-%j.out", "job.sh")

    def output(self):
        path = self.cluster.home / f"job-{self.id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def lines(self, key):
        """The lines of the log that have this key: start, loaded or end."""
        path = self.cluster.home / f"report-{self.id}/restarts-{self.id}.jsonl"
        complete = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        return [line for line in map(json.loads, complete) if key in line]

    def state(self):
        """Slurm's word, such as RUNNING, and how often the job was queued again."""
        shown = self.cluster.slurm("scontrol", "-o", "show", "job", self.id)
        facts = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        return facts["JobState"], int(facts["Restarts"])

    def has_ended(self):
        """Also if a lost node still has to confirm it."""
        return self.state()[0] not in ("PENDING", "RUNNING", "CONFIGURING")

    def until(self, what, condition, pause=0.02):
        """Waits for a true value of the condition, with pauses between two looks, and returns it."""
        while True:
            found = condition()
            if found:
                return found
            if time.time() > self.deadline:
                raise Failure(f"job {self.id}: no {what} in time; its output ends with: {self.output()[-600:]}")
            time.sleep(pause)
