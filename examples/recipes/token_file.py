"""Writes documents of tokens in Megatron-Core's format: PREFIX.bin and PREFIX.idx. lockstep-pack converts it to a pack.

    with TokenFile("corpus", vocabulary=32000) as out:
        out.add([17, 4, 256])          # one document

Memory: 12 bytes for each document. Needs Python 3.9 and no packages.
"""

import array
import os
import struct
import sys


class TokenFile:
    def __init__(self, prefix: str, vocabulary: int):
        if sys.byteorder != "little":
            raise SystemExit("token_file.py: this machine is not little-endian")
        self.prefix = prefix
        # Megatron's codes of types: 8 is uint16, 4 is int32.
        self.type_code, self.letter = (8, "H") if vocabulary <= 65536 else (4, "i")
        self.lengths = array.array("i")
        self.data = open(f"{prefix}.bin.part", "wb")

    def add(self, tokens: "list[int]") -> None:
        """Adds a document. An empty one is left out, because a sample must have a token."""
        if tokens:
            array.array(self.letter, tokens).tofile(self.data)  # OverflowError if a token does not fit
            self.lengths.append(len(tokens))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.data.close()
        if kind is not None or not self.lengths:
            os.remove(f"{self.prefix}.bin.part")
            if kind is None:
                raise SystemExit("no document has a token")
            return
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
        os.replace(f"{self.prefix}.bin.part", f"{self.prefix}.bin")
        os.replace(f"{self.prefix}.idx.part", f"{self.prefix}.idx")
