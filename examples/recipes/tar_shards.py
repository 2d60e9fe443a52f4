"""Writes tar shards as WebDataset has them; `lockstep-pack index FOLDER` makes a pack of them. Needs no packages.

    with TarShards("out", shard_size=256 << 20) as shards:
        shards.add([("0001.jpg", jpeg), ("0001.cls", b"7")])   # a sample: all its files

The folder appears when it is complete.
"""

import io
import numbers
import os
import shutil
import tarfile


def key_of(name: str) -> str:
    """Files of one sample have the same: the path up to the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def bytes_of(value) -> bytes:
    """A file's content: arrays in little-endian order, numbers and texts as text."""
    if isinstance(value, bytes):
        return value
    if getattr(value, "ndim", 0):
        return value.astype(value.dtype.newbyteorder("<"), "C").tobytes()
    if not isinstance(value, (str, numbers.Number)):
        raise ValueError(f"a value is a {type(value).__name__}, and not bytes, a text, a number or an array")
    return str(value).encode()


class TarShards:
    def __init__(self, folder: str, shard_size: int = 256 << 20):
        self.folder, self.shard_size = folder.rstrip("/"), shard_size
        self.part = f"{self.folder}.part"
        self.tar, self.shards, self.samples, self.key = None, 0, 0, None
        for path in (self.folder, self.part):
            if os.path.lexists(path):
                raise SystemExit(f"{path} exists: remove it, or choose another --out")
        try:
            os.mkdir(self.part)
        except OSError as error:
            raise SystemExit(f"{self.part}: {error.strerror}: choose another --out")

    def add(self, files: "list[tuple[str, bytes]]") -> None:
        last, self.key = self.key, key_of(files[0][0])
        # In one shard, two samples of the same name would be read as one.
        if self.tar is None or self.tar.offset >= self.shard_size or self.key == last:
            self.close()
            self.tar = tarfile.open(f"{self.part}/shard-{self.shards:06}.tar", "w", format=tarfile.GNU_FORMAT, encoding="utf-8")
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

    def __exit__(self, kind, error, _):
        try:
            self.close()
            if kind is None and self.samples:
                os.rename(self.part, self.folder)
        except OSError as failure:
            error = failure
        shutil.rmtree(self.part, ignore_errors=True)
        if isinstance(error, (OSError, ValueError)):  # such as a full disk
            raise SystemExit(f"{self.folder}, after {self.samples} samples: {error}")
        if kind is None and self.samples == 0:
            raise SystemExit(f"{self.folder}: no samples")
        if kind is None:
            print(f"{self.samples} samples in {self.shards} shards: lockstep-pack index {self.folder}")
