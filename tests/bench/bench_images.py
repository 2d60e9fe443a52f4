#!/usr/bin/env python3
"""Times the recipe that makes photos smaller (examples/recipes/resize_images.py) and, with --peers, programs that do the same
with OpenCV. Every program reads the same JPEG files, scales the shorter side, encodes JPEG with quality 90 and writes the
results into large files. The programs take turns, and the medians of the runs are printed. The photos are made up."""

import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

import program
from ranks import say

PEERS = ("opencv", "opencv_reduced")
RECIPE = pathlib.Path(__file__).resolve().parents[2] / "examples/recipes/resize_images.py"


def arguments():
    parser = program.parser("bench_images", __doc__)
    parser.add_argument("--peers", action="store_true", help="also run OpenCV, of this Python or of --modules")
    parser.add_argument("--modules", default="", help="folder of `pip install --target FOLDER Pillow opencv-python-headless`")
    parser.add_argument("--photos", type=int, default=100, help="number of photos (default 100)")
    parser.add_argument("--side", type=int, default=2000, help="shorter side of the photos (default 2000; 6 megapixels)")
    parser.add_argument("--resize", default="256", help="of the results (default 256); several make several folders")
    parser.add_argument("--threads", default="1,2", help="processes (default 1,2)")
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    chosen.threads = [int(word) for word in chosen.threads.split(",")]
    chosen.sizes = [int(word) for word in chosen.resize.split(",")]
    if chosen.quick:
        chosen.runs, chosen.photos, chosen.side, chosen.threads = 1, 4, 300, [1]
    if min(chosen.runs, chosen.photos, chosen.side, *chosen.threads, *chosen.sizes) < 1:
        parser.error("all numbers must be at least 1")
    return chosen


def make_photos(chosen, folder):
    """A folder of JPEG files: clouds of colour with grain."""
    from PIL import Image

    photos = folder / "photos"
    photos.mkdir()
    wide = chosen.side * 3 // 2
    for i in range(chosen.photos):
        bands = [Image.effect_noise((max(wide // 40, 1), max(chosen.side // 40, 1)), 100) for _ in range(3)]
        clouds = Image.merge("RGB", bands).resize((wide, chosen.side), Image.BICUBIC)
        grain = Image.effect_noise((wide, chosen.side), 20).convert("RGB")
        Image.blend(clouds, grain, 0.2).save(photos / f"{i:05}.jpg", quality=92)
    return photos


def environment(chosen):
    return os.environ | {"PYTHONPATH": chosen.modules} if chosen.modules else os.environ


def recipe(chosen, photos, out, threads):
    begin = time.monotonic()
    with program.started([sys.executable, RECIPE, photos, "--resize", chosen.resize, "--out", out, "--workers", threads],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(chosen)) as process:
        program.finish(process, "the recipe")
    seconds = time.monotonic() - begin
    return seconds, sum(member.size for path in out.parent.glob(f"{out.name}*/*.tar") for member in tarfile.open(path))


def peer(chosen, name, photos, out, threads):
    """Its time is measured inside, after its imports."""
    command = [sys.executable, pathlib.Path(__file__).with_name("bench_images_peer.py"), name, photos, out, chosen.resize, threads]
    with program.started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(chosen)) as process:
        line = json.loads(program.finish(process, name)[0])
    return line["seconds"], line["bytes"]


def measure(chosen, folder):
    photos = make_photos(chosen, folder)
    files = list(photos.iterdir())
    found = {}
    for number in range(chosen.runs):
        say(f"run {number + 1} of {chosen.runs}")
        for threads in chosen.threads:
            found.setdefault(("recipe", threads), []).append(recipe(chosen, photos, folder / "out", threads))
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
    sys.path[:0] = [chosen.modules] if chosen.modules else []
    if importlib.util.find_spec("PIL") is None:
        print("bench_images: skipped: Python has no Pillow", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="bench_images.") as folder:
        program.show(measure(chosen, pathlib.Path(folder)))


if __name__ == "__main__":
    program.run("bench_images", main)
