#!/usr/bin/env python3
"""Trains a language model with Lockstep (planner, loader, DistributedDataParallel) and, with --peers, with PyTorch
(DistributedDataParallel over Gloo, padded batches), and prints real tokens per second and the loss on held-out pages.

All programs of a width train the same model on the same pages, in turns of equally many tokens. PyTorch's batches are
random ones, padded to the longest page, or sorted by length as in fairseq. With --techniques it compares Lockstep's
program with variants of itself instead."""

import contextlib
import json
import os
import statistics
import subprocess
import sys

import main_job_data
import program
import ranks as starting
from ranks import Failure, say

# What --techniques compares: the technique, whether the first program uses it, the options and variables of the other.
TECHNIQUES = [
    ("packed batches instead of padded rows", True, ["--padded"], {}),
    ("4 micro-batches per step, 3 of them under no_sync", False, ["--accumulate", "4"], {}),
    ("bfloat16 autocast", False, ["--bf16"], {}),
    ("activation checkpointing", False, ["--activation-checkpointing"], {}),
    ("FusedAdamW instead of torch::optim::AdamW", True, ["--optimizer", "libtorch"], {}),
    ("DistributedOptimizer", False, ["--optimizer", "distributed"], {}),
    ("gradients as views of the buckets", True, ["--copy-gradients"], {}),
    ("bf16_compress_hook", False, ["--compress"], {}),
    ("heap that keeps its pages (LOCKSTEP_MALLOC)", True, [], {"LOCKSTEP_MALLOC": "off"}),
    ("records of the step times (LOCKSTEP_METRICS)", True, [], {"LOCKSTEP_METRICS": "off"}),
]


def arguments():
    parser = program.parser("bench_main_job", __doc__)
    parser.add_argument("--peers", action="store_true", help="run PyTorch's programs too, where it is installed")
    parser.add_argument("--techniques", action="store_true", help="compare techniques of Lockstep instead")
    parser.add_argument("--widths", default="128,256,512", help="of the model (default 128,256,512)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--cap", type=int, default=4096, help="tokens of a micro-batch, padding included (default 4096)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each program; the first one is not timed")
    parser.add_argument("--round-tokens", type=int, default=16_000, help="of a turn, all ranks together")
    parser.add_argument("--pages", type=int, default=3000, help="to train on")
    parser.add_argument("--allocator", default="tuned", choices=list(starting.PEER_ALLOCATOR), help="on both sides")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.widths, chosen.layers, chosen.vocabulary, chosen.cap = "64", 1, 256, 1024
        chosen.rounds, chosen.round_tokens, chosen.pages = 3, 6000, 100
    chosen.widths = [int(word) for word in chosen.widths.split(",")]
    if min([*chosen.widths, chosen.layers, chosen.ranks, chosen.round_tokens, chosen.pages]) < 1:
        parser.error("numbers must be at least 1")
    if chosen.rounds < 2:
        parser.error("--rounds must be at least 2, because the first round is not timed")
    return chosen


class Program:
    """Ranks that work in turns with those of other programs: they wait until the turn file has their name and the
    number of the turn, and answer with a JSON line."""

    def __init__(self, site, name, command, ranks, environment):
        self.name = name
        self.turns = 0
        self.folder = site.folder
        self.errors = site.folder / f"{name}.err"
        variables = {**os.environ, **starting.THREADS, **environment}
        words = [str(word) for word in [*command, "--name", name, "--turn-file", self.folder / "turn"]]
        with open(self.errors, "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                starting.mpirun(words, ranks),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables,
                text=True,
                preexec_fn=program.end_with_parent,
            )

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        # Asked, not killed: mpirun then ends its ranks.
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def turn(self):
        new = self.folder / "turn.new"
        new.write_text(f"{self.name} {self.turns}", encoding="ascii")
        new.replace(self.folder / "turn")
        self.turns += 1
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        said = [line for line in self.errors.read_text(encoding="utf-8").splitlines() if line.strip()]
        raise Failure(f"{self.name}: ended with exit code {self.process.wait()}: " + " | ".join(said[-6:]))

    def finish(self):
        if self.process.wait() != 0:
            raise Failure(f"{self.name}: exit code {self.process.returncode}")


def sized(chosen, width):
    options = {"vocabulary": chosen.vocabulary, "width": width, "layers": chosen.layers, "cap": chosen.cap}
    options["heads"] = max(1, width // 64)
    options["lr"] = 8e-3 * 128 / width
    options["rounds"], options["round-tokens"] = chosen.rounds, chosen.round_tokens
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def lockstep(site, chosen, width, name, options, environment):
    command = site.program("bench_main_job_rank") + sized(chosen, width) + options
    command += ["--data", site.folder / "train.pack", "--heldout", site.folder / "heldout.pack"]
    return Program(site, name, command, chosen.ranks, {**starting.LOCKSTEP_ALLOCATOR[chosen.allocator], **environment})


def pytorch(site, chosen, width, name, batches, attention, step_tokens):
    command = [sys.executable, starting.PEERS / "main_job_rank.py", "--store", f"file://{site.folder}/store.{name}"]
    command += ["--batches", batches, "--attention", attention, *sized(chosen, width)]
    command += ["--step-tokens", step_tokens]
    command += ["--data", site.folder / "train", "--heldout", site.folder / "heldout"]
    return Program(site, name, command, chosen.ranks, starting.PEER_ALLOCATOR[chosen.allocator])


def peers(chosen):
    """Of each of PyTorch's programs its name, batches and attention."""
    found = starting.peers(chosen, "bench_main_job", ("random", "random", "explicit"), ("sorted", "sorted", "explicit"))
    if not found:
        return []
    test = "import torch; exit(not hasattr(torch.nn.functional, 'scaled_dot_product_attention'))"
    if subprocess.run([sys.executable, "-c", test], check=False).returncode == 0:
        found += [("random_fused", "random", "fused"), ("sorted_fused", "sorted", "fused")]
    return found


def generation(version):
    return version.split(".")[:2]


def begin(running, name, started):
    """Starts one more program; its first turn must find the same untrained model as the others did."""
    first = started.turn()
    for other, line in running.values():
        if generation(line["torch"]) != generation(first["torch"]):
            raise Failure(f"{other.name} uses LibTorch {line['torch']}, {name} {first['torch']}: set PYTHONPATH")
        if line["parameters"] != first["parameters"] or abs(line["loss"] - first["loss"]) > 1e-4:
            raise Failure(f"{other.name} and {name} do not train the same model: {line}, {first}")
    running[name] = (started, first)


def train(chosen, running):
    """Of each program the numbers of its turns, and of its last turn."""
    turns = {name: [] for name in running}
    for number in range(chosen.rounds):
        for name, (started, _) in running.items():
            turns[name].append(started.turn())
        say(f"round {number + 1} of {chosen.rounds}")
    last = {name: started.turn() for name, (started, _) in running.items()}
    for started, _ in running.values():
        started.finish()
    return turns, last


def total(turns, key):
    """Without the first turn: it allocates memory."""
    return sum(turn[key] for turn in turns[1:])


def rates(turns):
    return [turn["tokens"] / turn["seconds"] for turn in turns[1:]]


def result(chosen, first, turns, last):
    return {
        "ranks": chosen.ranks,
        "threads": first["threads"],
        "torch": first["torch"],
        "layers": chosen.layers,
        "cap": chosen.cap,
        "parameters": first["parameters"],
        "allocator": chosen.allocator,
        "rounds": chosen.rounds,
        "steps": sum(turn["steps"] for turn in turns),
        "tokens": int(sum(turn["tokens"] for turn in turns)),
        "milliseconds": round(1e3 * total(turns, "seconds") / total(turns, "steps"), 2),
        "tokens_per_second": round(statistics.median(rates(turns)), 1),
        "fill": round(total(turns, "tokens") / total(turns, "slots"), 4),
        "loss_before": round(first["loss"], 4),
        "loss": round(last["loss"], 4),
        "memory_bytes": int(last["memory_bytes"]),
    }


def measure_width(site, chosen, width):
    compared = peers(chosen)
    running = {}
    with contextlib.ExitStack() as stack:
        begin(running, "planned", stack.enter_context(lockstep(site, chosen, width, "planned", [], {})))
        step_tokens = running["planned"][1]["step_tokens"]
        for name, *form in compared:
            begin(running, name, stack.enter_context(pytorch(site, chosen, width, name, *form, step_tokens)))
        turns, last = train(chosen, running)
    of_peer = {name: (batches, attention) for name, batches, attention in compared}
    for name, (_, first) in running.items():
        batches, attention = of_peer.get(name, ("planned", "explicit"))
        line = {"bench": "main_job", "implementation": "pytorch" if name in of_peer else "lockstep"}
        line.update(batches=batches, attention=attention, width=width)
        line.update(result(chosen, first, turns[name], last[name]))
        if name in of_peer:
            # Turns of one round stand beside each other in time.
            pairs = zip(rates(turns["planned"]), rates(turns[name]))
            line["lockstep_over_this"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 3)
        yield line


def measure_techniques(site, chosen, width):
    running = {}
    with contextlib.ExitStack() as stack:
        begin(running, "all", stack.enter_context(lockstep(site, chosen, width, "all", [], {})))
        for number, (_, _, options, environment) in enumerate(TECHNIQUES):
            name = f"technique{number}"
            begin(running, name, stack.enter_context(lockstep(site, chosen, width, name, options, environment)))
        turns, last = train(chosen, running)
    base = result(chosen, running["all"][1], turns["all"], last["all"])
    for number, (technique, used, _, _) in enumerate(TECHNIQUES):
        name = f"technique{number}"
        other = result(chosen, running[name][1], turns[name], last[name])
        for state, numbers in (("on", base if used else other), ("off", other if used else base)):
            yield {"bench": "main_job_technique", "technique": technique, "state": state, "width": width, **numbers}


def main():
    chosen = arguments()
    with starting.site(chosen.programs, 1) as site:
        say("making the data")
        main_job_data.make(site.folder, chosen.programs, chosen.pages, chosen.cap, chosen.vocabulary)
        for width in chosen.widths:
            measure = measure_techniques if chosen.techniques else measure_width
            program.show(measure(site, chosen, width))


if __name__ == "__main__":
    program.run("bench_main_job", main)
