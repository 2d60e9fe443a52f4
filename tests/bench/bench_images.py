#!/usr/bin/env python3
"""Times `lockstep-pack images`, which makes photos smaller, and, with --peers, programs that do the same with Pillow and
with OpenCV. Every program reads the same JPEG files, scales the shorter side, encodes JPEG with quality 90 and writes
the results into one file. The programs take turns, and the medians of the runs are printed. The photos are made up."""

import json
import math
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib

import program
from ranks import run, say

PEERS = ("pillow", "pillow_draft", "opencv", "opencv_reduced")


def arguments():
    parser = program.parser("bench_images", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run Pillow and OpenCV, of this Python or of --modules")
    parser.add_argument("--modules", default="", help="folder of `pip install --target FOLDER Pillow opencv-python-headless`")
    parser.add_argument("--photos", type=int, default=100, help="number of photos (default 100)")
    parser.add_argument("--side", type=int, default=2000, help="shorter side of the photos (default 2000; 6 megapixels)")
    parser.add_argument("--resize", default="256", help="of the results (default 256); several make several packs")
    parser.add_argument("--threads", default="1,2", help="threads, or processes of the peers (default 1,2)")
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    chosen.programs = pathlib.Path(chosen.programs).resolve()
    chosen.threads = [int(word) for word in chosen.threads.split(",")]
    chosen.sizes = [int(word) for word in chosen.resize.split(",")]
    if chosen.quick:
        chosen.runs, chosen.photos, chosen.side, chosen.threads = 1, 4, 300, [1]
    if min(chosen.runs, chosen.photos, chosen.side, *chosen.threads, *chosen.sizes) < 1:
        parser.error("all numbers must be at least 1")
    return chosen


def png(height, width, seed):
    """Smooth colours with grain."""
    make = random.Random(seed)

    def wave(length):
        turns, phase = make.uniform(4, 50), make.random() * 6
        return [int(50 * math.sin(turns * i / length + phase)) for i in range(length)]

    columns = [value for pixel in zip(*(wave(width) for _ in range(3))) for value in pixel]
    lines = [wave(height) for _ in range(3)]
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        line = [100 + lines[channel][y] for channel in range(3)] * width
        rows += bytes(map(lambda a, b, grain: a + b + (grain >> 3), columns, line, make.randbytes(3 * width)))

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows), 1)) + chunk(b"IEND", b"")


def make_photos(chosen, folder):
    """A folder of JPEG files: pictures of a fifth of the size, enlarged by lockstep-pack."""
    small, packs, photos = folder / "small", folder / "large", folder / "photos"
    small.mkdir()
    height = max(chosen.side // 5, 1)
    first = [png(height, height * 3 // 2, seed) for seed in range(min(chosen.photos, 4))]
    for i in range(chosen.photos):
        (small / f"{i:05}.png").write_bytes(first[i % len(first)])
    run([str(chosen.programs / "lockstep-pack"), "images", str(small), "--out", str(packs), "--resize", str(chosen.side)],
        "making the photos")
    photos.mkdir()
    for shard in sorted(packs.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                (photos / member.name).write_bytes(tar.extractfile(member).read())
    shutil.rmtree(packs)
    return photos


def lockstep(chosen, photos, out, threads):
    begin = time.monotonic()
    with program.started([chosen.programs / "lockstep-pack", "images", "--resize", chosen.resize, photos, "--out", out,
                          "--threads", threads, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        output = program.finish(process, "lockstep-pack images")[0]
    bytes_made = sum(json.loads(line)["payload_bytes"] for line in output.splitlines())
    return time.monotonic() - begin, bytes_made


def peer(chosen, name, photos, out, threads):
    """Its time is measured inside, after its imports."""
    environment = os.environ | {"PYTHONPATH": chosen.modules} if chosen.modules else os.environ
    command = [sys.executable, pathlib.Path(__file__).with_name("bench_images_peer.py"), name, photos, out, chosen.resize, threads]
    with program.started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        line = json.loads(program.finish(process, name)[0])
    return line["seconds"], line["bytes"]


def measure(chosen, folder):
    photos = make_photos(chosen, folder)
    files = list(photos.iterdir())
    found = {}
    for number in range(chosen.runs):
        say(f"run {number + 1} of {chosen.runs}")
        for threads in chosen.threads:
            found.setdefault(("lockstep", threads), []).append(lockstep(chosen, photos, folder / "out", threads))
            for path in folder.glob("out*"):
                shutil.rmtree(path)
            for name in PEERS if chosen.peers else ():
                found.setdefault((name, threads), []).append(peer(chosen, name, photos, folder / "out", threads))
                (folder / "out").unlink()
    for (name, threads), results in found.items():
        seconds = statistics.median(seconds for seconds, _ in results)
        yield {"bench": "images", "implementation": name, "photos": len(files), "side": chosen.side, "resize": chosen.sizes,
               "source_bytes": sum(path.stat().st_size for path in files), "payload_bytes": results[0][1],
               "threads": threads, "seconds": seconds, "photos_per_second": len(files) / seconds, "runs": chosen.runs}


def main():
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="bench_images.") as folder:
        program.show(measure(chosen, pathlib.Path(folder)))


if __name__ == "__main__":
    program.run("bench_images", main)
