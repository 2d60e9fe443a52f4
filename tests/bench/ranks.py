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
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
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


class Cluster:
    """Several nodes on this machine, each with a separate network. A bridge joins them, so they use TCP."""

    def __init__(self, programs, nodes):
        if os.geteuid() != 0:
            raise Failure("--nodes above 1 needs the embedded cluster (tests/cluster/embedded): run it as root")
        self.nodes = nodes
        self.name = f"bench-{os.getpid()}"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir="/var/tmp"))
        self.port = 29500
        # All that ranks need, in one folder that the nodes see as /mnt/lockstep.
        prefix = self.folder / "prefix"
        (prefix / "bin").mkdir(parents=True)
        self.folder.chmod(0o755)
        for program in pathlib.Path(programs).glob("bench_*_rank"):
            shutil.copy2(program, prefix / "bin")
        shutil.copytree(PEERS, prefix / "peers")

    def cluster(self, verb, *arguments):
        return [str(ROOT / "tests/cluster/embedded/cluster"), verb, "--name", self.name, *arguments]

    def __enter__(self):
        say(f"starting a cluster of {self.nodes} nodes")
        options = ["--nodes", str(self.nodes), "--prefix", str(self.folder / "prefix")]
        try:
            run(self.cluster("up", "--state", str(self.folder / "state"), *options), "the embedded cluster")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        subprocess.run(self.cluster("down"), stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

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
        inside = self.cluster("exec", "--", *given, *srun, *command)
        return json_lines(run(inside, f"{command[0]} on {ranks} ranks and {self.nodes} nodes"))


def site(programs, nodes):
    return OneNode(programs) if nodes == 1 else Cluster(programs, nodes)


def peer_is_missing(python=sys.executable):
    """Why PyTorch cannot run here; "" if it can."""
    test = "import torch.distributed as d; assert d.is_available() and d.is_gloo_available()"
    done = subprocess.run([python, "-c", test], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return f"{python} has no torch.distributed with Gloo (Debian: python3-torch)"
