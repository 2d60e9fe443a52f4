#!/usr/bin/env python3
"""Writes small files in every format that lockstep reads, with that format's own package, and lists their samples.

Usage: formats_vectors.py FOLDER      replaces FOLDER; tests/data/formats is such a folder.

expected.json has the samples of every source as hex digits, as the package wrote or returned them.
"""

import json
import pathlib
import shutil
import struct
import sys

import formats_peers
import numpy as np

EXPECTED = []


def payload(i: int, length: int) -> bytes:
    return bytes((i * 31 + j * 7) % 251 for j in range(length))


def expect(source: str, tokens: str, samples, keys=None, view=True) -> None:
    entry = {"source": source, "tokens": tokens, "samples": [sample.hex() for sample in samples], "view": view}
    if keys is not None:
        entry["keys"] = [key.decode() for key in keys]
    EXPECTED.append(entry)


def write_megatron(folder: pathlib.Path) -> None:
    indexed = formats_peers.megatron_indexed_dataset()
    import torch

    folder.mkdir()
    names = {"uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "float64": "f64",
             "float32": "f32", "uint16": "u16"}
    for name, ours in names.items():
        dtype = getattr(np, name)
        builder = indexed.IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype)
        samples = []
        for i, length in enumerate((3, 0, 5, 1)):
            numbers = np.arange(i * 10, i * 10 + length)
            builder.add_item(torch.from_numpy(numbers))
            samples.append(numbers.astype(dtype).tobytes())
            if i != 0:
                builder.end_document()
        builder.finalize(str(folder / f"{name}.idx"))
        expect(f"megatron/{name}.idx", ours, samples)


def write_tfrecord(folder: pathlib.Path) -> None:
    import tfrecord

    folder.mkdir()
    everything = []
    for shard in range(2):
        path = folder / f"train.tfrecord-{shard:05}-of-00002"
        writer = tfrecord.TFRecordWriter(str(path))
        for i in range(3):
            writer.write({"image": (payload(shard * 3 + i, 5 + 20 * i), "byte"), "label": (i, "int")})
        writer.close()
        records = [bytes(record) for record in tfrecord.reader.tfrecord_iterator(str(path))]
        everything += records
        expect(f"tfrecord/{path.name}", "none", records)
    expect("tfrecord", "none", everything)


def write_lmdb(folder: pathlib.Path) -> None:
    import lmdb

    folder.mkdir()
    entries = {f"{i:08}".encode(): payload(i, 10 + 12 * i) for i in range(30)}
    entries[b"large"] = payload(1, 9000)
    entries[b"large2"] = payload(2, 4500)
    entries[b"empty"] = b""
    environment = lmdb.open(str(folder / "db"), map_size=1 << 20)
    with environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    with environment.begin() as transaction:
        pairs = [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
    environment.close()
    (folder / "db" / "lock.mdb").unlink()
    expect("lmdb/db", "none", [value for _, value in pairs], keys=[key for key, _ in pairs])
    named = lmdb.open(str(folder.parent / "lmdb_refused.mdb"), subdir=False, lock=False, map_size=1 << 16, max_dbs=2)
    with named.begin(write=True) as transaction:
        transaction.put(b"x", b"1", db=named.open_db(b"train", transaction))
    named.close()


def write_hdf5(folder: pathlib.Path) -> None:
    import h5py

    folder.mkdir()
    rows = np.arange(6 * 4, dtype=np.uint16).reshape(6, 4)
    with h5py.File(folder / "only.h5", "w") as file:
        file["group/rows"] = rows
    expect("hdf5/only.h5", "u16", [row.tobytes() for row in rows])
    pictures = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
    texts = ["one", "", "thr\u00e9e"]
    lists = [np.array([1, 2, 3], np.int32), np.array([], np.int32), np.array([-1], np.int32)]
    with h5py.File(folder / "several.h5", "w", libver=("earliest", "v110")) as file:
        file.create_dataset("pictures", data=pictures, chunks=(2, 3, 4), compression="gzip")
        file.create_dataset("texts", data=texts, dtype=h5py.string_dtype())
        variable = file.create_dataset("lists", (3,), dtype=h5py.vlen_dtype(np.int32))
        for i, numbers in enumerate(lists):
            variable[i] = numbers
        file["document"] = np.arange(9, dtype=np.int32)
        file["fixed"] = np.array([b"one", b"four"], dtype="S4")
        file["big"] = np.arange(4, dtype=">u4")
        file["elsewhere"] = h5py.ExternalLink("only.h5", "/group/rows")
    source = "hdf5/several.h5:/"
    expect(source + "pictures", "none", [picture.tobytes() for picture in pictures], view=False)
    expect(source + "texts", "none", [text.encode() for text in texts], view=False)
    expect(source + "lists", "i32", [numbers.tobytes() for numbers in lists], view=False)
    expect(source + "document", "i32", [np.arange(9, dtype=np.int32).tobytes()])
    expect(source + "fixed", "none", [b"one\0", b"four"])


def write_recordio(folder: pathlib.Path) -> None:
    recordio = formats_peers.recordio()

    folder.mkdir()
    magic = struct.pack("<I", 0xCED7230A)
    samples = [payload(0, 7), b"", payload(1, 8) + magic + payload(2, 3), magic, magic + magic + b"end", payload(3, 90)]
    writer = recordio.MXIndexedRecordIO(str(folder / "train.idx"), str(folder / "train.rec"), "w")
    for i, sample in enumerate(samples):
        writer.write_idx(100 + i, sample)
    writer.close()
    reader = recordio.MXIndexedRecordIO(str(folder / "train.idx"), str(folder / "train.rec"), "r")
    assert [bytes(reader.read_idx(100 + i)) for i in range(len(samples))] == samples
    reader.close()
    expect("recordio/train.rec", "none", samples, keys=[str(100 + i).encode() for i in range(len(samples))], view=False)


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    readme = (folder / "README.md").read_text() if (folder / "README.md").exists() else None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_megatron(folder / "megatron")
    write_tfrecord(folder / "tfrecord")
    write_lmdb(folder / "lmdb")
    write_hdf5(folder / "hdf5")
    write_recordio(folder / "recordio")
    (folder / "expected.json").write_text(json.dumps(EXPECTED, indent=1) + "\n")
    if readme is not None:
        (folder / "README.md").write_text(readme)
    return 0


if __name__ == "__main__":
    sys.exit(main())
