"""Writes documents of tokens in Megatron-Core's format: PREFIX.bin and PREFIX.idx. lockstep-pack converts it to a pack.

    with TokenFile("corpus", vocabulary=32000) as out:
        out.add([17, 4, 256])          # one document

Memory: 12 bytes for each document. Needs Python 3.9 and no packages.
"""

import array
import contextlib
import os
import struct
import sys


class TokenFile:
    def __init__(self, prefix: str, vocabulary: int):
        if sys.byteorder != "little":
            raise SystemExit("token_file.py: this machine is not little-endian")
        self.prefix = prefix
        # Megatron's codes of types: 8 is uint16, 4 is int32.
        self.type_code, self.letter, self.largest = (8, "H", 2**16 - 1) if vocabulary <= 65536 else (4, "i", 2**31 - 1)
        self.lengths, self.empty = array.array("i"), 0
        try:
            self.data = open(f"{prefix}.bin.part", "wb")
        except OSError as error:
            raise SystemExit(f"{prefix}.bin.part: {error.strerror}: choose another --out")

    def add(self, tokens: "list[int]", source: str = "a document") -> None:
        """Adds a document. An empty one is left out, because a sample must have a token. The source is named in errors."""
        if not tokens:
            self.empty += 1
            return
        try:
            numbers = array.array(self.letter, tokens)
            if min(numbers) < 0:
                raise OverflowError
        except OverflowError:
            raise SystemExit(f"{source}: a token is not in 0..{self.largest}")
        numbers.tofile(self.data)
        self.lengths.append(len(tokens))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        try:
            self.data.close()
            if kind is None and self.lengths:
                self.finish()
        except OSError as failure:
            error = failure
        for ending in ("bin", "idx"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(f"{self.prefix}.{ending}.part")
        if isinstance(error, OSError):  # such as a full disk
            raise SystemExit(f"{self.prefix}, after {len(self.lengths)} documents: {error}")
        if kind is None and not self.lengths:
            raise SystemExit(f"{self.prefix}: no document has a token")
        if kind is None:
            empty = f", {self.empty} empty ones left out" if self.empty else ""
            print(f"{len(self.lengths)} documents, {sum(self.lengths)} tokens{empty}: lockstep-pack convert {self.prefix} --out PACK")

    def finish(self) -> None:
        size = array.array(self.letter).itemsize
        offsets = array.array("q", [0])
        for length in self.lengths:
            offsets.append(offsets[-1] + length * size)
        count = len(self.lengths)
        with open(f"{self.prefix}.idx.part", "wb") as index:
            index.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, self.type_code, count, count + 1))
            self.lengths.tofile(index)
            offsets[:-1].tofile(index)
            array.array("q", range(count + 1)).tofile(index)  # each document is one sequence
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"{self.prefix}.idx")  # never the index of another .bin
        os.replace(f"{self.prefix}.bin.part", f"{self.prefix}.bin")
        os.replace(f"{self.prefix}.idx.part", f"{self.prefix}.idx")
