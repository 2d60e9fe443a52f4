#!/usr/bin/env python3
"""Writes MosaicML's MDS shards (a folder with index.json) as tar shards, for `lockstep-pack index`. Each column is a file of the
sample: bytes, JPEG, PNG and text as they are stored, other values as text. --name image=jpg gives a column an ending. One
column of integer arrays becomes tokens, OUT.bin and OUT.idx, for `lockstep-pack convert`. Needs mosaicml-streaming.
"""

import argparse
import json

from streaming.base.format import reader_from_json
from tar_shards import TarShards
from token_file import TokenFile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--name", action="append", default=[], metavar="COLUMN=ENDING", help="default: the column's name")
    parser.add_argument("--out", required=True, help="a new folder, or the PREFIX of tokens")
    given = parser.parse_args()
    names = dict(name.split("=", 1) for name in given.name)
    with open(f"{given.folder}/index.json") as index:
        readers = [reader_from_json(given.folder, None, shard) for shard in json.load(index)["shards"]]
    samples = (reader[number] for reader in readers for number in range(reader.size))
    encodings = readers[0].column_encodings
    if len(encodings) == 1 and encodings[0].startswith("ndarray"):
        with TokenFile(given.out, 1 << 16 if "uint16" in encodings[0] else 1 << 31) as out:
            for sample in samples:
                out.add(next(iter(sample.values())).tolist())
        return
    stored = {"bytes", "jpeg", "png", "str", "json", "pkl"}
    for reader in readers:
        reader.column_encodings = ["bytes" if encoding in stored else encoding for encoding in reader.column_encodings]
    with TarShards(given.out) as shards:
        for number, sample in enumerate(samples):
            shards.add([(f"{number:09}.{names.get(column, column)}", value if isinstance(value, bytes) else str(value).encode())
                        for column, value in sample.items()])


main()
