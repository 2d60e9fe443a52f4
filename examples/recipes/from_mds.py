#!/usr/bin/env python3
"""Writes MosaicML's MDS shards (a folder with index.json) as tar shards: each column is a file, with bytes, pictures and text as
stored, arrays in little-endian order, numbers as text; --name image=jpg gives a column an ending. One column of integer arrays
becomes tokens, OUT.bin and OUT.idx. Then `lockstep-pack index` or `convert`. Needs the package mosaicml-streaming."""

import argparse
import json
import os

from one_line import one_line_errors
from streaming.base.format import reader_from_json
from tar_shards import TarShards, bytes_of
from token_file import TokenFile


def samples_of(folder: str):
    with one_line_errors(folder), open(f"{folder}/index.json") as index:
        for reader in (reader_from_json(folder, None, shard) for shard in json.load(index)["shards"]):
            name, size = f"{folder}/{reader.raw_data.basename}", reader.raw_data.bytes
            if not os.path.exists(name) or os.path.getsize(name) != size:
                raise ValueError(f"{name} does not have {size} bytes, as index.json says: copy it again, or unpack it (zstd -d)")
            stored = "bytes jpeg jpeg_array jpegarray png str json pkl".split()
            reader.column_encodings = ["bytes" if kind in stored else kind for kind in reader.column_encodings]
            yield from reader


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("--name", action="append", default=[], type=lambda text: text.split("=", 1), metavar="COLUMN=ENDING")
parser.add_argument("--out", required=True, help="a new folder, or the PREFIX of tokens")
given = parser.parse_args()
first = list(next(samples_of(given.folder), {}).values())
if len(first) == 1 and getattr(first[0], "ndim", 0) == 1 and first[0].dtype.kind in "iu":
    with TokenFile(given.out, 1 << 16 if first[0].itemsize <= 2 else 1 << 31) as out:
        for sample in samples_of(given.folder):
            out.add(next(iter(sample.values())).ravel().tolist(), f"{given.folder}, sample {len(out.lengths)}")
else:
    with TarShards(given.out) as shards:
        for sample in samples_of(given.folder):
            shards.add([(f"{shards.samples:09}.{dict(given.name).get(name, name)}", bytes_of(value)) for name, value in sample.items()])
