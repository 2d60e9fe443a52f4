#!/usr/bin/env python3
"""Finds timeouts of the runtime that would count the time for which a job was suspended: every use of a clock outside of
runtime/comm/timeout.h, except in the files that are listed here because no wait ends by their clock.

Usage: clocks.py [ROOT]
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
CLOCK = re.compile(r"\b(?:steady_clock|system_clock|high_resolution_clock|monotonic_ns|seconds_between|clock_gettime|"
                   r"CLOCK_(?:MONOTONIC|BOOTTIME|REALTIME)\w*)\b")

# Files, and folders.
MEASURE = {
    "runtime/comm/clock_offset.h",
    "runtime/comm/control/activity.cpp",
    "runtime/comm/control/status.cpp",
    "runtime/comm/cpu/inter_node.cpp",
    "runtime/comm/operation.cpp",
    "runtime/data/loader.cpp",
    "runtime/data/loader_advice.cpp",
    "runtime/data/plan/tool/main.cpp",
    "runtime/ddp/lateness.cpp",
    "runtime/ddp/sync_observer.cpp",
    "runtime/profile/",
    "runtime/train/checkpoint/reader.cpp",
    "runtime/train/checkpoint/writer.cpp",  # how often it tells its progress
    "runtime/train/debug.cpp",
}
# A wait that ends too early repeats, or hurries the end of a job that has already failed.
HARMLESS = {
    "runtime/comm/control/control_channel.cpp",
    "runtime/comm/cpu/alarm.cpp",
    "runtime/comm/cpu/communicator.cpp",
    "runtime/train/checkpoint/file_progress.cpp",
    "runtime/train/checkpoint/folder_lock.cpp",  # another process writes into its lock all the time
    "runtime/train/checkpoint/folder_lock.h",  # how often it asks Slurm
}
OWN = {"runtime/comm/timeout.h"}

found = {}
for path in sorted((ROOT / "runtime").rglob("*")):
    if path.suffix in (".cpp", ".h"):
        name = path.relative_to(ROOT).as_posix()
        code = re.sub(r"//.*", "", path.read_text())
        if clock := CLOCK.search(code):
            found[name] = clock[0]
if not OWN <= found.keys():
    sys.exit(f"clocks.py: {ROOT} does not have the runtime's timeout.h")

listed = MEASURE | HARMLESS | OWN
covers = lambda entry, name: name.startswith(entry) if entry.endswith("/") else name == entry
errors = [f"{name} uses {clock}: use comm::OperationTimeout, which does not count the time of a suspended job; if the file "
          "only measures, list it in tests/lint/clocks.py"
          for name, clock in found.items() if not any(covers(entry, name) for entry in listed)]
errors += [f"{entry} uses no clock: remove it from tests/lint/clocks.py"
           for entry in sorted(listed) if not any(covers(entry, name) for name in found)]
for error in errors:
    print(error)
sys.exit(1 if errors else 0)
