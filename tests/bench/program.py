"""Functions that the Python benchmarks share: run programs, print JSON lines, and exit as a tool does."""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys

from ranks import Failure

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def end_with_parent():
    """For preexec_fn: the kernel sends this child SIGTERM when the benchmark ends, even by kill -9."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def started(command, **more):
    """A process that does not outlive the block, nor the benchmark."""
    words = [str(word) for word in command]
    try:
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent, **more)
    except OSError as error:
        raise Failure(f"cannot start {words[0]}: {error.strerror}") from None
    with running as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _end(number, _frame):
    # Ignores further signals, which must not interrupt the cleanup.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def show(lines):
    """Prints each measurement as soon as it is there."""
    for line in lines:
        print(json.dumps(line), flush=True)


def finish(process, what):
    """Waits for a program that must succeed. Returns its output and its peak memory in bytes."""
    output = process.stdout.read() if process.stdout else ""
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failure(f"{what}: exit code {process.returncode}: {said.strip()[-300:]}")
    return output, usage.ru_maxrss * 1024


def parser(name, description):
    """A parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(prog=name, description=description)
    made.add_argument("--version", action="version", version=f"{name} {os.environ.get('LOCKSTEP_VERSION', '')}")
    made.add_argument("--json", action="store_true", help="accepted, because every benchmark has it: they print nothing else")
    made.add_argument("--quick", action="store_true", help="little data and one short run, to test the benchmark")
    made.add_argument("--programs", default=".", help=argparse.SUPPRESS)
    return made


def run(name, main):
    """Runs main. Exits with 0, with 1 and one line if the work failed, or with 128 plus the number of a signal. Mounts
    and child processes end first, through `with` and `finally`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        main()
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(1)
