"""The metered file system, mounted for a benchmark and gone with it."""

import contextlib
import os
import subprocess
import time

import program
from ranks import Failure


@contextlib.contextmanager
def mounted(tool, backing, point, meter, machine):
    """Mounts `backing` at the folder `point`, which is made and removed, and counts for `machine` in the file `meter`."""
    point.mkdir()
    command = [tool, "mount", backing, point, "--meter", meter, "--machine", machine]
    with program.started(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            while not os.path.ismount(point):
                if server.poll() is not None:
                    raise Failure(f"metered-fs: {server.stderr.read().strip()}")
                time.sleep(0.01)
            yield point
        finally:
            server.terminate()  # it unmounts, also where somebody still has a file open
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                subprocess.run(["fusermount3", "-uz", str(point)], check=False, capture_output=True)
            point.rmdir()
