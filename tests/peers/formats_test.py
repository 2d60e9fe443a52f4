#!/usr/bin/env python3
"""Megatron-Core reads our files, and we read its files. Exits 77 if a package is not found (PYTHONPATH).

Usage: formats_test.py --peer formats_peer
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77


def lines_of(peer: str, source: pathlib.Path):
    output = subprocess.run([peer, "read", str(source)], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def documents(type_name: str, numpy):
    """Documents of sequences whose tokens cover the range of the type."""
    random = numpy.random.default_rng(7)
    dtype = getattr(numpy, type_name)
    for lengths in ([3, 0, 1], [200], [1], [5000, 17]):
        if numpy.issubdtype(dtype, numpy.integer):
            info = numpy.iinfo(dtype)
            yield [random.integers(info.min, info.max, length, dtype=dtype, endpoint=True) for length in lengths]
        else:
            yield [random.standard_normal(length).astype(dtype) for length in lengths]


def megatron(peer: str, folder: pathlib.Path) -> None:
    import formats_peers
    import numpy
    import torch

    indexed = formats_peers.megatron_indexed_dataset()
    names = {"uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "float64": "f64",
             "float32": "f32", "uint16": "u16"}
    for name, ours in names.items():
        data = list(documents(name, numpy))
        flat = [sequence for document in data for sequence in document]

        builder = indexed.IndexedDatasetBuilder(str(folder / f"theirs_{name}.bin"), dtype=getattr(numpy, name))
        for document in data:
            for sequence in document:
                # torch 1.13 has no uint16; the builder converts the numbers to its type.
                wide = sequence.astype("float64" if name.startswith("float") else "int64")
                builder.add_item(torch.from_numpy(wide))
            builder.end_document()
        builder.finalize(str(folder / f"theirs_{name}.idx"))
        read = lines_of(peer, folder / f"theirs_{name}")
        assert [line["parts"][0]["bytes"] for line in read] == [s.tobytes().hex() for s in flat], name
        assert [line["tokens"] for line in read] == [len(s) for s in flat], name

        lines = [json.dumps({"tokens": s.tobytes().hex(), "end": s is document[-1]}) for document in data for s in document]
        subprocess.run([peer, "write", str(folder / f"ours_{name}"), ours], check=True, input="\n".join(lines), text=True)
        dataset = indexed.IndexedDataset(str(folder / f"ours_{name}"), mmap=True)
        assert len(dataset) == len(flat), name
        for i, sequence in enumerate(flat):
            assert dataset[i].dtype == sequence.dtype and dataset[i].tobytes() == sequence.tobytes(), (name, i)
        assert dataset.document_indices.tolist() == [0, 3, 4, 5, 7], name
        for end in ("bin", "idx"):
            ours_bytes = (folder / f"ours_{name}.{end}").read_bytes()
            assert ours_bytes == (folder / f"theirs_{name}.{end}").read_bytes(), (name, end)
    print("8 types: Megatron-Core reads our files, we read Megatron-Core's files, and their bytes are equal")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            megatron(arguments.peer, pathlib.Path(folder))
        except ImportError as error:
            print(f"skipped: {error}: install the package with pip install --no-deps --target DIR, and set PYTHONPATH=DIR")
            return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
