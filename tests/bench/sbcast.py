"""sbcast on the embedded cluster's metered file system, for bench_stage to compare with."""

import json
import os
import shutil

from ranks import EmbeddedCluster, Failure, run


class Sbcast(EmbeddedCluster):
    """A cluster of `nodes` nodes whose head reads a file of `size` bytes at `bandwidth` bytes a second."""

    def __init__(self, programs, nodes, bandwidth, size):
        super().__init__("sbcast", nodes, "--bandwidth", bandwidth, "--metered-fs", programs / "metered-fs")
        self.size = size

    @staticmethod
    def missing():
        """Why this cannot run here; "" if it can."""
        if os.geteuid() != 0:
            return "the embedded cluster needs root"
        return "" if shutil.which("sbcast") else "sbcast is not installed"

    def fill(self):
        block = os.urandom(1 << 20)
        with open(self.folder / "state/shared/data.bin", "wb") as file:
            for begin in range(0, self.size, len(block)):
                file.write(block[: self.size - begin])

    def copy(self):
        """Copies the file. Returns the seconds until it is on every node's disk, and the bytes read from the source."""
        self.call("meter", "--reset")
        # Timed inside one allocation: the wait until Slurm grants it does not count.
        script = (
            "begin=${EPOCHREALTIME/./}; sbcast -f /mnt/shared/data.bin /tmp/data.bin && srun sync /tmp/data.bin && "
            "echo $((${EPOCHREALTIME/./} - begin)); srun rm -f /tmp/data.bin"
        )
        inside = ["salloc", "-Q", f"-N{self.nodes}", "bash", "-c", script]
        output = run(self.command("exec", "--", *inside), "sbcast")
        if not output.strip().isdigit():
            raise Failure(f"sbcast: {output.strip() or 'it failed'}")
        meter = json.loads(self.call("meter", "--json"))["machines"]
        return int(output) / 1e6, sum(machine["bytes_read"] for machine in meter.values())
