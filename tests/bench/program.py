"""What every benchmark that is a script does alike: run programs, print its lines, and end as a tool does."""

import json
import os
import sys

from ranks import Failure


def show(lines, chosen, describe):
    """Prints each measured thing as soon as it is there: as JSON with --json, else as `describe` puts it."""
    for line in lines:
        print(json.dumps(line) if chosen.json else describe(line), flush=True)


def finish(process, what):
    """Waits for a program whose pipes are open and that must succeed: its output, and its peak memory in bytes."""
    output = process.stdout.read() if process.stdout else ""
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failure(f"{what}: exit code {process.returncode}: {said.strip()[-300:]}")
    return output, usage.ru_maxrss * 1024


def run(name, main):
    """Exit 0, 1 where the work failed (one line says why), 130 after Ctrl-C."""
    try:
        main()
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
