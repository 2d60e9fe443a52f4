"""sbcast on the embedded cluster's metered file system, for bench_stage to compare with."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from ranks import ROOT, Failure, run


class Sbcast:
    """A cluster of `nodes` nodes whose head reads a file of `size` bytes at `bandwidth` bytes a second."""

    def __init__(self, programs, nodes, bandwidth, size):
        self.nodes = nodes
        self.name = f"bench-sbcast-{os.getpid()}"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.size = size
        self.options = ["--nodes", str(nodes), "--bandwidth", str(bandwidth)]
        self.options += ["--state", str(self.folder / "state"), "--metered-fs", str(programs / "metered-fs")]

    @staticmethod
    def missing():
        """Why this cannot run here; "" if it can."""
        if os.geteuid() != 0:
            return "the embedded cluster needs root"
        return "" if shutil.which("sbcast") else "sbcast is not installed"

    def _cluster(self, verb, *arguments):
        return [str(ROOT / "tests/cluster/embedded/cluster"), verb, "--name", self.name, *arguments]

    def __enter__(self):
        try:
            run(self._cluster("up", *self.options), "the embedded cluster")
            block = os.urandom(1 << 20)
            with open(self.folder / "state/shared/data.bin", "wb") as file:
                for begin in range(0, self.size, len(block)):
                    file.write(block[: self.size - begin])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        subprocess.run(self._cluster("down"), stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def copy(self):
        """Copies the file. Returns the seconds until it is on every node's disk, and the bytes read from the source."""
        run(self._cluster("meter", "--reset"), "the meter")
        # Timed inside one allocation: the wait until Slurm grants it does not count.
        script = (
            "begin=${EPOCHREALTIME/./}; sbcast -f /mnt/shared/data.bin /tmp/data.bin && srun sync /tmp/data.bin && "
            "echo $((${EPOCHREALTIME/./} - begin)); srun rm -f /tmp/data.bin"
        )
        inside = ["salloc", "-Q", f"-N{self.nodes}", "bash", "-c", script]
        output = run(self._cluster("exec", "--", *inside), "sbcast")
        if not output.strip().isdigit():
            raise Failure(f"sbcast: {output.strip() or 'it failed'}")
        meter = json.loads(run(self._cluster("meter", "--json"), "the meter"))["machines"]
        return int(output) / 1e6, sum(machine["bytes_read"] for machine in meter.values())
