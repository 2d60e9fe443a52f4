#!/usr/bin/env python3
"""Writes the images and labels of a data set of the package datasets to tar shards, as WebDataset has them: 0.jpg and
0.cls, and so on. `lockstep-pack index FOLDER` then makes a pack of the folder.

Files in PNG and JPEG are copied as they are; other formats become PNG, turned as the camera says. Needs the packages datasets and
pillow.
"""

import argparse
import io

import datasets
import PIL.Image
import PIL.ImageOps
from data_set import open_data_set, rows_of
from one_line import one_line_errors
from resize_images import colours
from tar_shards import TarShards, bytes_of


def encoded(image: "dict | None", size: "int | None") -> "tuple[bytes, str]":
    """The bytes of a file and its ending."""
    if image is None:
        raise ValueError("it has no image: filter the data set first")
    data = image["bytes"]
    if data is None:
        with open(image["path"], "rb") as file:
            data = file.read()
    with PIL.Image.open(io.BytesIO(data)) as picture:
        if size is None and picture.format in ("PNG", "JPEG"):
            return data, "png" if picture.format == "PNG" else "jpg"
        picture = colours(PIL.ImageOps.exif_transpose(picture))
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
    data = open_data_set(given.dataset, given.split, [given.image, given.label])
    with one_line_errors(f"{given.dataset}, column '{given.image}'"):  # not decoded: the loader decodes
        data = data.cast_column(given.image, datasets.Image(decode=False))
    with TarShards(given.out, given.shard_size) as shards:
        for where, row in rows_of(data, given.dataset):
            with one_line_errors(where):
                picture, ending = encoded(row[given.image], given.size)
                label = bytes_of(row[given.label])
            shards.add([(f"{shards.samples:09}.{ending}", picture), (f"{shards.samples:09}.cls", label)])


if __name__ == "__main__":
    main()
