#!/usr/bin/env python3
"""Makes a pack's input of .npy files, read by NumPy. Integers of one axis are a document of tokens, of two axes a document in
each row: PREFIX.bin and PREFIX.idx, for `lockstep-pack convert`. Anything else becomes tar shards, with the bytes of each
row of the first axis as 000000000.raw, little-endian, for `lockstep-pack index`. Needs the package numpy.
"""

import argparse
import os

import numpy
from one_line import one_line_errors
from tar_shards import TarShards
from token_file import TokenFile


def rows_of(file: str) -> numpy.ndarray:
    with one_line_errors(file):
        array = numpy.load(file, mmap_mode="r")
        if not isinstance(array, numpy.memmap) or array.dtype.names or os.path.getsize(file) != array.offset + array.nbytes:
            raise ValueError("not one array of numbers: save each array, and each field of values with fields, in a .npy file")
        return array if array.ndim > 1 else array[None]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("files", nargs="+")
parser.add_argument("--kind", default="raw", help="the ending of samples that are not tokens (raw)")
parser.add_argument("--out", required=True, help="PREFIX of tokens, or a new folder for shards")
given = parser.parse_args()
all_rows = ((file, row) for file in given.files for row in rows_of(file))
tokens = {rows.dtype.kind in "iu" and rows.ndim == 2 for rows in map(rows_of, given.files)}
if len(tokens) == 2:
    raise SystemExit(f"{', '.join(given.files)[:1000]}: some hold tokens, and some other arrays: give them to two calls")
if tokens == {True}:
    with TokenFile(given.out, 1 + max(int(rows.max(initial=0)) for rows in map(rows_of, given.files))) as out:
        for file, row in all_rows:
            out.add(row.tolist(), file)
else:
    with TarShards(given.out) as shards:
        for _, row in all_rows:
            shards.add([(f"{shards.samples:09}.{given.kind}", row.astype(row.dtype.newbyteorder("<"), "C").tobytes())])
