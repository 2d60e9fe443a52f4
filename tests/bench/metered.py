"""Mounts the metered file system for a benchmark, and unmounts it at the end."""

import contextlib
import os
import subprocess
import time

import program
from ranks import Failure


@contextlib.contextmanager
def mounted(tool, backing, point, meter, machine):
    """Mounts `backing` at the folder `point`, which it makes and removes. Counts for `machine` in the file `meter`."""
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
            server.terminate()  # it unmounts, even if a file is still open
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                subprocess.run(["fusermount3", "-uz", str(point)], check=False, capture_output=True)
            point.rmdir()
