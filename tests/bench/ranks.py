"""Starts ranks for the benchmarks: under mpirun on this machine (OneNode), or under srun on an embedded Slurm cluster
of several nodes (Cluster). All implementations of one comparison are started by the same of the two."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "peers"

# Environment of a training job with one thread per rank.
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# The allocators: glibc as it is, and one that keeps freed memory. Lockstep does the latter automatically.
LOCKSTEP_ALLOCATOR = {"default": {"LOCKSTEP_MALLOC": "off"}, "tuned": {"LOCKSTEP_MALLOC": "on"}}
PEER_ALLOCATOR = {
    "default": {},
    "tuned": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**63 - 1),
        "MALLOC_TOP_PAD_": str(64 << 20),
    },
}


class Failure(Exception):
    """The work failed; the message is for the user."""


def say(text):
    """Prints progress, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def json_lines(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def run(command, what, environment=None):
    """Runs a command that must succeed. Returns its standard output."""
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        last = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Failure(f"{what}: exit code {done.returncode}: " + " | ".join(last[-6:]))
    return done.stdout


def mpirun(command, ranks):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]


class OneNode:
    """This machine. Ranks are not bound, so that more ranks than cores can share the cores."""

    nodes = 1

    def __init__(self, programs):
        self.programs = pathlib.Path(programs)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-"))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        shutil.rmtree(self.folder, ignore_errors=True)

    def program(self, name):
        return [str(self.programs / name)]

    def peer(self, script):
        return [sys.executable, str(PEERS / script), "--store", f"file://{self.folder}/store"]

    def start(self, command, ranks, environment):
        for store in self.folder.glob("store*"):  # of the previous start
            store.unlink()
        variables = {**os.environ, **THREADS, **environment}
        return json_lines(run(mpirun(command, ranks), f"{command[0]} on {ranks} ranks", variables))


class EmbeddedCluster:
    """An embedded Slurm cluster with a folder of its own. `with` starts it, and removes both at the end."""

    def __init__(self, name, nodes, *options):
        if os.geteuid() != 0:
            raise Failure("the embedded cluster (tests/cluster/embedded) needs root")
        self.name = f"bench-{name}-{os.getpid()}"
        self.nodes = nodes
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.options = ["--state", self.folder / "state", "--nodes", nodes, *options]

    def command(self, verb, *words):
        return [str(word) for word in (ROOT / "tests/cluster/embedded/cluster", verb, "--name", self.name, *words)]

    def call(self, verb, *words):
        return run(self.command(verb, *words), f"cluster {verb}")

    def fill(self):
        """Makes files after the start."""

    def __enter__(self):
        say(f"starting a cluster of {self.nodes} nodes")
        try:
            self.call("up", *self.options)
            self.fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        subprocess.run(self.command("down"), stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster(EmbeddedCluster):
    """Several nodes on this machine, each with a separate network. A bridge joins them, so they use TCP."""

    def __init__(self, programs, nodes, link_mbit=None):
        super().__init__("ranks", nodes)
        self.port = 29500
        self.link_mbit = link_mbit
        # All that ranks need, in one folder that the nodes see as /mnt/lockstep.
        prefix = self.folder / "prefix"
        self.options += ["--prefix", prefix]
        (prefix / "bin").mkdir(parents=True)
        for program in pathlib.Path(programs).glob("bench_*_rank"):
            shutil.copy2(program, prefix / "bin")
        shutil.copytree(PEERS, prefix / "peers")

    def fill(self):
        """Limits what each node receives in a second."""
        if self.link_mbit is None:
            return
        limit = f"tbf rate {self.link_mbit}mbit burst 64kb limit 4mb"
        each = f"for link in /sys/class/net/vn*; do tc qdisc replace dev ${{link##*/}} root {limit} || exit; done"
        self.call("exec", "--user", "root", "--", "sh", "-c", each)

    def program(self, name):
        return [f"/mnt/lockstep/bin/{name}"]

    def peer(self, script):
        self.port += 1  # the previous start may still hold its port
        return [sys.executable, f"/mnt/lockstep/peers/{script}", "--store", f"tcp://n1:{self.port}"]

    def start(self, command, ranks, environment):
        kept = {name: os.environ[name] for name in os.environ if name.startswith("OPENBLAS_")}
        variables = {**kept, **THREADS, **environment, "GLOO_SOCKET_IFNAME": "eth0", "PYTHONDONTWRITEBYTECODE": "1"}
        # Gives a node's ranks all of its cores: with fewer, ranks of different nodes would share the first cores.
        cores = os.cpu_count() * self.nodes // ranks
        srun = ["srun", "--mpi=pmix", "--exclusive", "--cpu-bind=none", f"-N{self.nodes}", f"-n{ranks}"]
        srun += [f"-c{cores}"] if cores else ["--overcommit"]
        given = ["env"] + [f"{name}={value}" for name, value in variables.items()]
        inside = self.command("exec", "--", *given, *srun, *command)
        return json_lines(run(inside, f"{command[0]} on {ranks} ranks and {self.nodes} nodes"))


def site(programs, nodes, link_mbit=None):
    return OneNode(programs) if nodes == 1 else Cluster(programs, nodes, link_mbit)


def peers(chosen, name, *found):
    """The peers to run with --peers, which need PyTorch; says so if it is missing."""
    missing = peer_is_missing() if chosen.peers else "not asked for"
    if chosen.peers and missing:
        print(f"{name}: left out: {', '.join(map(str, found))}: {missing}", file=sys.stderr)
    return [] if missing else list(found)


def peer_is_missing(python=sys.executable):
    """Why PyTorch cannot run here; "" if it can."""
    test = "import torch.distributed as d; assert d.is_available() and d.is_gloo_available()"
    done = subprocess.run([python, "-c", test], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return f"{python} has no torch.distributed with Gloo (Debian: python3-torch)"
