"""Makes folders as people have them: sparse files, programs, and symbolic links."""

import hashlib
import os
import pathlib

PAGE = 4096


def sparse(folder):
    """A file of each way to have holes. Returns the bytes that are stored."""
    folder = pathlib.Path(folder)
    folder.mkdir()
    # As LMDB makes its map (under a name that is not LMDB's): some pages, then nothing to the size of the map.
    pages = b"".join(bytes([i + 1]) * PAGE for i in range(53))
    parts = {"map.bin": (256 << 20, {0: pages}),
             "holes.bin": (64 << 20, {0: b"a" * PAGE, 5 << 20: b"b" * 3 * PAGE, (64 << 20) - PAGE: b"c" * PAGE}),
             "begins-with-a-hole.bin": (9 << 20, {(9 << 20) - 100: b"d" * 100}),
             "only-a-hole.bin": (17 << 20, {}),
             "small.bin": (10 * PAGE + 7, {PAGE: b"e" * PAGE})}
    for name, (size, data) in parts.items():
        with open(folder / name, "wb") as file:
            file.truncate(size)
            for offset, content in data.items():
                file.seek(offset)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())  # some file systems decide only now what they store
    # Zeros that are stored, and none.
    (folder / "zeros.bin").write_bytes(bytes(5 << 20))
    (folder / "dense.bin").write_bytes(b"f" * (5 << 20))
    (folder / "empty").touch()
    return sum((folder / name).stat().st_blocks for name in os.listdir(folder)) * 512


def programs(folder):
    """Returns the names of files that can be executed."""
    folder = pathlib.Path(folder)
    (folder / "bin").mkdir(parents=True)
    modes = {"run.sh": 0o755, "bin/tool": 0o750, "bin/other": 0o711, "data.txt": 0o644, "secret.txt": 0o600}
    for name, mode in modes.items():
        (folder / name).write_text(f"#!/bin/sh\necho {name}\n")
        (folder / name).chmod(mode)
    return {name for name, mode in modes.items() if mode & 0o111}


def snapshot(folder, files=None):
    """A repository in the cache of huggingface_hub. Returns the folder of its revision."""
    folder = pathlib.Path(folder)
    revision = folder / "snapshots/0123456789abcdef"
    files = files or {"config.json": b"{}\n", "model.safetensors": b"w" * 100_000, "onnx/model.onnx": b"o" * 5000}
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(revision.name)
    for name, content in files.items():
        blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = revision / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return revision


def links(folder):
    """Links to a file, a folder and a link, relative and absolute, that all stay in the folder."""
    folder = pathlib.Path(folder)
    (folder / "real/deeper").mkdir(parents=True)
    (folder / "real/a.txt").write_text("a")
    (folder / "real/deeper/b.txt").write_text("b")
    (folder / "a.txt").symlink_to("real/a.txt")
    (folder / "again.txt").symlink_to("a.txt")
    (folder / "linked").symlink_to("real")
    (folder / "real/deeper/absolute.txt").symlink_to(folder.resolve() / "real/a.txt")


def refused(folder):
    """Yields folders, each with a link that is not followed, and what the line about it must contain."""
    folder = pathlib.Path(folder)
    (folder / "others").mkdir(parents=True)
    (folder / "others/file").write_text("of another folder")
    for name, target, text in (("out", "../others/file", f"or name the folder {folder.resolve()}"),
                               ("folder-out", "../others", "is a symbolic link out of the folder"),
                               ("far", "/etc/passwd", "replace it with what it leads to"),
                               ("broken", "nothing", "No such file or directory"),
                               ("itself", "link", "Too many levels of symbolic links"),
                               ("up", ".", "a folder that contains it")):
        (folder / name).mkdir()
        (folder / name / "data").write_text("x")
        (folder / name / "link").symlink_to(target)
        yield folder / name, text
    # Two folders with links to each other.
    for name, other in (("one", "two"), ("two", "one")):
        (folder / "circle" / name).mkdir(parents=True)
        (folder / "circle" / name / "data").write_text("x")
        (folder / "circle" / name / "link").symlink_to(f"../{other}")
    yield folder / "circle", "a folder that contains it"
