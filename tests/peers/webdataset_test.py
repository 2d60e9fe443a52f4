#!/usr/bin/env python3
"""WebDataset reads the shards that lockstep-pack writes: the same samples with the same parts, in the same order.

Exits 77 if Python does not find webdataset, braceexpand, numpy or yaml (PYTHONPATH).
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import webdataset
except ImportError as error:
    print(f"skipped: {error} (PyPI: webdataset, braceexpand; Debian: python3-numpy, python3-yaml; set PYTHONPATH)")
    sys.exit(77)


def files_of_samples():
    """Files with typical names and contents of many sizes."""
    make = random.Random(5)
    files = {}
    for i in range(60):
        folder = make.choice(["", "train/", "a.b/", "long/" + "n" * 90 + "/" + "m" * 120 + "/"])
        for kind in make.choice([["txt"], ["jpg", "json"], ["seg.png", "cls", "jpg"]]):
            files[f"{folder}{i:04}.{kind}"] = make.randbytes(make.choice([0, 1, 511, 512, 513, 5000]))
    files["train/\u00e4\u4e2d.txt"] = b"not ASCII"
    return files


def lockstep_pack(arguments, *words):
    command = [arguments.lockstep_pack, *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def ours(arguments, pack, contents):
    """(key, {kind: content}) in the order of the index."""
    samples = []
    for line in lockstep_pack(arguments, "ls", pack, "--json").splitlines():
        part = json.loads(line)
        if not samples or samples[-1][0] != part["key"]:
            samples.append((part["key"], {}))
        samples[-1][1][part["kind"]] = contents[f"{part['key']}.{part['kind']}"]
    return samples


def theirs(pack):
    shards = sorted(str(path) for path in pathlib.Path(pack).glob("*.tar"))
    assert len(shards) > 3, "the test needs several shards"
    data = webdataset.WebDataset(shards, shardshuffle=False)
    return [
        (sample["__key__"], {kind: content for kind, content in sample.items() if not kind.startswith("__")})
        for sample in data
    ]


def compare(what, expected, found):
    assert [key for key, _ in found] == [key for key, _ in expected], f"{what}: different samples, or a different order"
    for (key, ours_), (_, theirs_) in zip(expected, found):
        assert theirs_ == ours_, f"{what}: sample {key} differs"
    print(f"{what}: {len(found)} equal samples")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep-pack", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-webdataset.") as folder:
        source, pack, again = (f"{folder}/{name}" for name in ("source", "pack", "again"))
        contents = files_of_samples()
        for name, content in contents.items():
            path = pathlib.Path(source, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        lockstep_pack(arguments, "create", source, "--out", pack, "--shard-size", "32K")
        expected = ours(arguments, pack, contents)
        assert len(expected) == 61 and sum(len(parts) for _, parts in expected) == len(contents)
        compare("created", expected, theirs(pack))
        lockstep_pack(arguments, "convert", pack, "--out", again, "--shard-size", "20K")
        compare("sharded again", expected, theirs(again))


main()
