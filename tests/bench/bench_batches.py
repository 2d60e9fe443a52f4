#!/usr/bin/env python3
"""Trains a language model under PyTorch's DistributedDataParallel with the batches of lockstep.BatchSampler, and prints real tokens
per second beside those of random and of length-sorted padded batches. The three programs differ in their batches only, and work
in turns.

The plain programs accumulate batches until their mean step has as many tokens as ours.

With --model it trains nothing, and prints the ratios of the batches' costs: a step takes as long as the costliest rank, and a row
padded to L tokens costs 6 * width * L + L * L. Without _accumulated each step of the plain program is one batch of each rank."""

import os
import statistics
import sys
import types

import bench_main_job as main_job
import main_job_data
import program
import ranks as starting

sys.path[:0] = [str(starting.PEERS), str(starting.ROOT / "exporters/python")]


def arguments():
    parser = program.parser("bench_batches", __doc__)
    parser.add_argument("--model", action="store_true", help="print the table of the cost model instead")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each program; the first one is not timed")
    parser.add_argument("--round-tokens", type=int, default=16_000, help="of a turn, all ranks together")
    parser.add_argument("--pages", type=int, default=3000)
    chosen = parser.parse_args()
    chosen.cap, chosen.layers, chosen.vocabulary, chosen.allocator = 4096, 2, 4096, "tuned"
    if chosen.quick:
        chosen.width, chosen.layers, chosen.vocabulary, chosen.cap = 64, 1, 256, 1024
        chosen.rounds, chosen.round_tokens, chosen.pages = 3, 6000, 100
    return chosen


def measure(site, chosen):
    main_job_data.make(site.folder, chosen.programs, chosen.pages, chosen.cap, chosen.vocabulary)
    os.environ["PATH"] = f"{os.path.abspath(chosen.programs)}:{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = ":".join([str(starting.ROOT / "exporters/python"), os.environ.get("PYTHONPATH", "")]).rstrip(":")
    step_tokens = 0.95 * chosen.ranks * chosen.cap
    running = {}
    with main_job.contextlib.ExitStack() as stack:
        for batches in ("lockstep", "random", "sorted"):
            started = main_job.pytorch(site, chosen, chosen.width, batches, batches, "explicit", step_tokens)
            main_job.begin(running, batches, stack.enter_context(started))
        turns, last = main_job.train(chosen, running)
    for batches, (_, first) in running.items():
        line = {"bench": "batches", "batches": batches, "width": chosen.width}
        line.update(main_job.result(chosen, first, turns[batches], last[batches]))
        pairs = zip(main_job.rates(turns["lockstep"]), main_job.rates(turns[batches]))
        line["lockstep_over_this"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 3)
        yield line


def padded_cost(batch, lengths, width):
    longest = max((lengths[page] for page in batch), default=0)
    return len(batch) * longest * (6 * width + longest)


def mean_cost(steps, lengths, width):
    """Per token: of each step that of its costliest rank."""
    costs = [max(sum(padded_cost(batch, lengths, width) for batch in rank) for rank in step) for step in steps]
    tokens = sum(lengths[page] for step in steps for rank in step for batch in rank for page in batch)
    return sum(costs) / tokens


def planned_steps(lengths, chosen, width, ranks):
    import lockstep

    parts = []
    for rank in range(ranks):
        sampler = lockstep.BatchSampler(lengths, cap=chosen.cap, cost=(6 * width, 1), padded=True, rank=rank, world_size=ranks)
        parts.append([line["batches"] for line in sampler._lines()])
    return list(zip(*parts))


def plain_steps(lengths, chosen, batches, ranks, accumulates):
    import main_job_rank as peer

    options = types.SimpleNamespace(batches=batches, seed=1, cap=chosen.cap, step_tokens=0.95 * ranks * chosen.cap)
    made = peer.batches_of(lengths, options, 0)
    if accumulates:
        return peer.steps_of(made, lengths, options, ranks)
    return [[[batch] for batch in made[begin : begin + ranks]] for begin in range(0, len(made) - ranks + 1, ranks)]


def model(chosen):
    os.environ["PATH"] = f"{os.path.abspath(chosen.programs)}:{os.environ['PATH']}"
    lengths = main_job_data.all_lengths(chosen.cap)
    for ranks in (2, 4, 8):
        for width in (128, 512, 4096):
            ours = mean_cost(planned_steps(lengths, chosen, width, ranks), lengths, width)
            line = {"bench": "batches_model", "ranks": ranks, "width": width, "cap": chosen.cap}
            for batches in ("random", "sorted"):
                for accumulates in (False, True):
                    theirs = mean_cost(plain_steps(lengths, chosen, batches, ranks, accumulates), lengths, width)
                    key = f"lockstep_over_{batches}" + ("_accumulated" if accumulates else "")
                    line[key] = round(theirs / ours, 2)
            yield line


def main():
    chosen = arguments()
    if chosen.model:
        program.show(model(chosen))
        return
    missing = starting.peer_is_missing()
    if missing:
        print(f"bench_batches: skipped: {missing}", file=sys.stderr)
        sys.exit(77)
    with starting.site(chosen.programs, 1) as site:
        program.show(measure(site, chosen))


if __name__ == "__main__":
    program.run("bench_batches", main)
