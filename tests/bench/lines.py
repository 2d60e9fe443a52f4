"""Reads the lines that the benchmarks have printed."""

import json
import pathlib


def read(paths):
    lines = []
    for path in paths:
        for number, text in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError as error:
                raise SystemExit(f"{path}:{number}: {error}") from None
    return lines


def select(lines, **wanted):
    return [line for line in lines if all(line.get(key) == value for key, value in wanted.items())]


def only(lines, **wanted):
    """Returns the line that matches, the last one if it was measured again, or None."""
    found = select(lines, **wanted)
    return found[-1] if found else None
