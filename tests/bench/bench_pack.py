#!/usr/bin/env python3
"""Times the packing of many small files and, with --peers, `tar cf` and `cp -r` of the same files: from the page cache
and, if it can be mounted (root, FUSE), from the metered shared file system with 2 ms more per operation. The programs
take turns, and the medians of the runs are printed. Lockstep hashes the data and syncs it to the disk; the others do
neither."""

import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import program
from metered import mounted
from ranks import run, say


def arguments():
    parser = program.parser("bench_pack", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run tar and cp")
    parser.add_argument("--files", type=int, default=100_000, help="files in the page cache (default 100,000)")
    parser.add_argument("--bytes", type=int, default=2048, help="bytes of each file (default 2,048)")
    parser.add_argument("--threads", default="0,1", help="of lockstep-pack (default 0,1; 0: automatic)")
    parser.add_argument("--metered-files", type=int, default=5000, help="files on the metered file system; 0: none")
    parser.add_argument("--latency-ms", type=float, default=2, help="of each operation of the metered file system")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="folder for files and packs (default: the folder of temporary files)")
    chosen = parser.parse_args()
    chosen.programs = pathlib.Path(chosen.programs).resolve()
    chosen.threads = [int(word) for word in chosen.threads.split(",")]
    if chosen.quick:
        chosen.runs, chosen.files, chosen.threads, chosen.metered_files = 1, 2000, [0], 0
    if min(chosen.runs, chosen.files, chosen.bytes) < 1 or min(chosen.threads) < 0:
        parser.error("--runs, --files and --bytes must be at least 1, and --threads at least 0")
    return chosen


def make_files(folder, count, size):
    make = random.Random(1)
    for i in range(count):
        if i % 1000 == 0:
            part = folder / f"{i // 1000:04}"
            part.mkdir(parents=True)
        (part / f"{i:07}.txt").write_bytes(make.randbytes(size))


def timed(command, what):
    """Seconds and peak memory of a command that must succeed."""
    begin = time.monotonic()
    with program.started(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        memory = program.finish(process, what)[1]
    return time.monotonic() - begin, memory


def commands(chosen, files, out):
    pack = str(chosen.programs / "lockstep-pack")
    for threads in chosen.threads:
        yield ("lockstep", threads), [pack, "create", str(files), "--out", str(out), "--threads", str(threads)]
    if chosen.peers:
        yield ("tar", 1), ["tar", "cf", str(out), "-C", str(files.parent), files.name]
        yield ("cp", 1), ["cp", "-r", str(files), str(out)]


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def measure(chosen, files, folder, count, source):
    """Measures one source of files. Yields its lines."""
    found = {}
    for number in range(chosen.runs):
        say(f"{source}: run {number + 1} of {chosen.runs}")
        for case, command in commands(chosen, files, folder / "out"):
            found.setdefault(case, []).append(timed(command, " ".join(map(str, case))))
            remove(folder / "out")
    for (name, threads), results in found.items():
        line = {
            "bench": "pack",
            "implementation": name,
            "source": source,
            "files": count,
            "bytes": count * chosen.bytes,
            "threads": threads,
            "seconds": statistics.median(seconds for seconds, _ in results),
            "memory_bytes": max(memory for _, memory in results),
            "runs": chosen.runs,
        }
        if ("cp", 1) in found:  # in pairs, because other load on the machine affects both
            pairs = zip(results, found["cp", 1])
            line["over_cp"] = statistics.median(own[0] / copy[0] for own, copy in pairs)
        if source == "metered":
            line["latency_ms"] = chosen.latency_ms
        yield line


def metered_is_missing(chosen):
    """Why the metered file system cannot be mounted; "" if it can be."""
    if not (chosen.programs / "metered-fs").exists():
        return "metered-fs is not built"
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        return "mounting needs root and /dev/fuse"
    return ""


def cases(chosen, folder):
    files = folder / "files"
    make_files(files, chosen.files, chosen.bytes)
    yield from measure(chosen, files, folder, chosen.files, "page_cache")
    shutil.rmtree(files)
    if chosen.metered_files == 0:
        return
    if missing := metered_is_missing(chosen):
        print(f"bench_pack: the metered file system is left out: {missing}", file=sys.stderr)
        return
    backing, meter, tool = folder / "backing", folder / "meter", chosen.programs / "metered-fs"
    make_files(backing / "files", chosen.metered_files, chosen.bytes)
    run([str(tool), "meter", str(meter), "--create", "--latency-ms", str(chosen.latency_ms)], "metered-fs meter")
    with mounted(tool, backing, folder / "metered", meter, "n1") as point:
        yield from measure(chosen, point / "files", folder, chosen.metered_files, "metered")


def main():
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="bench_pack.", dir=chosen.folder) as folder:
        program.show(cases(chosen, pathlib.Path(folder)))


if __name__ == "__main__":
    program.run("bench_pack", main)
