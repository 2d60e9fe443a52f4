#!/usr/bin/env python3
"""Times the staging of data: cold (caches dropped, synced), warm, on several nodes at once, as many small files, and with
a slow, busy or lost node. With --peers also times cp, rsync and sbcast, in turn. In all cases but cold the source lies on the metered file system:
one mount per node, one bandwidth for all of them together, and a delay per operation."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import program
from metered import mounted
from ranks import Failure
from sbcast import Sbcast
from stage_faults import FAULTS

CASES = ["cold", "warm", "cooperative", "small_files"]
ALL_CASES = [*CASES, *FAULTS, "node_killed"]
OF_ROOT = ["network_away", "node_killed"]  # a network of their own, an embedded cluster


def number(text):
    return int(float(text))


def arguments():
    parser = program.parser("bench_stage", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run cp, rsync and sbcast")
    parser.add_argument("--cases", default=",".join(CASES), help=f"a list of {', '.join(ALL_CASES)} (default: the first four)")
    parser.add_argument("--bytes", type=number, help="bytes of the cold case (default 4 GiB), or of the simulated data (100 GB)")
    parser.add_argument("--shards", type=int, default=1000, help="shards of the warm case (default 1000)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes of the cases with several nodes (default 4)")
    parser.add_argument(
        "--bandwidth", type=number,
        help="bytes per second of the metered source (default 200e6), or of a simulated link (12.5e9)"
    )  # fmt: skip
    parser.add_argument("--lanes", type=int, default=0, help="connections between two nodes, up to 16 (default 0: automatic)")
    parser.add_argument("--slow-node", type=int, default=0, help="bytes per second that the last node may read")
    parser.add_argument("--metered-bytes", type=number, default=1 << 30, help="of the cases with several nodes (default 1 GiB)")
    parser.add_argument("--files", type=int, default=2_000, help="files of 2 KB in the small_files case (default 2000)")
    parser.add_argument("--latency-ms", type=float, default=2, help="per operation at the metered source (default 2)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="working folder (default: a temporary folder)")
    parser.add_argument(
        "--simulate", type=int, help="play the ring of this many nodes with the rates --bandwidth and --source-bandwidth, and "
        "hold its rounds at a real rendezvous; the options below belong to it"
    )  # fmt: skip
    parser.add_argument(
        "--holders", default="",
        help="nodes that have the data: 0,5, or alternating, or rotating: node s %% N has source s (default none)"
    )  # fmt: skip
    parser.add_argument("--sources", type=int, default=1, help="into how many sources the data is divided (default 1)")
    parser.add_argument("--lost", default="", help="NODE@FRACTION: this node is lost when it has that share of the data")
    parser.add_argument("--standard", action="store_true", help="all cases of docs/benchmarks.md instead, with 100 GB and 1 GB")
    parser.add_argument("--source-bandwidth", default="100e9", help="bytes per second of the source (default 100e9)")
    parser.add_argument("--reader-bandwidth", type=float, default=0, help="bytes per second that one node reads (default: those of its link)")
    parser.add_argument("--latency", default="50e-6", help="of a message, in seconds (default 50e-6)")
    parser.add_argument(
        "--cores", type=int, default=0, help="cores of a node, whose encryption limits the link (default 0: the link alone)"
    )  # fmt: skip
    chosen = parser.parse_args()
    chosen.bytes = chosen.bytes or (10**11 if chosen.simulate else 4 << 30)
    chosen.bandwidth = chosen.bandwidth or (12_500_000_000 if chosen.simulate else 200_000_000)
    chosen.cases = chosen.cases.split(",")
    for case in chosen.cases:
        if case not in ALL_CASES:
            parser.error(f"--cases: '{case}' must be one of {', '.join(ALL_CASES)}")
    if chosen.quick:
        chosen.bytes, chosen.metered_bytes, chosen.bandwidth = 24 << 20, 12 << 20, 40_000_000
        chosen.shards, chosen.files, chosen.runs, chosen.latency_ms = 50, 200, 1, 0.5
    if min(chosen.bytes, chosen.shards, chosen.nodes, chosen.files, chosen.runs) < 1:
        parser.error("--bytes, --shards, --nodes, --files and --runs must be at least 1")
    return chosen


def run(command, **more):
    with program.started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more) as process:
        output, error = process.communicate()
    if process.returncode != 0:
        raise Failure(f"{command[0]}: {error.strip() or process.returncode}")
    return output


class World:
    """The working folder, and the programs."""

    def __init__(self, chosen, folder):
        self.chosen = chosen
        self.folder = pathlib.Path(folder)
        self.programs = pathlib.Path(chosen.programs)
        self.size = chosen.metered_bytes
        self.dropped = True
        self.memory = 0  # peak memory of a put in this case, in bytes

    def drop_caches(self):
        os.sync()
        try:
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
        except OSError as error:
            if self.dropped:
                print(f"bench_stage: cannot drop the page cache, so caches stay warm: {error}", file=sys.stderr)
            self.dropped = False

    def cache(self, node=0):
        return self.folder / f"cache{node}"

    def remove_caches(self):
        for cache in self.folder.glob("cache*"):
            subprocess.run(["chmod", "-R", "u+w", str(cache)], check=False)
            shutil.rmtree(cache)

    def put(self, source, node=0):
        """Puts a source. Returns the seconds from start to exit, and the output of the tool."""
        begin = time.monotonic()
        with self.start_put(source, node) as process:
            said = self.finish_put(process)
        return time.monotonic() - begin, said

    def start_put(self, source, node=0, *more, before=(), **environment):
        command = [*before, self.programs / "lockstep-stage", "put", source, "--cache", self.cache(node), "--json", *more]
        pipe = subprocess.PIPE
        return program.started(command, env={**os.environ, **environment}, text=True, stdout=pipe, stderr=pipe)

    def finish_put(self, process):
        output, memory = program.finish(process, "lockstep-stage put")
        self.memory = max(self.memory, memory)
        return json.loads(output)

    def put_together(self, mounts, environment={}, first_environment={}, before=()):
        """Puts on all nodes at once. Returns the seconds until the last node has the data, and each node's output."""
        addresses = ",".join(["127.0.0.1:0"] * len(mounts)).replace(":0", f":{free_port()}", 1)
        begin = time.monotonic()
        with contextlib.ExitStack() as running:
            nodes = []
            for node, mount in enumerate(mounts):
                more = ["--nodes", addresses, "--node-id", str(node)] if len(mounts) > 1 else []
                if self.chosen.lanes and more:
                    more += ["--lanes", str(self.chosen.lanes)]
                if self.chosen.slow_node and 0 < node == len(mounts) - 1:
                    more += ["--bandwidth", str(self.chosen.slow_node)]
                settings = {**environment, **({} if node else first_environment), "LOCKSTEP_RENDEZVOUS_KEY": "benchmark"}
                put = self.start_put(mount / "data", node, *more, before=before, **settings)
                nodes.append(running.enter_context(put))
            said = [self.finish_put(node) for node in nodes]
        return time.monotonic() - begin, said

    def make_files(self, name, total, count):
        source = self.folder / name
        source.mkdir()
        block = os.urandom(1 << 20)
        for number in range(count):
            left = total // count
            with open(source / f"{number:05}.bin", "wb") as file:
                while left > 0:
                    left -= file.write(block[: min(left, len(block))])
        return source

    def pack(self, source, name, shard_bytes):
        target = self.folder / name
        run([self.programs / "lockstep-pack", "create", source, "--out", target, "--shard-size", shard_bytes])
        return target

    @contextlib.contextmanager
    def metered(self, backing, nodes=1, bandwidth=0, latency_ms=0.0):
        """Yields the mounts, one per node, and a function that returns the bytes read from the source."""
        tool = self.programs / "metered-fs"
        meter = self.folder / "meter"
        run([tool, "meter", meter, "--create", "--bandwidth", bandwidth, "--latency-ms", latency_ms])
        with contextlib.ExitStack() as running:
            mounts = []
            for node in range(nodes):
                point = self.folder / f"mount{node}"
                mounts.append(running.enter_context(mounted(tool, backing, point, meter, f"n{node}")))
            yield mounts, lambda: bytes_read(tool, meter)
        meter.unlink()


def bytes_read(tool, meter):
    machines = json.loads(run([tool, "meter", meter, "--json"]))["machines"]
    return sum(counters["bytes_read"] for counters in machines.values())


def copy_and_sync(command, target):
    """Runs a copy command and syncs the copies. Returns the seconds until the data is on the disk."""
    begin = time.monotonic()
    run(command)
    for folder, _, files in os.walk(target):
        for name in files + ["."]:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    return time.monotonic() - begin


def peers_of(chosen, source, target):
    if not chosen.peers:
        return {}
    commands = {"cp": ["cp", "-r", "--reflink=never", source, target]}
    if shutil.which("rsync"):
        commands["rsync"] = ["rsync", "-a", f"{source}/", target]
    return commands


def line(case, implementation, nodes, total, from_source, seconds, runs, **more):
    return {
        "bench": "stage",
        "implementation": implementation,
        "case": case,
        "nodes": nodes,
        "bytes": total,
        "from_source": from_source,
        "seconds": statistics.median(seconds),
        "runs": runs,
        **more,
    }


def cold(world):
    chosen = world.chosen
    source = world.make_files("cold", chosen.bytes, 16)
    target = world.folder / "copy"
    seconds = {"lockstep": []}
    for _ in range(chosen.runs):
        world.drop_caches()
        took, said = world.put(source)
        seconds["lockstep"].append(took)
        world.remove_caches()
        for name, command in peers_of(chosen, source, target).items():
            world.drop_caches()
            seconds.setdefault(name, []).append(copy_and_sync(command, target))
            shutil.rmtree(target)
    for name, took in seconds.items():
        yield line("cold", name, 1, said["bytes"], said["bytes"], took, chosen.runs, caches_dropped=world.dropped)
    shutil.rmtree(source)


def warm(world):
    chosen = world.chosen
    files = world.make_files("samples", chosen.shards * 4096, chosen.shards)
    backing = world.folder / "backing"
    backing.mkdir()
    world.pack(files, "backing/pack", 4096)
    for latency in [0, chosen.latency_ms]:
        with world.metered(backing, latency_ms=latency) as (mounts, _):
            said = world.put(mounts[0] / "pack")[1]
            shards = len(list(pathlib.Path(said["path"]).glob("*.tar")))
            took = []
            for _ in range(max(3, chosen.runs)):
                seconds, again = world.put(mounts[0] / "pack")
                if not again["hit"]:
                    raise Failure("a warm put was not a hit")
                took.append(seconds)
        world.remove_caches()
        yield line("warm", "lockstep", 1, said["bytes"], 0, took, len(took), shards=shards, latency_ms=latency)
    shutil.rmtree(files)
    shutil.rmtree(backing)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def cooperative(world):
    chosen = world.chosen
    backing = world.folder / "backing"
    backing.mkdir()
    world.make_files("backing/data", chosen.metered_bytes, 8)
    for count in [1, chosen.nodes]:
        took, read = [], []
        for _ in range(chosen.runs):
            with world.metered(backing, count, bandwidth=chosen.bandwidth) as (mounts, meter):
                seconds, said = world.put_together(mounts)
                took.append(seconds)
                read.append(meter())
            world.remove_caches()
        yield line(
            "cooperative",
            "lockstep",
            count,
            said[0]["bytes"],
            statistics.median(read),
            took,
            chosen.runs,
            bandwidth=chosen.bandwidth,
            **({"slow_node": chosen.slow_node} if chosen.slow_node and count > 1 else {}),
        )
    shutil.rmtree(backing)
    if chosen.peers:
        yield from broadcast(chosen, world.programs)


def broadcast(chosen, programs):
    """Measures sbcast, Slurm's own way to copy a file to all nodes."""
    if Sbcast.missing():
        print(f"bench_stage: sbcast is left out: {Sbcast.missing()}", file=sys.stderr)
        return
    with Sbcast(programs, chosen.nodes, chosen.bandwidth, chosen.metered_bytes) as cluster:
        took, read = zip(*[cluster.copy() for _ in range(chosen.runs)])
    more = {"bandwidth": chosen.bandwidth}
    size = chosen.metered_bytes
    yield line("cooperative", "sbcast", chosen.nodes, size, statistics.median(read), took, chosen.runs, **more)


def with_fault(world, case):
    """Rows of 2 nodes and of all of them."""
    backing = world.folder / "backing"
    backing.mkdir()
    world.make_files("backing/data", world.size, 1 if case == "slow_holder" else 8)
    for count in sorted({min(2, world.chosen.nodes), world.chosen.nodes}):
        took, read, sent = {True: [], False: []}, [], []
        for wrong in [False, True] * world.chosen.runs:
            with world.metered(backing, count, bandwidth=world.chosen.bandwidth) as (mounts, meter):
                seconds, said, from_source = FAULTS[case](world, mounts, meter, wrong)
            took[wrong].append(seconds)
            if wrong:
                read.append(from_source)
                # A node has one predecessor, which has sent it what did not come from the source.
                sent.append(max(node["from_peers"] for node in said) / world.size)
            world.remove_caches()
        yield line(
            case, "lockstep", count, world.size, statistics.median(read), took[True], world.chosen.runs,
            seconds_without=statistics.median(took[False]), sent_max_ratio=max(sent), bandwidth=world.chosen.bandwidth,
        )  # fmt: skip
    shutil.rmtree(backing)


def node_killed(world):
    """In the background, since otherwise the step ends with the node: on an embedded cluster. The middle node is killed at half
    of the copy."""
    script = pathlib.Path(__file__).parent / "stage_nodes.sh"
    environment = {**os.environ, "LOCKSTEP_BUILD": str(world.programs.resolve().parent)}
    said = json.loads(run([script, str(world.chosen.nodes), str(world.size >> 20), "killed"], env=environment).splitlines()[-1])
    yield line(
        "node_killed", "lockstep", said["nodes"], said["bytes"], round(said["source_ratio"] * said["bytes"]), [said["seconds"]], 1,
        sent_max_ratio=said["sent_max_ratio"], copies=said["copies"], successor_ratio=said["successor_ratio"],
    )  # fmt: skip


def small_files(world):
    chosen = world.chosen
    backing = world.folder / "backing"
    backing.mkdir()
    world.make_files("backing/data", 2048 * chosen.files, chosen.files)
    target = world.folder / "copy"
    seconds = {}
    with world.metered(backing, bandwidth=chosen.bandwidth, latency_ms=chosen.latency_ms) as (mounts, _):
        source = mounts[0] / "data"
        begin = time.monotonic()
        pack = world.pack(source, "pack", 256 << 20)
        said = world.put(pack)[1]
        seconds["lockstep"] = time.monotonic() - begin
        world.remove_caches()
        for name, command in peers_of(chosen, source, target).items():
            seconds[name] = copy_and_sync(command, target)
            shutil.rmtree(target)
    for name, took in seconds.items():
        yield line(
            "small_files", name, 1, said["bytes"], 2048 * chosen.files, [took], 1,
            files=chosen.files, latency_ms=chosen.latency_ms, bandwidth=chosen.bandwidth,
        )  # fmt: skip
    shutil.rmtree(backing)


def simulated(chosen):
    """The cases of the simulation: the one that was chosen, or with --standard those of docs/benchmarks.md."""
    if not chosen.standard:
        return [{"holders": chosen.holders, "sources": chosen.sources, "lost": chosen.lost}]
    middle = chosen.simulate // 2
    held = [{"holders": holders} for holders in ("0", str(middle), "alternating")]
    lost = [{"lost": f"{middle}@{fraction}"} for fraction in (0.1, 0.5, 0.9)]
    return [{}, *held, {"holders": "rotating", "sources": 40}, {"sources": 1000}, *lost]


def limited_link(chosen):
    """The rate that a node's cores let pass, in bytes per second, at the rates of one core in docs/benchmarks/staging.md."""
    if not chosen.cores:
        return chosen.bandwidth
    encrypt, decrypt = 1.56e9, 1.06e9
    lanes = min(max(chosen.cores // 4, 1), 4)  # as RingPut::max_lanes()
    return min(chosen.bandwidth, chosen.cores / (1 / encrypt + 1 / decrypt), lanes * decrypt)


def simulate(world):
    chosen = world.chosen
    for case in simulated(chosen):
        options = {
            "nodes": chosen.simulate, "bytes": "100e9,1e9" if chosen.standard else chosen.bytes, "bandwidth": limited_link(chosen),
            "source-bandwidth": chosen.source_bandwidth, "reader-bandwidth": chosen.reader_bandwidth, "latency": chosen.latency, **case,
        }  # fmt: skip
        command = [world.programs / "bench_stage_scale"]
        for name, value in options.items():
            command += ["--" + name, str(value)] if value else []
        yield from map(json.loads, run(command).splitlines())


def measure(chosen, folder):
    world = World(chosen, folder)
    if chosen.simulate:
        yield from simulate(world)
        return
    has_metered = (world.programs / "metered-fs").exists() and os.path.exists("/dev/fuse")
    measured = {function.__name__: function for function in (cold, warm, cooperative, small_files, node_killed)}
    for case in chosen.cases:
        if case != "cold" and not has_metered:
            print(f"bench_stage: the case {case} is left out: metered-fs or /dev/fuse is missing", file=sys.stderr)
            continue
        if case in OF_ROOT and os.geteuid() != 0:
            print(f"bench_stage: the case {case} is left out: it needs root", file=sys.stderr)
            continue
        world.memory = 0
        for found in with_fault(world, case) if case in FAULTS else measured[case](world):
            if found["implementation"] == "lockstep":
                found["memory_bytes"] = world.memory
            yield found


def main():
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="bench_stage.", dir=chosen.folder) as folder:
        program.show(measure(chosen, folder))


if __name__ == "__main__":
    program.run("bench_stage", main)
