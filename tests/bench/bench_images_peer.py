#!/usr/bin/env python3
"""Makes photos smaller as programs with OpenCV do, for bench_images. Prints {"seconds":…,"bytes":…}.

  bench_images_peer.py opencv|opencv_reduced PHOTOS OUT SIZE[,SIZE…] PROCESSES

opencv_reduced decodes at a part of the size, as the recipe does, which users of OpenCV must ask for."""

import json
import multiprocessing
import pathlib
import sys
import time


def opencv(path, sizes, reduced):
    import cv2

    cv2.setNumThreads(1)
    made = []
    for size in sizes:
        flags = cv2.IMREAD_COLOR
        if reduced:
            from PIL import Image  # reads the size from the header

            fits = min(Image.open(path).size) // (2 * size)
            flags = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4,
                     8: cv2.IMREAD_REDUCED_COLOR_8}[next(part for part in (8, 4, 2, 1) if part <= max(fits, 1))]
        image = cv2.imread(str(path), flags)
        shorter = min(image.shape[:2])
        to = (round(image.shape[1] * size / shorter), round(image.shape[0] * size / shorter))
        image = cv2.resize(image, to, interpolation=cv2.INTER_AREA)
        made.append(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
    return made


def make(job):
    name, path, sizes = job
    return opencv(path, sizes, reduced=name == "opencv_reduced")


def main():
    name, photos, out, sizes, processes = sys.argv[1:]
    jobs = [(name, path, [int(size) for size in sizes.split(",")]) for path in sorted(pathlib.Path(photos).iterdir())]
    with multiprocessing.Pool(int(processes)) as pool:
        pool.map(make, jobs[:int(processes)], chunksize=1)  # imports
        begin = time.monotonic()
        total = 0
        with open(out, "wb") as file:
            for made in pool.imap(make, jobs, chunksize=4):
                for image in made:
                    total += file.write(image)
        seconds = time.monotonic() - begin
    print(json.dumps({"seconds": seconds, "bytes": total}))


if __name__ == "__main__":
    main()
