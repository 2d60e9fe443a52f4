#!/usr/bin/env python3
"""The recipes of examples/recipes with files as people have them: each is read as what it is, or refused with one line that
names the file, and nothing is left under the name of the output. Needs the packages of recipes_test.py.

Usage: recipes_files_test.py --pack LOCKSTEP_PACK
"""

import gzip
import io
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

import recipes_test  # noqa: I001  (runs the Python with the packages)
import datasets
import numpy
import PIL.Image
import streaming_alone
from recipes_test import RECIPES, TEXTS, from_mds, make_tokenizer, part, recipe, run, tokens_of

ROOT = RECIPES.parents[1]
sys.path.insert(0, str(ROOT / "tests/data"))
import other_files  # noqa: E402


def refused(name, *arguments, says, **options):
    """The recipe prints one line, and leaves no output."""
    out = pathlib.Path(arguments[arguments.index("--out") + 1])
    done = subprocess.run([sys.executable, str(RECIPES / name), *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1"}, **options)
    assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1, f"{says}: {done}"
    assert not list(out.parent.glob(f"{out.name}*")), list(out.parent.glob(f"{out.name}*"))


def check_bad_text(folder):
    """Of text_to_tokens.py: what a tokenizer's file sets for a model is not for its documents; empty ones are left out."""
    tokenizer = make_tokenizer(folder)
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(f"{folder}/for_a_model.json")
    common = ["--tokenizer", f"{folder}/for_a_model.json", "--out"]
    with open(f"{folder}/texts.jsonl", "w") as lines:
        lines.writelines(json.dumps({"text": text}) + "\n" for text in ["", *TEXTS, " \n"])
    line = recipe("text_to_tokens.py", f"{folder}/texts.jsonl", "--end", "<end>", *common, f"{folder}/whole")
    assert line.startswith("40 documents, ") and ", 2 empty ones left out: lockstep-pack convert" in line, line
    run(recipes_test.PACK, "convert", f"{folder}/whole", "--out", f"{folder}/whole_pack")
    assert tokens_of(f"{folder}/whole_pack", 40) == [ids + [1] for ids in expected]

    # An added token with a number above the vocabulary's size.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"].append({**state["added_tokens"][0], "id": 70000, "content": "<far>"})
    state["model"]["vocab"]["<far>"] = 70000
    pathlib.Path(f"{folder}/far.json").write_text(json.dumps(state))
    pathlib.Path(f"{folder}/far.txt").write_text("the <far>")
    recipe("text_to_tokens.py", f"{folder}/far.txt", "--tokenizer", f"{folder}/far.json", "--out", f"{folder}/far")
    run(recipes_test.PACK, "convert", f"{folder}/far", "--out", f"{folder}/far_pack")
    assert tokens_of(f"{folder}/far_pack", 1)[0][1] == 70000

    text = f"{folder}/texts.jsonl"
    refused("text_to_tokens.py", folder, *common, f"{folder}/no", says=f"{folder}: cannot be read after line 0: Is a directory")
    refused("text_to_tokens.py", text, *common, f"{folder}/absent/no", says="absent/no.bin.part: No such file or directory")
    pathlib.Path(f"{folder}/bad_tokenizer.json").write_text("{}")
    refused("text_to_tokens.py", text, "--tokenizer", f"{folder}/bad_tokenizer.json", "--out", f"{folder}/no", says="bad_tokenizer.json: ")
    (pathlib.Path(folder) / "void.txt").touch()
    refused("text_to_tokens.py", f"{folder}/void.txt", *common, f"{folder}/no", says=f"{folder}/no: no document has a token")


def check_bad_data_sets(folder):
    data = datasets.Dataset.from_dict({"text": ["a", None], "image": [{"bytes": b"no", "path": None}] * 2, "label": [1, 2]})
    datasets.DatasetDict({"train": data}).save_to_disk(f"{folder}/null")
    make_tokenizer(folder)
    tokens = ["text_to_tokens.py", "--tokenizer", f"{folder}/tokenizer.json", "--out", f"{folder}/no", "--dataset"]
    refused(*tokens, f"{folder}/null", says=f"{folder}/null, row 1: 'text' must be a text, not null")
    refused(*tokens, f"{folder}/null", "--field", "body", says="no column 'body': the columns are text, image, label")
    refused(*tokens, f"{folder}/null", "--split", "test", says="no split 'test': the splits are train")
    refused(*tokens, f"{folder}/absent", says=f"{folder}/absent: ")
    images = ["images_to_tars.py", "--out", f"{folder}/no", f"{folder}/null"]
    refused(*images, says=f"{folder}/null, row 0: cannot identify image file")
    refused(*images, "--label", "class", says="no column 'class'")
    table = {"image": [None, None], "label": [1, None]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict(table, features=features).save_to_disk(f"{folder}/without")
    refused(*images[:-1], f"{folder}/without", says="without, row 0: it has no image")
    table["image"] = [{"bytes": png(PIL.Image.new("L", (2, 2))), "path": None}] * 2
    datasets.Dataset.from_dict(table, features=features).save_to_disk(f"{folder}/label")
    refused(*images[:-1], f"{folder}/label", says="label, row 1: a value is a NoneType")


def png(picture, **options):
    out = io.BytesIO()
    picture.save(out, options.pop("format", "PNG"), **options)
    return out.getvalue()


def check_pixels(folder):
    """As Pillow converts them, but of 16 bits the high byte, and not white."""
    from resize_images import colours

    numbers = numpy.arange(65536, dtype="uint16").reshape(256, 256)
    high = numpy.repeat((numbers >> 8).astype("uint8")[..., None], 3, axis=2)
    grey = PIL.Image.fromarray(numbers)
    wide = PIL.Image.fromarray(numbers.astype("int32"))
    palette = PIL.Image.new("P", (4, 4), 1)
    palette.putpalette([9, 9, 9, 1, 2, 3])
    pictures = {"16.png": (png(grey), high), "16.tif": (png(grey, format="TIFF"), high), "32.tif": (png(wide, format="TIFF"), high),
                "16.pgm": (png(wide, format="PPM"), high),
                "16.be.tif": (png(PIL.Image.frombytes("I;16B", (256, 256), numbers.astype(">u2").tobytes()), format="TIFF"), high),
                "p.png": (png(palette, transparency=b"\0\x80"), numpy.full((4, 4, 3), (1, 2, 3))),
                "la.png": (png(PIL.Image.new("LA", (4, 4), (7, 0))), numpy.full((4, 4, 3), 7)),
                "l.png": (png(PIL.Image.new("L", (4, 4), 7), transparency=7), numpy.full((4, 4, 3), 7))}
    for name, (content, expected) in pictures.items():
        with PIL.Image.open(io.BytesIO(content)) as picture:
            assert numpy.array_equal(numpy.asarray(colours(picture)), expected), name
    inks = PIL.Image.open(io.BytesIO(png(PIL.Image.new("CMYK", (8, 8), (10, 20, 30, 40)), format="JPEG")))
    assert numpy.array_equal(numpy.asarray(colours(inks)), numpy.asarray(inks.convert("RGB")))

    photos = pathlib.Path(folder, "grey photos \u00e4")
    photos.mkdir()
    (photos / "a b.PNG").write_bytes(pictures["16.png"][0])
    (photos / "p.png").write_bytes(pictures["p.png"][0])
    recipe("resize_images.py", photos, "--resize", "256", "--format", "PNG", "--out", f"{folder}/grey")
    run(recipes_test.PACK, "index", f"{folder}/grey")
    assert numpy.array_equal(numpy.asarray(PIL.Image.open(io.BytesIO(part(f"{folder}/grey", 0, "png")))), high)
    (photos / "f.tif").write_bytes(png(PIL.Image.new("F", (4, 4), 0.5), format="TIFF"))
    refused("resize_images.py", photos, "--resize", "2", "--out", f"{folder}/no", says="f.tif: its pixels are numbers from 0.5 to 0.5")
    turned = PIL.Image.Exif()
    turned[274] = 6
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [{"bytes": pictures["16.tif"][0], "path": None},
                         {"bytes": png(PIL.Image.linear_gradient("L").convert("RGB"), format="JPEG", exif=turned), "path": None}], "label": [1, 2]}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(f"{folder}/sixteen")
    recipe("images_to_tars.py", f"{folder}/sixteen", "--size", "256", "--out", f"{folder}/sixteen_tars")
    run(recipes_test.PACK, "index", f"{folder}/sixteen_tars")
    found = [numpy.asarray(PIL.Image.open(io.BytesIO(part(f"{folder}/sixteen_tars", number, "png")))) for number in range(2)]
    assert numpy.array_equal(found[0], high)
    assert (found[1][:, 0] > 200).all() and (found[1][:, -1] < 50).all(), "black was at the top, and is at the right"


def check_other_tars(folder):
    """resize_images.py leaves out what lockstep-pack leaves out, and refuses what that refuses."""
    from resize_images import SAMPLE, STRAY

    strays = (ROOT / "staging/pack/member_name.cpp").read_text()
    names = re.findall(r'"((?:[^"\\]|\\.)+)"', strays[strays.index("kNames =") : strays.index("kBeginnings")])
    assert len(names) == 41
    for name in [*(name.replace("\\r", "\r") for name in names), "._x.jpg", ".Trash-0", ".nfs1", "~$x.jpg", ".~lock.x.jpg#", ".x.crc", "README.md", "licence", "COPYING.txt"]:
        assert STRAY.search(name.upper()) and STRAY.search(f"a/{name}") and not STRAY.search(f"x{name}"), name
    for name in ("a.git/b.jpg", "readme.jpg", "thumbs.db.jpg", "__macosx2/a.jpg", "a._b.jpg", "my readme"):
        assert not STRAY.search(name), name
    picture = png(PIL.Image.new("L", (8, 8), 70))
    member, end = other_files.member, other_files.end
    one = member(b"0.png", picture) + member(b"0.cls", b"1")

    def write(name, *tars):
        (pathlib.Path(folder) / name).mkdir(exist_ok=True)
        for number, content in enumerate(tars):
            (pathlib.Path(folder) / name / f"{number}.tar").write_bytes(content)
        return f"{folder}/{name}"

    double = other_files.APPLE_DOUBLE
    mac = b"".join(member(b"._%d.%s" % (number, kind), double) + member(b"%d.%s" % (number, kind), content)
                   for number in range(2) for kind, content in ((b"cls", b"7"), (b"png", picture)))
    mac = end(mac + b"".join(member(name, b"x") for name in (b".DS_Store", b"__meta__/x.y", b"noending", b"__MACOSX/._a.png")))
    source = write("mac", mac, b"")
    (pathlib.Path(source) / "._0.tar").write_bytes(double)
    line = recipe("resize_images.py", source, "--resize", "8", "--out", f"{folder}/mac_out")
    assert "2 samples in 1 shards" in line and "8 files left out that are not data, such as ._0.cls" in line, line
    photos = pathlib.Path(folder, "strays")
    for name in ("a.png", ".DS_Store", "._a.png", "Thumbs.db", "sub/desktop.ini", "__MACOSX/a.png", "README.txt"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(picture)
    line = recipe("resize_images.py", photos, "--resize", "8", "--out", f"{folder}/strays_out")
    assert "1 samples in 1 shards" in line and "6 files left out" in line, line

    # A hidden file belongs to the folder's sample, as in WebDataset.
    line = recipe("resize_images.py", write("hidden", end(member(b"d/.a.png", picture) + member(b".b.png", picture))), "--resize", "8", "--out",
                  f"{folder}/hidden_out")
    assert "1 samples in 1 shards" in line and "1 files left out that are not data, such as .b.png" in line, line

    # Shards that each count their samples from 0. An ending may be in capitals.
    source = pathlib.Path(write("same", end(one), end(one)))
    (source / "1.tar").rename(source / "1.TAR")
    recipe("resize_images.py", source, "--resize", "8", "--out", f"{folder}/same_out")
    assert ": 2 samples" in run(recipes_test.PACK, "index", f"{folder}/same_out")
    name = "\u4e2d".encode() + b"\xff.png"
    recipe("resize_images.py", write("bytes", end(other_files.pax({b"path": name}) + member(b"x", picture))), "--resize", "8", "--format", "PNG",
           "--out", f"{folder}/bytes_out")
    assert name in pathlib.Path(folder, "bytes_out/shard-000000.tar").read_bytes()

    good = end(one + member(b"1.png", picture) + member(b"1.cls", b"1"))
    bad = {"cut": (good[:2100], "0.tar: the bytes from offset "), "data": (good[:700], "0.tar: unexpected end of data"),
           "header": (good[:2060] + b"xx" + good[2062:], "0.tar: the bytes from offset "), "joined": (good + good, "if tar files were joined"),
           "gzip": (gzip.compress(good), "0.tar: "), "text": (b"hello" * 300, "0.tar: invalid header"),
           "link": (end(one + member(b"1.png", b"", kind=b"1", link=b"0.png")), "'1.png' at offset"), "labels": (end(member(b"0.cls", b"1")), "0.tar, 0: --kind must name")}
    for name, (content, says) in bad.items():
        refused("resize_images.py", write(name, content), "--resize", "8", "--workers", "1", "--out", f"{folder}/no", says=says)
    refused("resize_images.py", write("vacant"), "--resize", "8", "--out", f"{folder}/no", says=f"{folder}/no: no samples")
    (photos / "b.png").write_bytes(picture[:50])
    refused("resize_images.py", photos, "--resize", "8", "--out", f"{folder}/no", says="b.png: ")
    (photos / "b.png").write_bytes(b"")
    refused("resize_images.py", photos, "--resize", "8", "--out", f"{folder}/no", says="b.png: cannot identify image file")
    for wrong in (["--resize", "0"], ["--resize", "8", "--crop", "9"], ["--resize", "8", "--workers", "0"]):
        run(sys.executable, RECIPES / "resize_images.py", photos, *wrong, "--out", f"{folder}/no", fails_with="least 1")
    run(sys.executable, RECIPES / "resize_images.py", photos / "a.png", "--resize", "8", "--out", f"{folder}/no",
        fails_with="is not a folder")


def check_arrays(folder):
    """Of .npy and MDS."""
    def save(name, array):
        numpy.save(f"{folder}/{name}.npy", array)
        return f"{folder}/{name}.npy"

    numbers = numpy.arange(24).reshape(4, 6)
    integers, floats = save("big", numbers.astype(">u4")), save("floats", (numbers / 7).astype(">f8"))
    fortran, empty = save("fortran", numpy.asfortranarray(numbers.astype(">i2"))), save("empty", numpy.zeros(0, "int64"))
    recipe("from_npy.py", integers, empty, fortran, "--out", f"{folder}/tokens")
    run(recipes_test.PACK, "convert", f"{folder}/tokens", "--out", f"{folder}/tokens_pack")
    assert tokens_of(f"{folder}/tokens_pack", 8) == numbers.tolist() * 2
    recipe("from_npy.py", floats, save("column", numpy.asfortranarray((numbers * 1.5).astype("f4"))), "--out", f"{folder}/floats")
    run(recipes_test.PACK, "index", f"{folder}/floats")
    expected = [row.tobytes() for row in [*(numbers / 7).astype("<f8"), *(numbers * 1.5).astype("<f4")]]
    assert [part(f"{folder}/floats", number, "raw") for number in range(8)] == expected

    fields = save("fields", numpy.zeros(3, [("a", ">i4"), ("b", "f8")]))
    objects = f"{folder}/objects.npy"
    numpy.save(objects, numpy.array([{}, "x"], dtype=object), allow_pickle=True)
    numpy.savez(f"{folder}/two.npz", a=numbers, b=numbers)
    two = pathlib.Path(save("two", numbers))
    two.write_bytes(two.read_bytes() * 2)
    cut, text, void = (pathlib.Path(f"{folder}/{name}.npy") for name in ("cut", "text", "void"))
    cut.write_bytes(pathlib.Path(integers).read_bytes()[:-7])
    text.write_text("1 2 3\n")
    void.touch()
    one = "not one array of numbers"
    for path, says in ((empty, f"{folder}/no: no document has a token"), (fields, f"fields.npy: {one}"), (two, f"two.npy: {one}"),
                       (f"{folder}/two.npz", f"two.npz: {one}"), (objects, "objects.npy: Array can't be memory-mapped"),
                       (cut, "cut.npy: mmap length is greater than file size"), (text, "text.npy: "), (void, "void.npy: "),
                       (folder, f"{folder}: [Errno 21] Is a directory"), (f"{folder}/absent", "absent: [Errno 2] No such file"),
                       (save("large", numpy.array([5, 2**31])), "large.npy: a token is not in 0..2147483647"),
                       (save("minus", numpy.array([70000, -1])), "minus.npy: a token is not in 0..2147483647")):
        refused("from_npy.py", path, "--out", f"{folder}/no", says=says)
    refused("from_npy.py", integers, floats, "--out", f"{folder}/no", says="floats.npy: some hold tokens, and some other arrays")

    streaming_alone.load()
    from streaming.base.format.mds.writer import MDSWriter

    def mds(name, columns, *samples):
        with MDSWriter(out=f"{folder}/{name}", columns=columns) as out:
            for sample in samples:
                out.write(sample)
        return f"{folder}/{name}"

    long = numpy.arange(3000, dtype="float32")
    source = mds("mixed", {"array": "ndarray", "text": "str", "size": "float32"}, {"array": long, "text": "\u00e4", "size": 1.5})
    from_mds(source, "--name", "array=npy", "--out", f"{folder}/mixed_out")
    run(recipes_test.PACK, "index", f"{folder}/mixed_out")
    assert [part(f"{folder}/mixed_out", 0, kind) for kind in ("npy", "text", "size")] == [long.tobytes(), "\u00e4".encode(), b"1.5"]
    from_mds(mds("vectors", {"array": "ndarray:float32"}, {"array": long}), "--out", f"{folder}/vectors_out")
    run(recipes_test.PACK, "index", f"{folder}/vectors_out")
    assert part(f"{folder}/vectors_out", 0, "array") == long.tobytes()

    def mds_refused(source, says):
        from_mds(source, "--out", f"{folder}/no", fails_with=says)
        assert not list(pathlib.Path(folder).glob("no*"))

    mds_refused(mds("minus_mds", {"a": "ndarray:int32"}, {"a": numpy.array([1, -1], "int32")}), "minus_mds, sample 0: a token is not in 0..")
    shard = pathlib.Path(source, "shard.00000.mds")
    shard.write_bytes(shard.read_bytes()[:-3])
    mds_refused(source, "shard.00000.mds does not have")
    shard.unlink()
    mds_refused(source, "shard.00000.mds does not have")
    mds_refused(folder, f"{folder}: [Errno 2] No such file or directory: '{folder}/index.json'")
    pathlib.Path(source, "index.json").write_text("{}")
    mds_refused(source, f"{source}: KeyError('shards')")


def check_unfinished(folder):
    """Neither a full disk nor a killed worker leaves half an output."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    numpy.save(f"{folder}/many.npy", numpy.arange(200_000).reshape(10, -1))
    numpy.save(f"{folder}/float.npy", numpy.zeros((10, 20_000)))
    for name in ("many", "float"):
        refused("from_npy.py", f"{folder}/{name}.npy", "--out", f"{folder}/no", says="[Errno 27] File too large", preexec_fn=limit)
    pathlib.Path(f"{folder}/there").mkdir()
    pathlib.Path(f"{folder}/killed.part").mkdir()
    for out, says in (("there", "there exists: remove it"), ("killed", "killed.part exists: remove it")):
        run(sys.executable, RECIPES / "from_npy.py", f"{folder}/float.npy", "--out", f"{folder}/{out}/", fails_with=says)
    photos = pathlib.Path(folder, "large photos")
    photos.mkdir()
    (photos / "0.jpg").write_bytes(png(PIL.Image.effect_noise((3000, 2000), 90), format="JPEG"))
    for number in range(1, 300):
        os.link(photos / "0.jpg", photos / f"{number}.jpg")
    with subprocess.Popen([sys.executable, RECIPES / "resize_images.py", photos, "--resize", "999", "--workers", "1", "--out", f"{folder}/no"],
                          stderr=subprocess.PIPE, text=True) as job:
        try:
            while not (workers := "".join(path.read_text() for path in pathlib.Path(f"/proc/{job.pid}/task").glob("*/children")).split()):
                assert job.poll() is None
                time.sleep(0.01)
            os.kill(int(workers[0]), signal.SIGKILL)
            _, line = job.communicate(timeout=60)
        finally:
            job.kill()
    assert job.returncode == 1 and line == "a worker was killed, as by a lack of memory: use fewer --workers\n", line
    assert not list(pathlib.Path(folder).glob("no*"))


if __name__ == "__main__":
    recipes_test.main(check_bad_text, check_bad_data_sets, check_pixels, check_other_tars, check_arrays, check_unfinished)
