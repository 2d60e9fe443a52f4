#!/usr/bin/env python3
"""Makes images smaller before training, on all cores: scales the shorter side, crops the middle, applies or keeps the camera's
orientation, and encodes again. Several sizes are made in one pass, each as tar shards; `lockstep-pack index FOLDER` makes a
pack of them.

The source is a folder of files, or of tar shards. As in WebDataset, files whose names differ only after the first dot are
one sample. Its picture is made smaller; labels and other files are copied. Needs the package pillow.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import io
import itertools
import pathlib
import re
import tarfile

from one_line import one_line_errors
from PIL import Image, ImageOps
from tar_shards import TarShards, key_of

PICTURES = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "avif", "bmp", "tif", "tiff", "gif", "ppm", "pgm"}
# What systems and people leave beside data, as in staging/pack/member_name.cpp.
STRAY = re.compile(
    r"(^|/)(\._[^/]+|\.(ds_store|apple(double|db|desktop)|localized|spotlight-v100|trashes|fseventsd|temporaryitems|"
    r"documentrevisions-v100|apdisk|volumeicon\.icns|directory|cache|git|gitignore|gitattributes|gitkeep|svn|hg|ipynb_checkpoints|"
    r"dropbox|picasa\.ini|@__thumb|trash-[^/]+|nfs[^/]+|~lock\.[^/]+|[^/]*\.crc)|temporary items|network trash folder|icon\r|__macosx|"
    r"lost\+found|__pycache__|picasa\.ini|_success|thumbs\.db|ehthumbs(_vista)?\.db|desktop\.ini|\$recycle\.bin|"
    r"system volume information|@eadir|[#@]recycle|~\$[^/]+)(/|\Z)"
    r"|(^|/)(readme|licen[sc]e|copying)(\.(md|txt|rst|html?|pdf))?\Z", re.IGNORECASE)
# Members of tar files in which WebDataset finds a sample.
SAMPLE = re.compile(r"(?!__[^/]*__(/|\Z))(.*/)?[^.]+\.[^/]*")


def files_of(source: pathlib.Path, left_out: "list[str]"):
    """Tar file or folder, name, path, offset and size of each file, those of a sample one after the other."""
    tars = [path for path in sorted(source.iterdir()) if path.name.lower().endswith(".tar") and not STRAY.search(path.name)]
    for path in tars:
        if path.stat().st_size:  # tarfile refuses an empty one
            yield from ((path, *file) for file in members_of(path, left_out))
    if not tars:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            name = path.relative_to(source).as_posix()
            if STRAY.search(name):
                left_out.append(name)
            else:
                yield source, name, path, 0, path.stat().st_size


def members_of(path: pathlib.Path, left_out: "list[str]"):
    with one_line_errors(path), tarfile.open(path, "r:", encoding="utf-8") as tar, open(path, "rb") as file:
        for member in tar:
            if STRAY.search(member.name) or not member.isdir() and not SAMPLE.fullmatch(member.name):
                left_out.append(member.name)
            elif member.isreg() and not member.issparse():
                yield member.name, path, member.offset_data, member.size
            elif not member.isdir():
                raise ValueError(f"'{member.name}' at offset {member.offset} is not a regular file")
        file.seek(tar.offset)
        if file.read().strip(b"\0"):  # tarfile takes a damaged header for the end
            raise ValueError(f"the bytes from offset {tar.offset} on are not a member: copy it again; if tar files were joined, "
                             "divide them")


def colours(picture: Image.Image) -> Image.Image:
    """RGB of 8 bits: of 16 bits the high byte, as the loader reads them. Pillow alone makes white of all above 255."""
    if picture.mode == "F" or picture.mode.startswith("I"):
        low, high = (picture if picture.mode == "F" else picture.convert("I")).getextrema()
        if picture.mode == "F" or low < 0 or high > 65535:
            raise ValueError(f"its pixels are numbers from {low} to {high}: convert them to 8 or 16 bits")
        picture = picture.convert("I").point(lambda value: value / 256).convert("L")
    if picture.mode == "P":  # with transparency Pillow would warn
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def smaller(data: bytes, side: int, given) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        # libjpeg decodes at a half, a quarter or an eighth of the size; twice what is needed is as sharp as all of it.
        factor = 2 * side / min(picture.size)
        if factor < 1:
            picture.draft("RGB", tuple(round(factor * length) for length in picture.size))
        exif = picture.getexif()
        if given.orientation == "apply":
            picture, exif = ImageOps.exif_transpose(picture), None
        picture = colours(picture)
        scale = side / min(picture.size)
        picture = picture.resize([round(scale * length) for length in picture.size], Image.Resampling.LANCZOS)
        if given.crop:
            left, top = ((length - given.crop) // 2 for length in picture.size)
            picture = picture.crop((left, top, left + given.crop, top + given.crop))
        out = io.BytesIO()
        picture.save(out, given.format, quality=given.quality, **({"exif": exif} if exif else {}))
        return out.getvalue()


def remade(files, given) -> "list[list[tuple[str, bytes]]]":
    """The sample's files, for each size."""
    names = [name for _, name, *_ in files]
    kinds = [name.rpartition(".")[2].lower() if given.kind is None else name[len(key_of(name)) + 1 :] for name in names]
    wanted = PICTURES if given.kind is None else {given.kind}
    if sum(kind in wanted for kind in kinds) != 1:
        raise SystemExit(f"{files[0][0]}, {key_of(names[0])}: --kind must name one picture of {', '.join(names)}")
    made = [[] for _ in given.resize]
    for (_, name, path, offset, size), kind in zip(files, kinds):
        with one_line_errors(f"{path}, {name}"), open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
            for sample, side in zip(made, given.resize):
                if kind in wanted:
                    ending = {"JPEG": "jpg", "PNG": "png"}[given.format]
                    sample.append((f"{name.rpartition('.')[0]}.{ending}", smaller(data, side, given)))
                else:
                    sample.append((name, data))
    return made


def all_remade(samples, given):
    """In order. If a worker is killed, this ends with an error; a multiprocessing.Pool would wait for ever."""
    with concurrent.futures.ProcessPoolExecutor(given.workers) as pool:
        waiting = collections.deque()
        try:
            waiting.extend(pool.submit(remade, files, given) for files in itertools.islice(samples, 256))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(remade, files, given) for files in itertools.islice(samples, 1))
        except concurrent.futures.BrokenExecutor:
            raise SystemExit("a worker was killed, as by a lack of memory: use fewer --workers")
        finally:
            pool.shutdown(cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--resize", required=True, type=lambda text: [int(word) for word in text.split(",")],
                        help="pixels of the shorter side; several sizes, as 256,128, make the folders OUT-256 and OUT-128")
    parser.add_argument("--crop", type=int, help="then keep a square of the middle")
    parser.add_argument("--orientation", choices=["apply", "keep"], default="apply",
                        help="turn the pixels as the camera says, or keep its EXIF data, which loaders ignore")
    parser.add_argument("--format", choices=["JPEG", "PNG"], default="JPEG")
    parser.add_argument("--quality", type=int, default=90, help="of JPEG")
    parser.add_argument("--kind", help="which file of a sample to change, such as jpg, if it has several pictures")
    parser.add_argument("--workers", type=int, help="processes; default: one for each core")
    parser.add_argument("--shard-size", type=int, default=256 << 20, help="bytes of a shard")
    parser.add_argument("--out", required=True, help="a new folder")
    given = parser.parse_args()
    if not given.source.is_dir():
        parser.error(f"{given.source} is not a folder")
    if min(given.resize) < 1 or given.workers is not None and given.workers < 1:
        parser.error("--resize and --workers must be at least 1")
    if given.crop is not None and not 1 <= given.crop <= min(given.resize):
        parser.error("--crop must be at least 1, and not exceed --resize")
    names = [given.out] if len(given.resize) == 1 else [f"{given.out}-{side}" for side in given.resize]
    left_out = []
    groups = itertools.groupby(files_of(given.source, left_out), lambda file: (file[0], key_of(file[1])))
    with contextlib.ExitStack() as stack:
        shards = [stack.enter_context(TarShards(name, given.shard_size)) for name in names]
        for made in all_remade((list(files) for _, files in groups), given):
            for out, sample in zip(shards, made):
                out.add(sample)
    if left_out:
        print(f"{len(left_out)} files left out that are not data, such as {left_out[0]}")


if __name__ == "__main__":
    main()
