#!/usr/bin/env python3
"""Prints what tests/platforms/run.sh found as one object of JSON, and writes the table of docs/supported.md.

docs/platforms has one file for each platform: that object, the names of the tests that failed or were skipped, the release,
the date, and the options of ctest.
Usage: result.py PLATFORM ROOT BUILD SECONDS COMMIT yes|no OPTIONS     yes: write the file and the table
       result.py --check | --write        compares the table of docs/supported.md with the files, or writes it
"""
import datetime
import html
import json
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGE = SOURCE / "docs/supported.md"
BEGIN, END = "<!-- written by tests/platforms/run.sh --record -->\n", "<!-- end -->\n"


def version(root, package):
    """The upstream version of an installed package: 1.13.1 of 1.13.1+dfsg-4."""
    query = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Version}", package]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return re.match(r"(?:\d+:)?([0-9.]*\d)", found).group(1)


def result(platform, root, build, seconds, commit):
    """The object that --json prints, and what is kept beside it."""
    reports = sorted(pathlib.Path(build).glob("tests*.xml"), key=lambda file: file.stat().st_mtime)
    output = subprocess.run([SOURCE / "tests/summary.py", "--json", *reports], capture_output=True, text=True, check=True).stdout
    tests = json.loads(output)
    brief = {
        "platform": platform,
        "slurm": version(root, "slurmd"),
        "mpi": "Open MPI " + version(root, "openmpi-bin"),
        "torch": version(root, "libtorch-dev"),
        "compiler": "GCC " + version(root, "g++"),
        "passed": tests["passed"],
        "failed": len(tests["failed"]),
        "skipped": len(tests["skipped"]),
        "seconds": int(seconds),
        "commit": commit,
    }
    release = pathlib.Path(root, "etc/debian_version").read_text().strip()
    kept = {"release": f"Debian {release}", "date": datetime.date.today().isoformat()}
    kept |= {"failed_tests": tests["failed"], "skipped_tests": tests["skipped"]}
    return brief, kept


def table():
    """The lines of docs/supported.md that are written here."""
    rows = sorted((json.loads(file.read_text()) for file in sorted((SOURCE / "docs/platforms").glob("*.json"))),
                  key=lambda row: [int(part) for part in row["slurm"].split(".")])
    lines = ["| system | Slurm | MPI | LibTorch | compiler | tests | passed | failed | skipped | commit, date |\n", "|---" * 10 + "|\n"]
    for row in rows:
        # As HTML, because '|' in `...` would end the cell.
        options = f"<code>{html.escape(row['options']).replace('|', '&#124;')}</code>" if row["options"] else "all"
        cells = [row["release"], row["slurm"], row["mpi"], row["torch"], row["compiler"], options]
        cells += [f"{row[key]:,}" for key in ("passed", "failed", "skipped")] + [f"`{row['commit']}`, {row['date']}"]
        lines.append("| " + " | ".join(cells) + " |\n")
    lines.append("\n" if rows else "\nNo result is recorded yet.\n")
    complete = [row for row in rows if not row["options"]]
    for kind in ("failed", "skipped"):
        for row in rows if kind == "failed" else complete:
            names = set(row[f"{kind}_tests"])
            if kind == "skipped":  # what is skipped everywhere needs something that no platform has
                names -= set.intersection(*(set(other["skipped_tests"]) for other in complete))
            if names:
                lines.append(f"- {kind.capitalize()} on {row['release']}: {', '.join(f'`{name}`' for name in sorted(names))}\n")
    return "".join(lines)


def page_with(lines):
    """The page with these lines in the place of those between the marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + "\n" + lines.rstrip("\n") + "\n\n" + END + rest.split(END, 1)[1]


def main():
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != page_with(table()):
            sys.exit("docs/supported.md: the table of platforms is not what docs/platforms says: tests/platforms/result.py --write")
    elif sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with(table()))
    elif len(sys.argv) == 8:
        brief, kept = result(*sys.argv[1:6])
        if sys.argv[6] == "yes":
            row = brief | kept | {"options": sys.argv[7]}
            (SOURCE / "docs/platforms").mkdir(exist_ok=True)
            (SOURCE / "docs/platforms" / f"{brief['platform']}.json").write_text(json.dumps(row, indent=1) + "\n")
            PAGE.write_text(page_with(table()))
        print(json.dumps(brief))
    else:
        sys.exit(__doc__)


main()
