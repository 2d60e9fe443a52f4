"""Reads the lines that the benchmarks have printed: docs/benchmarks/data.tar.xz, unpacked once into build/benchmarks."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "build/benchmarks"


def files():
    """The files of lines that measure.sh writes and keeps."""
    if not list(DATA.glob("*.jsonl")):
        DATA.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-xJf", ROOT / "docs/benchmarks/data.tar.xz", "-C", DATA], check=True)
    return sorted(DATA.glob("*.jsonl"))


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
