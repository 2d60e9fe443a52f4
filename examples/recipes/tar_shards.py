"""Writes tar shards as WebDataset has them; `lockstep-pack index FOLDER` makes a pack of them. Needs no packages.

    with TarShards("out", shard_size=256 << 20) as shards:
        shards.add([("0001.jpg", jpeg), ("0001.cls", b"7")])   # a sample: all its files
"""

import io
import os
import tarfile


class TarShards:
    def __init__(self, folder: str, shard_size: int = 256 << 20):
        os.mkdir(folder)
        self.folder, self.shard_size = folder, shard_size
        self.tar, self.shards, self.samples = None, 0, 0

    def add(self, files: "list[tuple[str, bytes]]") -> None:
        if self.tar is None or self.tar.offset >= self.shard_size:
            self.close()
            self.tar = tarfile.open(f"{self.folder}/shard-{self.shards:06}.tar", "w", format=tarfile.GNU_FORMAT)
            self.shards += 1
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            self.tar.addfile(member, io.BytesIO(content))
        self.samples += 1

    def close(self) -> None:
        if self.tar is not None:
            self.tar.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close()
        if kind is None and self.samples == 0:
            raise SystemExit("no samples")
        if kind is None:
            print(f"{self.samples} samples in {self.shards} shards: lockstep-pack index {self.folder}")
