"""What every benchmark that is a script does alike: print its lines, and end as a tool does."""

import json
import sys

from ranks import Failure


def show(lines, chosen, describe):
    """Prints each measured thing as soon as it is there: as JSON with --json, else as `describe` puts it."""
    for line in lines:
        print(json.dumps(line) if chosen.json else describe(line), flush=True)


def run(name, main):
    """Exit 0, 1 where the work failed (one line says why), 130 after Ctrl-C."""
    try:
        main()
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
