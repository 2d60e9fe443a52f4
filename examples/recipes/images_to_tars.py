#!/usr/bin/env python3
"""Writes the images and labels of a data set of the package datasets to tar shards, as WebDataset has them: 0.jpg and
0.cls, and so on. `lockstep-pack index FOLDER` then makes a pack of the folder.

Files in PNG and JPEG are copied as they are; other formats become PNG. Needs the packages datasets and pillow.
"""

import argparse
import io

import datasets
import PIL.Image
from data_set import open_data_set
from tar_shards import TarShards


def encoded(image: dict, size: "int | None") -> "tuple[bytes, str]":
    """The bytes of a file and its ending."""
    data = image["bytes"]
    if data is None:
        with open(image["path"], "rb") as file:
            data = file.read()
    with PIL.Image.open(io.BytesIO(data)) as picture:
        if size is None and picture.format in ("PNG", "JPEG"):
            return data, "png" if picture.format == "PNG" else "jpg"
        picture = picture.convert("RGB")
        if size is not None:
            picture = picture.resize((size, size))
        out = io.BytesIO()
        picture.save(out, "PNG")
        return out.getvalue(), "png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="a folder of save_to_disk, or what load_dataset takes")
    parser.add_argument("--split", default="train")
    parser.add_argument("--image", default="image", help="the column with the image")
    parser.add_argument("--label", default="label", help="the column with the label")
    parser.add_argument("--size", type=int, help="scale all images to this height and width")
    parser.add_argument("--shard-size", type=int, default=256 << 20, help="bytes of a shard")
    parser.add_argument("--out", required=True, help="a new folder")
    given = parser.parse_args()
    data = open_data_set(given.dataset, given.split)
    # Not decoded: the loader decodes.
    data = data.cast_column(given.image, datasets.Image(decode=False))
    with TarShards(given.out, given.shard_size) as shards:
        for number, row in enumerate(data):
            picture, ending = encoded(row[given.image], given.size)
            shards.add([(f"{number:09}.{ending}", picture), (f"{number:09}.cls", str(row[given.label]).encode())])


if __name__ == "__main__":
    main()
