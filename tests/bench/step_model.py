#!/usr/bin/env python3
"""Predicts the time of a training step from 2 to 4,096 ranks, from measurements on one machine, as one JSON object.

The step without communication takes as long as it was measured, and its buckets are ready at the times measured. A
bucket of n bytes costs

  on a node       a + b n               measured for each number of ranks; done by the training threads: never hidden
  between nodes   bench_collective_model plays the communicator's own schedule of messages for all nodes; a bucket
                                        starts when it is ready and the one before it is sent; a part h of the time
                                        runs beside backward and is hidden as far as backward lasts
  pairwise        2 (N-1) A + 2 (N-1)/N n B   reduce-scatter and all-gather among N nodes, one message after the other
  flat            the same, but among all ranks, with the ranks of a node sharing its network

and the slowest of P ranks is s sqrt(2 ln P) later than the mean. A, B, a and b are fitted to bench_allreduce, h to the
step of 32 tokens on two nodes, s to the spread of traced steps. A cluster has another network than this machine:
--latency-us and --gbit describe it, and h is 1 there, because its adapters need no core.

Assumptions: the memory bandwidth of a node grows with its ranks; no two jobs share the network; the batch of a rank
does not depend on the number of ranks."""

import argparse
import json
import math
import statistics
import subprocess

from lines import only, read, select


def fit(points):
    """Fits milliseconds = a + b bytes by least squares of relative errors, with a and b at least 0."""
    import numpy
    from scipy.optimize import nnls

    sizes, times = (numpy.array(column, dtype=float) for column in zip(*points))
    scale = sizes.max()
    (a, b), _ = nnls(numpy.stack([1 / times, sizes / scale / times], axis=1), numpy.ones(len(times)))
    errors = numpy.abs((a + b * sizes / scale) / times - 1)
    return {"a_ms": float(a), "b_ms_per_byte": float(b / scale), "median_error": float(numpy.median(errors))}


class Exchange:
    """The times of the communicator's schedules between nodes, played by bench_collective_model."""

    def __init__(self, program):
        self.program = program
        self.known = {}

    def milliseconds(self, nodes, ranks_on_node, size, network):
        gbit = 8e3 / (network["ms_per_byte"] * 1e9)
        key = (nodes, ranks_on_node, size, network["latency_ms"], gbit)
        if key not in self.known:
            command = [self.program, "--json", "--nodes", nodes, "--ranks-per-node", ranks_on_node, "--sizes", size]
            command += ["--latency-us", 1e3 * network["latency_ms"], "--gbit", gbit]
            done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
            self.known[key] = 1e3 * json.loads(done.stdout)["seconds"]
        return self.known[key]


class Model:
    def __init__(self, lines, cores, exchange):
        self.lines = lines
        self.cores = cores
        self.exchange = exchange
        self.on_node = {}
        for ranks in sorted({line["ranks"] for line in select(lines, bench="allreduce", nodes=1)}):
            if ranks > 1:
                self.on_node[ranks] = fit(self.measured_sizes(1, ranks))
        self.trace = {}
        for tokens in sorted({line["tokens"] for line in select(lines, bench="ddp_trace", nodes=1)}):
            self.trace[tokens] = self.read_trace(select(lines, bench="ddp_trace", nodes=1, tokens=tokens))
        if not self.trace or cores not in self.on_node:
            raise SystemExit("the input must have lines of bench_allreduce, and of bench_ddp --measure step,trace")
        between = self.measured_sizes(2, 2)
        self.network = None
        if between:
            found = fit(between)
            # Among two nodes: 2 messages, n bytes.
            self.network = {"latency_ms": found["a_ms"] / 2, "ms_per_byte": found["b_ms_per_byte"], "hidden": 1.0}
            self.network["median_error"] = found["median_error"]
            self.network["hidden"] = self.fit_hidden()

    def measured_sizes(self, nodes, ranks):
        found = select(
            self.lines, bench="allreduce", implementation="lockstep", registered=True, nodes=nodes, ranks=ranks
        )
        return [(line["bytes"], line["milliseconds"]) for line in found]

    def measured_step(self, mode, tokens, ranks, nodes):
        line = only(
            self.lines,
            bench="ddp",
            implementation="lockstep",
            mode=mode,
            tokens=tokens,
            ranks=ranks,
            nodes=nodes,
            allocator="tuned",
        )
        return line["milliseconds"] if line else None

    def measured_steps(self):
        """Synchronised steps on one node, and as 0 ranks the step without communication."""
        rows = []
        for tokens in self.trace:
            rows.append({"tokens": tokens, "ranks": 0, "milliseconds": self.compute(tokens)})
            for ranks in (1, 2):
                if time := self.measured_step("sync", tokens, ranks, 1):
                    rows.append({"tokens": tokens, "ranks": ranks, "milliseconds": time})
        return rows

    @staticmethod
    def read_trace(lines):
        ready = [
            statistics.median(times) for times in zip(*([b["ready_ms"] for b in line["buckets"]] for line in lines))
        ]
        ended = [line["backward_ended_ms"] for line in lines]
        after = statistics.median(line["step_ms"] - line["finished_ms"] for line in lines)
        end = statistics.median(ended)
        # The middle half of the steps: a step that another process has disturbed says nothing about the job.
        quarters = statistics.quantiles(ended, n=4) if len(ended) >= 4 else [end, end, end]
        return {
            "bytes": [bucket["bytes"] for bucket in lines[0]["buckets"]],
            "ready": [time / end for time in ready],  # parts of forward and backward
            "backward": end / (end + after),  # the rest of the step zeroes gradients
            "spread": (quarters[2] - quarters[0]) / 1.349 / end,
        }

    def compute(self, tokens, ranks=None):
        """Milliseconds of a step without communication: of `ranks` ranks on the measured machine, or by default of
        ranks that have a core each."""
        ranks = ranks or self.cores
        measured = self.measured_step("bare", tokens, min(ranks, self.cores), 1)
        if measured is None:
            raise SystemExit(f"no bare step of {tokens} tokens on {min(ranks, self.cores)} ranks was measured")
        return measured * max(1.0, ranks / self.cores)

    def fit_hidden(self):
        tokens = min(self.trace)
        measured = self.measured_step("sync", tokens, 2, 2)
        alone = self.measured_step("bare", tokens, 2, 2)
        if not measured or not alone:
            return 1.0
        parts = [part / 100 for part in range(101)]
        return min(
            parts, key=lambda h: abs(self.step(tokens, 2, 1, {**self.network, "hidden": h}, compute=alone) - measured)
        )

    def step(self, tokens, ranks, ranks_on_node, network, way="hierarchical", compute=None, on_node=None):
        """Milliseconds of a synchronised step. `compute` and `on_node` replace the values of ranks with a core each."""
        trace = self.trace[tokens]
        nodes = ranks // ranks_on_node
        alone = compute or self.compute(tokens)
        node = on_node or self.on_node[self.cores]
        backward = alone * trace["backward"]
        # Of the other ways: messages one after the other, and how often a bucket's bytes pass a node's network.
        messages = 2 * ((ranks if way == "flat" else nodes) - 1)
        passes = 2 * (nodes - 1) / nodes * (ranks_on_node if way == "flat" else 1)
        reduced, in_the_way, free_at = 0.0, 0.0, 0.0
        for size, ready in zip(trace["bytes"], trace["ready"]):
            if ranks_on_node > 1:
                reduced += node["a_ms"] + node["b_ms_per_byte"] * size
            sent = 0.0
            if nodes > 1 and way == "hierarchical":
                sent = self.exchange.milliseconds(nodes, ranks_on_node, size, network)
            elif nodes > 1:
                sent = messages * network["latency_ms"] + passes * size * network["ms_per_byte"]
            hidden = network["hidden"] if nodes > 1 else 0.0
            in_the_way += (1 - hidden) * sent
            free_at = max(free_at, ready * backward + reduced) + hidden * sent
        late = trace["spread"] * alone * math.sqrt(2 * math.log(ranks))
        return max(backward + reduced, free_at) + in_the_way + alone - backward + late

    def check(self):
        """Returns measured and predicted values side by side."""
        rows = []
        for line in select(self.lines, bench="ddp", implementation="lockstep", mode="sync", allocator="tuned"):
            ranks, nodes, tokens = line["ranks"], line["nodes"], line["tokens"]
            if tokens not in self.trace or (nodes > 1 and not self.network):
                continue
            # The nodes of one machine share its cores.
            compute = self.measured_step("bare", tokens, ranks, nodes) if nodes > 1 else None
            compute = compute or self.compute(tokens, ranks)
            predicted = self.step(
                tokens, ranks, ranks // nodes, self.network, compute=compute, on_node=self.on_node.get(ranks)
            )
            rows.append(
                {
                    "tokens": tokens,
                    "ranks": ranks,
                    "nodes": nodes,
                    "measured_ms": line["milliseconds"],
                    "predicted_ms": round(predicted, 2),
                    "error": round(predicted / line["milliseconds"] - 1, 4),
                    "fitted": nodes > 1 and tokens == min(self.trace),
                }
            )
        return sorted(rows, key=lambda row: (row["nodes"], row["ranks"], row["tokens"]))


WAYS = ["hierarchical", "pairwise", "flat"]


def predict(model, network, ranks_on_node):
    rows = []
    for tokens in model.trace:
        alone = model.compute(tokens)
        for power in range(1, 13):
            ranks = 2**power
            for way in WAYS:
                here = min(ranks, ranks_on_node)
                time = model.step(tokens, ranks, here, network, way if ranks > here else "hierarchical")
                rows.append(
                    {
                        "tokens": tokens,
                        "ranks": ranks,
                        "ranks_per_node": here,
                        "way": way,
                        "milliseconds": round(time, 2),
                        "efficiency": round(alone / time, 4),
                    }
                )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+", help="JSON lines of bench_allreduce and bench_ddp")
    parser.add_argument("--collective", required=True, help="the program bench_collective_model")
    parser.add_argument("--cores", type=int, default=2, help="cores of the measured machine (default 2)")
    parser.add_argument("--ranks-per-node", type=int, default=8, help="of the cluster to predict (default 8)")
    parser.add_argument("--latency-us", type=float, default=10, help="of a message between two nodes (default 10)")
    parser.add_argument("--gbit", type=float, default=100, help="per second, of a node's network (default 100)")
    chosen = parser.parse_args()
    model = Model(read(chosen.lines), chosen.cores, Exchange(chosen.collective))
    network = {
        "name": f"{chosen.ranks_per_node} ranks per node, {chosen.gbit:g} Gbit/s, {chosen.latency_us:g} µs",
        "latency_ms": chosen.latency_us * 1e-3,
        "ms_per_byte": 8e3 / (chosen.gbit * 1e9),
        "hidden": 1.0,
    }
    predictions = predict(model, network, chosen.ranks_per_node)
    result = {
        "on_node": model.on_node,
        "network_measured": model.network,
        "network": network,
        "check": model.check(),
        "predictions": predictions,
        "measured": model.measured_steps(),
    }
    print(json.dumps(result))


main()
