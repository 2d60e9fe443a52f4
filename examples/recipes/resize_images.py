#!/usr/bin/env python3
"""Makes images smaller before training, on all cores: scales the shorter side, crops the middle, applies or keeps the camera's
orientation, and encodes again. Several sizes are made in one pass, each as tar shards; `lockstep-pack index FOLDER` makes a
pack of them.

The source is a folder of files, or of tar shards. As in WebDataset, files whose names differ only after the first dot are
one sample. Its picture is made smaller; labels and other files are copied. Needs the package pillow.
"""

import argparse
import contextlib
import functools
import io
import itertools
import multiprocessing
import pathlib
import tarfile

from PIL import Image, ImageOps
from tar_shards import TarShards

PICTURES = {"jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif"}


def files_of(source: pathlib.Path):
    """Name, path, offset and size of each file, those of a sample one after the other."""
    tars = sorted(source.glob("*.tar"))
    for path in tars:
        with tarfile.open(path) as tar:
            yield from ((member.name, path, member.offset_data, member.size) for member in tar if member.isfile())
    if not tars:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            yield path.relative_to(source).as_posix(), path, 0, path.stat().st_size


def key_of(file) -> str:
    folder, slash, name = file[0].rpartition("/")
    return folder + slash + name.partition(".")[0]


def smaller(data: bytes, side: int, given) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        # libjpeg decodes at a half, a quarter or an eighth of the size; twice what is needed is as sharp as all of it.
        factor = 2 * side / min(picture.size)
        if factor < 1:
            picture.draft("RGB", tuple(round(factor * length) for length in picture.size))
        exif = picture.getexif()
        if given.orientation == "apply":
            picture, exif = ImageOps.exif_transpose(picture), None
        picture = picture.convert("RGB")
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
    kinds = [name.rpartition(".")[2].lower() if given.kind is None else name[len(key_of((name,))) + 1 :] for name, *_ in files]
    wanted = PICTURES if given.kind is None else {given.kind}
    if sum(kind in wanted for kind in kinds) != 1:
        raise ValueError(f"{key_of(files[0])}: --kind must name one picture of {', '.join(name for name, *_ in files)}")
    made = [[] for _ in given.resize]
    for (name, path, offset, size), kind in zip(files, kinds):
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        for sample, side in zip(made, given.resize):
            if kind in wanted:
                ending = {"JPEG": "jpg", "PNG": "png"}[given.format]
                try:
                    sample.append((f"{name.rpartition('.')[0]}.{ending}", smaller(data, side, given)))
                except (OSError, ValueError) as error:
                    raise ValueError(f"{path}, {name}: {error}")
            else:
                sample.append((name, data))
    return made


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
    if given.crop and given.crop > min(given.resize):
        parser.error("--crop must not exceed --resize")
    names = [given.out] if len(given.resize) == 1 else [f"{given.out}-{side}" for side in given.resize]
    samples = (list(files) for _, files in itertools.groupby(files_of(given.source), key_of))
    with contextlib.ExitStack() as stack:
        shards = [stack.enter_context(TarShards(name, given.shard_size)) for name in names]
        pool = stack.enter_context(multiprocessing.Pool(given.workers))
        try:
            for made in pool.imap(functools.partial(remade, given=given), samples, chunksize=4):
                for out, sample in zip(shards, made):
                    out.add(sample)
        except ValueError as error:  # of a worker, which SystemExit would end without a word
            raise SystemExit(str(error))


if __name__ == "__main__":
    main()
