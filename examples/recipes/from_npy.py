#!/usr/bin/env python3
"""Makes a pack's input of .npy files, read by NumPy. Integers of one axis are a document of tokens, of two axes a document in
each row: PREFIX.bin and PREFIX.idx, for `lockstep-pack convert`. Anything else becomes tar shards, with the bytes of each
row of the first axis as 000000000.raw, for `lockstep-pack index`. Needs the package numpy.
"""

import argparse

import numpy
from tar_shards import TarShards
from token_file import TokenFile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--kind", default="raw", help="the ending of samples that are not tokens (raw)")
    parser.add_argument("--out", required=True, help="PREFIX of tokens, or a new folder for shards")
    given = parser.parse_args()
    arrays = [numpy.load(file, mmap_mode="r") for file in given.files]
    if all(array.dtype.kind in "iu" and array.ndim in (1, 2) for array in arrays):
        if any(array.size and array.min() < 0 for array in arrays):
            raise SystemExit("a token is negative")
        largest = max(int(array.max()) for array in arrays if array.size)
        with TokenFile(given.out, largest + 1) as out:
            for document in (row for array in arrays for row in numpy.atleast_2d(array)):
                out.add(document.tolist())
        print(f"{len(out.lengths)} documents: lockstep-pack convert {given.out} --out PACK")
        return
    with TarShards(given.out) as shards:
        for row in (row for array in arrays for row in (array if array.ndim > 1 else array[None])):
            shards.add([(f"{shards.samples:09}.{given.kind}", numpy.ascontiguousarray(row).tobytes())])


if __name__ == "__main__":
    main()
