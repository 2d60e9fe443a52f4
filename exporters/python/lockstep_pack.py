"""Samples by number: lockstep.Pack, a data set for PyTorch's DataLoader.

    pack = lockstep.Pack(os.environ["LOCKSTEP_DATA"] + "/corpus")
    pack[7]          # the tokens of sample 7 as 64-bit integers; of other data its files: {"jpg": b"…", "cls": b"…"}
    pack.lengths     # of all samples, in tokens

It maps the files, so a DataLoader's workers share the memory. It checks tables and sizes; `lockstep-pack verify` checks the content.
If a file is truncated later, reading it ends the process (SIGBUS). Needs numpy. Threads: any.
"""

import functools
import os
import resource
import struct

import numpy

_HEADER = struct.Struct("<8sIIIIQQQQQ")  # staging/pack/index.h
_SHARD = numpy.dtype([("size", "<u8"), ("first_sample", "<u8"), ("digest", "V16")])
_PART = numpy.dtype([("offset", "<u8"), ("size", "<u8"), ("xxh3", "<u8"), ("shard", "<u4"), ("kind", "<u4")])
_MEGATRON = struct.Struct("<9sQBQQ")  # staging/pack/formats/megatron_layout.h
_MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}


class Error(RuntimeError):
    """One line that says what failed, on what, and what to do."""

    __module__ = "lockstep"


class Pack:
    """len(pack), pack[i], pack.lengths, pack.key(i). path: the folder of a tar pack, or a Megatron corpus without .idx."""

    def __init__(self, path):
        self.path = os.path.abspath(os.fspath(path))
        if os.path.exists(f"{self.path}/index.lockstep"):
            self._pack = _TarPack(self.path)
        elif os.path.exists(f"{self.path}.idx"):
            self._pack = _Megatron(self.path)
        else:
            raise Error(f"{self.path} has no index.lockstep and is not a Megatron corpus: lockstep-pack index makes the index "
                                 "of a folder of tar files")

    def __len__(self):
        return self._pack.samples

    def __getitem__(self, number):
        return self._pack.read(self._checked(number))

    @property
    def lengths(self):
        if self._pack.lengths is None:
            raise Error(f"{self.path} does not hold tokens: make it with lockstep-pack create --token-bytes, or give "
                                 "BatchSampler a list of lengths")
        return self._pack.lengths

    def key(self, number):
        """The sample's path up to the file name's first dot; its number in a Megatron corpus."""
        return self._pack.key(self._checked(number))

    def _checked(self, number):
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.path} has {len(self)} samples, and no sample {number}")
        return int(number) % len(self)

    def __reduce__(self):  # for workers that are not forked
        return Pack, (self.path,)


class _Tables:
    """Takes tables from a mapped file, one after the other."""

    def __init__(self, path, header, magic):
        self.path, self.content, self.at = path, _map(path), header.size
        if len(self.content) < header.size:
            self.damaged()
        found, version, *self.header = header.unpack(self.content[: header.size].tobytes())
        if found != magic or version != 1:
            self.damaged()

    def take(self, dtype, count):
        begin, self.at = self.at, self.at + count * numpy.dtype(dtype).itemsize
        if self.at > len(self.content):
            self.damaged()
        return self.content[begin : self.at].view(dtype)

    def damaged(self):
        raise Error(f"{self.path} is damaged, or not an index of version 1: copy or make it again")


class _TarPack:
    def __init__(self, folder):
        tables = _Tables(f"{folder}/index.lockstep", _HEADER, b"LOCKPACK")
        _, self.token_bytes, kinds, shards, self.samples, parts, strings, size = tables.header
        self.shards = tables.take(_SHARD, shards)
        self.first_part = tables.take("<u8", self.samples + 1)
        self.parts = tables.take(_PART, parts)
        self.string_begin = tables.take("<u8", shards + kinds + self.samples + 1)
        self.strings = tables.take("<u1", strings)
        if tables.at + 16 != size or len(tables.content) != size or not self._consistent(kinds):
            tables.damaged()
        self.files = [(f"{folder}/{self._string(shard)}", size) for shard, size in enumerate(self.shards["size"].tolist())]
        if any("\0" in name for name, _ in self.files):
            tables.damaged()
        # A map holds a descriptor. It ends when it is not among the last ones that were read.
        most = max(1, min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
        self.map = functools.lru_cache(most)(_map_shard)
        self.kinds = [self._string(shards + kind) for kind in range(kinds)]
        # Tokens are in a sample's first part.
        self.lengths = (self.parts["size"][self.first_part[:-1]] // self.token_bytes).astype("<i8") if self.token_bytes else None

    def _consistent(self, kinds):
        parts, begins = self.parts, self.first_part
        if self.token_bytes not in (0, 2, 4) or (parts["kind"] >= kinds).any():
            return False
        if begins[0] != 0 or begins[-1] != len(parts) or (begins[1:] <= begins[:-1]).any() or (parts["shard"] >= len(self.shards)).any():
            return False
        if self.token_bytes and (parts["size"][begins[:-1]] % self.token_bytes).any():
            return False
        sizes = self.shards["size"][parts["shard"]]
        return ((parts["size"] <= sizes) & (parts["offset"] <= sizes - parts["size"])).all()

    def _string(self, number):
        begin, end = self.string_begin[number : number + 2].tolist()
        return os.fsdecode(self.strings[begin:end].tobytes())

    def key(self, number):
        return self._string(len(self.shards) + len(self.kinds) + number)

    def read(self, number):
        begin, end = self.first_part[number : number + 2].tolist()
        files = {}
        for offset, size, _, shard, kind in self.parts[begin:end].tolist():
            content = self.map(*self.files[shard])[offset : offset + size]
            if self.token_bytes:
                return content.view(f"<u{self.token_bytes}").astype(numpy.int64)
            files[self.kinds[kind]] = content.tobytes()
        return files


class _Megatron:
    def __init__(self, prefix):
        tables = _Tables(f"{prefix}.idx", _MEGATRON, b"MMIDIDX\0\0")
        code, self.samples, documents = tables.header
        if code not in _MEGATRON_TYPES:
            raise Error(f"{prefix}.idx: its tokens must be integers, but have the type {code}")
        self.type = numpy.dtype(_MEGATRON_TYPES[code])
        fairseq = len(tables.content) == tables.at - 8 + 12 * self.samples  # without documents and their number
        tables.at -= 8 * fairseq
        self.lengths = tables.take("<i4", self.samples)
        self.offsets = tables.take("<i8", self.samples)
        begins = numpy.array([0, self.samples]) if fairseq else tables.take("<i8", documents)  # of documents
        self.tokens = _map(f"{prefix}.bin")
        sizes = self.lengths.astype("<i8") * self.type.itemsize
        ends = numpy.cumsum(sizes)
        if (self.lengths.min(initial=0) < 0 or not numpy.array_equal(self.offsets, ends - sizes) or ends[-1:].sum() != len(self.tokens)
                or begins[:1].tolist() != [0] or begins[-1] != self.samples or (begins[1:] < begins[:-1]).any()):
            raise Error(f"{prefix}.idx and {prefix}.bin ({len(self.tokens)} bytes) do not match: lockstep-pack verify {prefix} says why")

    def key(self, number):
        return str(number)

    def read(self, number):
        begin, length = int(self.offsets[number]), int(self.lengths[number])
        tokens = self.tokens[begin : begin + length * self.type.itemsize].view(self.type)
        if self.type == "<u8" and (tokens >> 63).any():
            raise Error(f"a token of sample {number} exceeds 2^63 - 1, the largest of 64-bit integers")
        return tokens.astype(numpy.int64)


def _map_shard(path, size):
    content = _map(path)
    if len(content) != size:
        raise Error(f"{path} has {len(content)} bytes, but {size} in the index: copy it again, or make the index again")
    return content


def _map(path):
    try:
        # As a plain array: slices of numpy.memmap are slow.
        return numpy.asarray(numpy.memmap(path, mode="r")) if os.path.getsize(path) else numpy.zeros(0, "u1")
    except OSError as error:
        raise Error(f"cannot open {path}: {error.strerror}: check that it was copied completely") from None
