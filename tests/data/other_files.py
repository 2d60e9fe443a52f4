"""Writes files as other people's programs write them: byte by byte, without their packages."""

import gzip
import struct
import zlib

BLOCK = 512


# ---- tar

def header(name: bytes, size: int, kind: bytes = b"0", magic: bytes = b"ustar\00000", prefix: bytes = b"", link: bytes = b"",
           size_field: bytes = b"") -> bytes:
    """A header of 512 bytes. magic: POSIX's (with a prefix), GNU's b"ustar  \\0", or none for v7."""
    fields = name[:100].ljust(100, b"\0") + b"0000644\0" + b"0000765\0" + b"0000024\0"
    fields += (size_field or b"%011o\0" % size) + b"14000000000\0" + b" " * 8 + kind + link.ljust(100, b"\0")
    fields += magic.ljust(8, b"\0") + b"\0" * 80 + prefix.ljust(155, b"\0")
    fields = fields.ljust(BLOCK, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % BLOCK)


def member(name: bytes, content: bytes, **fields) -> bytes:
    return header(name, len(content), **fields) + padded(content)


def pax(records: "dict[bytes, bytes] | list[tuple[bytes, bytes]]", kind: bytes = b"x") -> bytes:
    """An extended header, or with b"g" a global one. A list can have a key twice."""
    text = b""
    for key, value in records.items() if isinstance(records, dict) else records:
        rest = b" " + key + b"=" + value + b"\n"
        length = len(rest)
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        text += str(length).encode() + rest
    return member(b"PaxHeader/x", text, kind=kind)


def end(content: bytes, record: int = 10240) -> bytes:
    """Two zero blocks, and zeros up to a multiple of the record, as tar programs write."""
    content += b"\0" * (2 * BLOCK)
    return content + b"\0" * (-len(content) % record)


APPLE_DOUBLE = b"\0\x05\x16\x07\0\x02\0\0Mac OS X        " + b"\0" * 100
XATTR = {b"LIBARCHIVE.xattr.com.apple.quarantine": b"MDA4MTs2NQ==",
         b"SCHILY.xattr.com.apple.lastuseddate#PS": b"\x01\n=\0\xff 9"}


def mac_tar(folder: bytes = b"", samples: int = 3) -> bytes:
    """As bsdtar of macOS writes: "._NAME" before each file that has attributes, and a file of the Finder."""
    content = member(b"./", b"", kind=b"5") + member(b"./._.DS_Store", APPLE_DOUBLE) + member(b"./.DS_Store", b"\0Bud1")
    for number in range(samples):
        for kind in (b"cls", b"jpg"):
            name = b"%s%03d.%s" % (folder, number, kind)
            parent, slash, last = name.rpartition(b"/")
            content += pax(XATTR) + member(b"%s%s._%s" % (parent, slash, last), APPLE_DOUBLE)
            content += pax(XATTR | {b"mtime": b"1700000000.25"}) + member(name, b"%s of %d" % (kind, number))
    return end(content + member(b"__MACOSX/._000.jpg", APPLE_DOUBLE))


def long_name(name: bytes) -> bytes:
    """GNU's header before a member."""
    return member(b"././@LongLink", name + b"\0", kind=b"L", magic=b"ustar  \0")


def names_tar() -> "tuple[bytes, list[bytes]]":
    """A member of each kind of header, and their names."""
    deep = b"/".join([b"d" * 60] * 4)
    names = [b"plain.txt", b"d" * 90 + b"/" + b"p" * 60 + b".txt", deep + b"/gnu.txt", deep + b"/pax.txt",
             "\u00e4\u4e2d.txt".encode(), "a\u0308-of-a-mac.txt".encode(), b"latin-\xe4.txt", b"in-ustar-\xff\xfe.txt", b"v7.txt",
             b"large.txt", b"new\nline.txt"]
    tar = member(names[0], b"0", magic=b"ustar  \0")
    tar += member(b"p" * 60 + b".txt", b"1", prefix=b"d" * 90)
    tar += long_name(names[2]) + member(names[2][:100], b"2", magic=b"ustar  \0")
    for number, name in enumerate(names[3:7], 3):
        tar += pax({b"path": name}) + member(b"short", b"%d" % number)
    tar += member(names[7], b"7") + member(names[8], b"8", kind=b"\0", magic=b"")
    tar += member(names[9], b"9", size_field=b"\x80" + (1).to_bytes(11, "big"))
    tar += pax({b"comment": b"of git archive"}, kind=b"g") + member(names[10], b"10"[:2])
    return end(tar), names


def header_tars() -> "dict[str, bytes]":
    """Members with several headers that say different things. tarfile knows which one counts."""
    one, two = member(b"1.txt", b"1"), member(b"2.txt", b"2")
    path, other = (b"path", b"p.txt"), (b"path", b"q.txt")
    large = b"\x80" + (1).to_bytes(11, "big")
    return {name: end(content) for name, content in {
        "path twice": pax([path, other]) + one + two,
        "size twice": pax([(b"size", b"9"), (b"size", b"1")]) + one + two,
        "size of a larger member": pax([(b"size", b"1")]) + member(b"1.txt", b"1", size_field=b"00000000000\0") + two,
        "two headers": pax([path]) + pax([other]) + one + two,
        "global": pax([path], b"g") + one,
        "global twice": pax([path], b"g") + pax([other], b"g") + one,
        "global, own": pax([path], b"g") + pax([other]) + one,
        "global, other keys": pax([path], b"g") + pax([(b"mtime", b"1")]) + one,
        "own, global": pax([other]) + pax([path], b"g") + one,
        "global, long": pax([path], b"g") + long_name(b"long.txt") + one,
        "long, PAX": long_name(b"long.txt") + pax([path]) + one + two,
        "PAX, long": pax([path]) + long_name(b"long.txt") + one + two,
        "long, global": long_name(b"long.txt") + pax([path], b"g") + one,
        "long twice": long_name(b"long.txt") + long_name(b"last.txt") + one,
        "size in base 256": member(b"1.txt", b"1", size_field=large) + two,
        "PAX with a size in base 256": header(b"x", 0, kind=b"x", size_field=large[:-1] + b"\x0e") + padded(b"14 path=p.txt\n") + one,
        "PAX before base 256": pax([path, (b"size", b"1")]) + member(b"1.txt", b"1", size_field=large) + two,
        "global between": one + pax([(b"comment", b"0")], b"g") + two,
    }.items()}


def sparse_member(name: bytes, pieces: int = 6) -> bytes:
    """As GNU's tar -S writes a file with holes: four pieces are in the header, the others in the block after it."""
    places = [b"%011o\0%011o\0" % (4096 * number, BLOCK) for number in range(pieces)]
    fields = b"\0" * 41 + b"".join(places[:4]) + b"\1" + b"%011o\0" % (4096 * pieces)
    return header(name, BLOCK * pieces, kind=b"S", magic=b"ustar  \0", prefix=fields) + padded(b"".join(places[4:])) + b"x" * (BLOCK * pieces)


def sparse_pax_member(name: bytes) -> bytes:
    """The same as tar --format=posix -S writes it: the path in the header is made up."""
    records = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": name, b"GNU.sparse.realsize": b"8192"}
    return pax(records) + member(b"GNUSparseFile.0/x", padded(b"1\n4096\n4096\n") + b"x" * 4096)


def tar_of(files: "dict[str, bytes]") -> bytes:
    return end(b"".join(member(name.encode(), content) for name, content in files.items()))


# ---- TFRecord

def crc32c(data: bytes) -> int:
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff)


def tfrecord(records: "list[bytes]") -> bytes:
    lengths = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(length + masked(length) + record + masked(record) for length, record in zip(lengths, records))


# ---- Megatron, fairseq

SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2, 9: 4, 10: 8}


def megatron(code: int, lengths: "list[int]", size: int = 0, documents: "list[int] | None" = None) -> "tuple[bytes, bytes]":
    """The .idx and .bin of sequences of these lengths. size: of a token, if a fork gave the code another meaning."""
    size = size or SIZES[code]
    offsets = [size * sum(lengths[:i]) for i in range(len(lengths))]
    if documents is None:
        documents = list(range(len(lengths) + 1))
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(documents))
    index += struct.pack(f"<{len(lengths)}i{len(lengths)}q{len(documents)}q", *lengths, *offsets, *documents)
    return index, bytes(range(256)) * (size * sum(lengths) // 256) + bytes(range(size * sum(lengths) % 256))


def fairseq(code: int, lengths: "list[int]") -> "tuple[bytes, bytes]":
    index, data = megatron(code, lengths, documents=[])
    return index[:26] + index[34:], data


def old_megatron() -> "tuple[bytes, bytes]":
    return struct.pack("<8s5Q", b"TNTIDX\0\0", 1, 4, 4, 2, 2) + struct.pack("<8q", 0, 1, 2, 0, 3, 5, 3, 2), bytes(20)


# ---- LMDB

def lmdb(entries: "dict[bytes, bytes]") -> bytes:
    """A database of one leaf page."""
    page = 4096
    nodes, pointers, at = b"", [], page
    for key, value in sorted(entries.items()):
        node = struct.pack("<HHHH", len(value), 0, 0, len(key)) + key + value
        node += b"\0" * (len(node) % 2)
        at -= len(node)
        pointers.append(at)
        nodes = node + nodes
    lower = 16 + 2 * len(pointers)
    leaf = struct.pack("<QHHHH", 2, 0, 2, lower, at) + struct.pack(f"<{len(pointers)}H", *pointers)
    leaf = leaf.ljust(at, b"\0") + nodes
    metas = []
    for number in range(2):
        database = struct.pack("<IHHQQQQQ", 0, 0, 1, 0, 1, 0, len(entries), 2)
        free = struct.pack("<IHHQQQQQ", page, 0, 0, 0, 0, 0, 0, 2**64 - 1)
        meta = struct.pack("<QHHHH", number, 0, 8, 0, 0) + struct.pack("<IIQQ", 0xbeefc0de, 1, 0, 1 << 20)
        metas.append((meta + free + database + struct.pack("<QQ", 2, number)).ljust(page, b"\0"))
    return metas[0] + metas[1] + leaf


# ---- a file of each kind that is not packed data: its name, its bytes, and a part of the advice

def strange_files() -> "list[tuple[str, bytes, str]]":
    tar = tar_of({"a.txt": b"a"})
    records = tfrecord([b"one"])
    return [
        ("x.tar", tar, "lockstep-pack index"),
        ("x.TAR", tar, "lockstep-pack index"),
        ("shards-without-ending", tar, "give it the ending .tar"),
        ("x.tar.gz", gzip.compress(tar), "tar file compressed with gzip"),
        ("x.tgz", gzip.compress(tar), "tar file compressed with gzip"),
        ("x.TGZ", gzip.compress(tar), "tar file compressed with gzip"),
        ("x.tar.zst", b"\x28\xb5\x2f\xfd" + bytes(20), "tar file compressed with zstd"),
        ("x.Tar.XZ", b"\xfd7zXZ\0" + bytes(20), "tar file compressed with xz"),
        ("x.tar.Z", b"\x1f\x9d" + bytes(20), "compressed tar file"),
        ("x.tar.gz", b"", "compressed tar file"),
        ("a of b's.tgz", gzip.compress(tar), "gzip -dc '"),
        ("train.tfrecord", gzip.compress(records), "compressed (gzip)"),
        ("train.tfrecord.gz", gzip.compress(records), "gzip -dc"),
        ("zlib.tfrecord", zlib.compress(records), "compressed (zlib)"),
        ("TRAIN.TFRECORD", gzip.compress(records), "compressed (gzip)"),
        ("train.tfrecord-00000-of-00001.gz", gzip.compress(records), "compressed with gzip"),
        ("zlib.record", zlib.compress(records), "compressed with zlib"),
        ("Train.Record", gzip.compress(records), "compressed with gzip"),
        ("train.record.GZ", gzip.compress(records), "compressed with gzip"),
        ("part-r-00000", gzip.compress(records), "compressed with gzip"),
        ("part-r-00001", zlib.compress(records), "compressed with zlib"),
        ("part-r-00000.gz", gzip.compress(records), "compressed with gzip"),
        ("train.tfrecord.br", b"\x1b\x10\0" + bytes(20), "unpack it"),
        ("train.tfrecord-00000-of-00001.snappy", bytes(20), "unpack it"),
        ("mnist-train.array_record-00000-of-00001", bytes(20), "tar_shards.py"),
        ("x.beton", bytes(20), "tar_shards.py"),
        ("x.sqlite", b"SQLite format 3\0", "tar_shards.py"),
        ("part-r-00002", b"SEQ\x06" + bytes(20), "SequenceFile"),
        ("train_0", gzip.compress(records), "compressed with gzip"),
        ("X.IDX", megatron(8, [1])[0], "give it the ending .idx"),
        ("x.idx.gz", gzip.compress(megatron(8, [1])[0]), "compressed with gzip"),
        ("old.idx", old_megatron()[0], "TNTIDX"),
        ("killed.idx", b"", "preprocess the text again"),
        ("zeros.idx", bytes(100), "preprocess the text again"),
        ("x.h5", gzip.compress(b"\x89HDF\r\n\x1a\n"), "compressed (gzip)"),
        ("x.jsonl", b'{"text": "a"}\n', "text_to_tokens.py"),
        ("X.JSONL", b'{"text": "a"}\n', "text_to_tokens.py"),
        ("x.jsonl.zst", b"\x28\xb5\x2f\xfd" + bytes(20), "compressed with zstd"),
        ("x.csv.gz", gzip.compress(b"text\na\n"), "text_to_tokens.py"),
        ("c4-train.00000-of-01024.json.gz", gzip.compress(b'{"text": "a"}\n'), "text_to_tokens.py"),
        ("named-wrongly.jsonl", gzip.compress(b'{"text": "a"}\n'), "compressed with gzip"),
        ("x.jsonl.gz", gzip.compress(b'{"text": "a"}\n'), "text_to_tokens.py"),
        ("x.csv", b"text\na\n", "text_to_tokens.py"),
        ("x.parquet", b"PAR1", "--dataset FOLDER"),
        ("X.Parquet", b"PAR1", "--dataset FOLDER"),
        ("part-00000-of.snappy.parquet", b"PAR1", "--dataset FOLDER"),
        ("x.avro", b"Obj\1", "table of records"),
        ("without-ending", b"PAR1", "--dataset FOLDER"),
        ("data-00000-of-00001.arrow", b"ARROW1\0\0", "--dataset FOLDER"),
        ("x.npy", b"\x93NUMPY\x01\0", "from_npy.py"),
        ("x.npz", b"PK\x03\x04", "from_npy.py"),
        ("x.zip", b"PK\x03\x04", "bsdtar -xf"),
        ("X.ZIP", b"PK\x05\x06" + bytes(18), "bsdtar -xf"),
        ("x.7z", b"7z\xbc\xaf", "unpack it"),
        ("shard.00000.mds", b"\1\0\0\0", "from_mds.py"),
        ("x.pt", b"PK\x03\x04", "token_file.py"),
    ]
