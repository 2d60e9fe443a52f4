#!/usr/bin/env python3
"""Times the all-reduce of a float buffer through Lockstep's communicator, in memory from the communicator (registered)
and in any other memory. With --peers also times MPI_Allreduce and Gloo, and between two nodes MPI_Sendrecv of the same
bytes, which an all-reduce of two ranks cannot beat by much. Implementations take turns from launch to
launch."""

import collections
import statistics

import program
import ranks as starting
from ranks import Failure, say

SIZES = "1K,4K,16K,64K,256K,1M,4M,25M,64M,256M"


def numbers(text):
    return [int(word) for word in text.split(",")]


def arguments():
    parser = program.parser("bench_allreduce", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run MPI_Allreduce and Gloo, if they are installed")
    parser.add_argument("--sizes", default=SIZES, help=f"buffer sizes in bytes, with binary units (default {SIZES})")
    parser.add_argument("--ranks", type=numbers, default=[2], help="total numbers, such as 1,2,3,4 (default 2)")
    parser.add_argument("--nodes", type=numbers, default=[1], help="more than 1: on an embedded Slurm cluster")
    parser.add_argument("--link-mbit", type=int, help="on several nodes: the speed of each node's link")
    parser.add_argument("--single-rank-nodes", action="store_true", help="treat each rank as a node")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=11, help="blocks in a launch; large buffers have half as many")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.launches, chosen.blocks, chosen.sizes = 1, 1, "4K,1M"
    if min(chosen.ranks + chosen.nodes + [chosen.launches, chosen.blocks]) < 1:
        parser.error("--ranks, --nodes, --launches and --blocks must be at least 1")
    return chosen


def launch(site, chosen, what, ranks):
    options = ["--sizes", chosen.sizes, "--blocks", str(chosen.blocks)]
    if what == "gloo":
        command = site.peer("allreduce_rank.py")
    else:
        command = site.program("bench_allreduce_rank") + ["--measure", what]
    environment = dict(starting.LOCKSTEP_ALLOCATOR["tuned"])
    if chosen.single_rank_nodes:
        environment["LOCKSTEP_RANKS_PER_NODE"] = "1"
    return site.start(command + options, ranks, environment)


def measure(site, chosen, ranks):
    blocks = collections.defaultdict(list)
    use = {}
    names = ["lockstep", *(["mpi"] if chosen.peers else []), *starting.peers(chosen, "bench_allreduce", "gloo")]
    if chosen.peers and ranks == 2 and (site.nodes == 2 or chosen.single_rank_nodes):
        names.append("sendrecv")
    for number in range(chosen.launches):
        for name in names:
            say(f"{ranks} ranks on {site.nodes} nodes: launch {number + 1} of {chosen.launches}, {name}")
            for line in launch(site, chosen, name, ranks):
                blocks[name, line["registered"], line["bytes"]] += line["blocks"]
                use[name, line["bytes"]] = {key: line[key] for key in ("rounds", "peers") if key in line}
    for (name, registered, size), times in blocks.items():
        yield {
            "bench": "allreduce",
            "implementation": name,
            "registered": registered,
            "bytes": size,
            "ranks": ranks,
            "nodes": ranks if chosen.single_rank_nodes else site.nodes,
            "launches": chosen.launches,
            "milliseconds": round(statistics.median(times), 6),
            **use[name, size],
        }
    # On several nodes of one machine the ranks still share one memory.
    for line in launch(site, chosen, "bandwidth", ranks):
        yield {
            "bench": "memory_bandwidth",
            "kernel": line["kernel"],
            "ranks": ranks,
            "nodes": site.nodes,
            "bytes_per_second": round(statistics.median(line["blocks"])),
        }


def main():
    chosen = arguments()
    for nodes in chosen.nodes:
        of_this = [ranks for ranks in chosen.ranks if ranks % nodes == 0]
        if not of_this:
            raise Failure(f"none of --ranks {chosen.ranks} is a multiple of {nodes} nodes")
        with starting.site(chosen.programs, nodes, chosen.link_mbit) as site:
            for ranks in of_this:
                program.show(measure(site, chosen, ranks))


if __name__ == "__main__":
    program.run("bench_allreduce", main)
