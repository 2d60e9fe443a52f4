#!/usr/bin/env python3
"""Times what a failure costs under lockstep-run: text_lm with 20 million parameters on an embedded cluster of three nodes,
one of them a spare, with two ranks on each node. One job for each fault. The parts follow each other: detect (until srun's
first message about a failed task), restart (until the next srun), staging, start (of the program), load, first_step.
The last line compares a smaller model under lockstep-run and under srun, without a fault."""

import os
import pathlib
import statistics
import time

import program
from ranks import Failure, say
from recovery_jobs import Cluster, Job

MODEL = "text_lm --cap 64 --json --deterministic"
SAVING = "--checkpoint checkpoints-$SLURM_JOB_ID --checkpoint-steps {every}"
LOCAL = " --checkpoint-local /mnt/local/checkpoints"
FAULTS = ("rank", "node", "first_node", "stopped", "exception", "disk")
WITNESS = {"first_node": ("n2", 2)}  # a node that is not lost, and its first rank


def arguments():
    parser = program.parser("bench_recovery", __doc__)
    parser.add_argument("--faults", default=",".join((*FAULTS, "none")), help="some of these (default: all)")
    parser.add_argument("--checkpoint-steps", type=int, default=1)
    parser.add_argument("--local", action="store_true", help="write checkpoints to the node's disk first, as in the case disk")
    parser.add_argument("--timeout", type=int, default=20, help="LOCKSTEP_TIMEOUT, which finds a stopped rank")
    parser.add_argument("--turns", type=int, default=5, help="of lockstep-run and srun without a fault")
    parser.add_argument("--steps", type=int, default=100, help="of each of these turns")
    parser.add_argument("--wait", type=int, default=400, help="seconds that one job may take")
    chosen = parser.parse_args()
    chosen.size, chosen.smaller = "--width 512 --layers 6 --heads 8", "--width 256 --layers 4 --heads 4"
    if chosen.quick:
        chosen.size, chosen.smaller, chosen.faults, chosen.turns, chosen.steps = "", "", "rank,none", 1, 20
    chosen.faults = chosen.faults.split(",")
    if unknown := set(chosen.faults) - {*FAULTS, "none"}:
        parser.error("--faults: unknown: " + ", ".join(sorted(unknown)))
    return chosen


def fail(message):
    raise Failure(message)


def overwrite(files):
    """Overwrites the files with zeros, in place. Returns what puts their bytes back."""
    before = [(file, file.read_bytes(), file.stat()) for file in files]
    for file, data, _ in before:
        with file.open("r+b") as opened:
            opened.write(bytes(len(data)))

    def restore():
        for file, data, status in before:
            with file.open("r+b") as opened:
                opened.write(data)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    return restore


def strike(cluster, fault):
    """Makes the fault. Returns what takes it away again."""
    if fault in ("rank", "stopped"):
        cluster.signal_ranks("n2", "KILL" if fault == "rank" else "STOP", "--newest")
    elif fault in ("node", "first_node"):
        node = "n2" if fault == "node" else "n1"
        cluster.call("kill", node, "--all")
        return lambda: cluster.call("restart", node)
    elif fault == "exception":  # damaged samples: each one is compared with its digest
        shards = list(cluster.disk("n2").glob("lockstep/*/objects/*/**/*.tar"))
        return overwrite(shards) if shards else fail("n2 has no staged shards")
    elif fault == "disk":  # that of the first rank, which writes the model
        cluster.on("n1", "mount", "-t", "tmpfs", "-o", "size=1M,mode=1777", "tmpfs", "/mnt/local/checkpoints")
        return lambda: cluster.on("n1", "umount", "-l", "/mnt/local/checkpoints")
    return lambda: None


def recover(cluster, chosen, fault):
    local = chosen.local or fault == "disk"
    saving = SAVING.format(every=chosen.checkpoint_steps) + (LOCAL if local else "")
    command = f"lockstep-run --pause 0 --spares 1 ${{start[@]}} {MODEL} {chosen.size} --steps 100000 {saving}"
    job = Job(cluster, command, 3, chosen.wait, chosen.timeout)
    node, rank = WITNESS.get(fault, ("n1", 0))
    step_of = lambda step: lambda: (found := cluster.record(job.id, step, node, rank)) and found.steps >= 4
    job.until("fourth step", step_of(0))
    struck = time.time()
    heal = strike(cluster, fault)
    if fault == "first_node":  # with --no-kill, Slurm goes on with the job, which has lost its script
        job.until("lost node", lambda: job.state()[1] or "down" in cluster.slurm("sinfo", "-h", "-N", "-n", "n1", "-o", "%T"), pause=0.2)
        heal()
        cluster.slurm("scontrol", "requeue", job.id)
        job.until("requeue", lambda: job.state()[1], pause=0.2)
        failed = time.time()
    else:
        failed = job.until("end", lambda: job.lines("end"))[0]["failed"]
    dead = cluster.record(job.id, 0, node, rank)
    if fault not in ("node", "first_node"):
        heal()
    again = job.until("load", lambda: job.lines("loaded")[1:])[0]
    start = job.lines("start")[1]["at"]
    new = lambda: (found := cluster.record(job.id, 1, node, rank)) and found.ends and found.ends[0] > struck and found
    first_step = job.until("new step", new).ends[0]
    staging = cluster.staging_seconds(job.id, 1, node)  # a requeued job goes on counting its steps
    lasted = {"detect": failed - struck, "restart": start - failed, "staging": staging,
              "start": again["at"] - again["seconds"] - start - staging, "load": again["seconds"],
              "first_step": first_step - again["at"], "all": first_step - struck,
              "step": (dead.ends[-1] - dead.ends[0]) / (len(dead.ends) - 1)}  # fmt: skip
    yield {"bench": "recovery", "fault": fault, "ranks": 4, "nodes": 2, **{f"{part}_seconds": round(took, 3) for part, took in lasted.items()},
           "local": local, "steps_lost": dead.steps - again["loaded"]}  # fmt: skip
    cluster.slurm("scancel", job.id)
    if fault == "node":
        heal()
    job.until("idle nodes", cluster.all_idle, pause=0.2)


def compare(cluster, chosen):
    """Turns of srun and lockstep-run: time of a step, from the start to the end, and processor time of the launcher. An idle
    launcher costs less than the noise of a step, so its processor time is the surer number."""
    program_line = f"${{start[@]}} {MODEL} {chosen.smaller} --steps {chosen.steps}"
    commands = ["TIMEFORMAT='took %R %U %S'"]
    for _ in range(chosen.turns):
        commands += [f"time {launcher} {program_line}" for launcher in ("srun", "lockstep-run")]
    job = Job(cluster, "\n".join(commands), 2, chosen.wait + 2 * chosen.turns * chosen.steps)
    job.until("end", job.has_ended, pause=0.5)
    times = [[float(number) for number in line.split()[1:]] for line in job.output().splitlines() if line.startswith("took ")]
    turns = []
    for step, (wall, user, system) in enumerate(times):
        record = cluster.record(job.id, step, "n1", 0) or fail(f"job {job.id}: step {step} has no record: {job.output()[-600:]}")
        ends = record.ends[2:]  # the first steps are slower
        turns.append((statistics.median(b - a for a, b in zip(ends, ends[1:])), wall, user + system))
    added = [[b - a for a, b in zip(*pair)] for pair in zip(turns[::2], turns[1::2])]
    step, wall, processor = (statistics.median(column) for column in zip(*added))
    plain_step, plain_wall, _ = (statistics.median(column) for column in zip(*turns[::2]))
    yield {"bench": "recovery", "fault": "none", "ranks": 4, "nodes": 2, "turns": chosen.turns, "steps": chosen.steps, "step_seconds": round(plain_step, 4),
           "overhead": round(step / plain_step, 4), "wall_seconds": round(plain_wall, 2), "added_wall_seconds": round(wall, 3),
           "added_processor_seconds": round(processor, 3)}  # fmt: skip


def main():
    chosen = arguments()
    with Cluster(pathlib.Path(chosen.programs).resolve(), 3, 600) as cluster:
        for fault in chosen.faults:
            say(fault)
            program.show(compare(cluster, chosen) if fault == "none" else recover(cluster, chosen, fault))


program.run("bench_recovery", main)
