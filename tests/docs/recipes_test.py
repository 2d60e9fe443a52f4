#!/usr/bin/env python3
"""The recipes of examples/recipes make packs with exactly the tokens and images of their input, which the real packages
tokenizers, datasets, pillow, numpy and mosaicml-streaming write and read here. Exits with 77 if these packages are missing (tests/docs/packages.sh).

Usage: recipes_test.py --pack LOCKSTEP_PACK
"""

import argparse
import gzip
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PYTHON = os.environ.get("LOCKSTEP_DOCS_PYTHON")
if PYTHON and sys.executable != PYTHON:
    os.environ.pop("PYTHONPATH", None)
    os.execv(PYTHON, [PYTHON, *sys.argv])
try:
    import datasets
    import numpy
    import PIL.Image
    import streaming_alone
    import tokenizers
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "examples/recipes"
sys.path.insert(0, str(RECIPES))
TEXTS = [f"Page {number}: " + "the quick brown fox jumps over the lazy dog. " * (number % 7 + 1) for number in range(40)]


def run(*command, fails_with=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if fails_with is not None:
        assert done.returncode != 0 and fails_with in done.stderr, f"{command}: {done.returncode}: {done.stderr}"
    else:
        assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def recipe(name, *arguments, **options):
    return run(sys.executable, RECIPES / name, *arguments, **options)


def tokens_of(pack, count):
    lists = [json.loads(run(PACK, "cat", pack, "--sample", number, "--json")) for number in range(count)]
    return [entry["tokens"] for entry in lists]


def make_tokenizer(folder):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<end>"], show_progress=False))
    tokenizer.save(f"{folder}/tokenizer.json")
    return tokenizer


def check_tokens(folder):
    tokenizer = make_tokenizer(folder)
    end = tokenizer.token_to_id("<end>")
    expected = [tokenizer.encode(text).ids + [end] for text in TEXTS]
    common = ["--tokenizer", f"{folder}/tokenizer.json", "--end", "<end>"]

    with open(f"{folder}/pages.jsonl", "w") as lines:
        lines.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS[:20])
    with gzip.open(f"{folder}/more.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS[20:39])
    pathlib.Path(f"{folder}/last.txt").write_text(TEXTS[39])
    recipe("text_to_tokens.py", f"{folder}/pages.jsonl", f"{folder}/more.jsonl.gz", f"{folder}/last.txt",
           "--out", f"{folder}/corpus", *common)
    run(PACK, "convert", f"{folder}/corpus", "--out", f"{folder}/pack")
    run(PACK, "verify", f"{folder}/corpus", f"{folder}/pack")
    assert tokens_of(f"{folder}/pack", len(TEXTS)) == expected

    datasets.Dataset.from_dict({"body": TEXTS}).save_to_disk(f"{folder}/saved")
    recipe("text_to_tokens.py", "--dataset", f"{folder}/saved", "--field", "body", "--out", f"{folder}/again", *common)
    # The same bytes as from the files.
    for ending in ("bin", "idx"):
        assert pathlib.Path(f"{folder}/again.{ending}").read_bytes() == pathlib.Path(f"{folder}/corpus.{ending}").read_bytes()

    parquet = pathlib.Path(folder, "parquet")
    parquet.mkdir()
    datasets.Dataset.from_dict({"body": TEXTS}).to_parquet(parquet / "train.parquet")
    recipe("text_to_tokens.py", "--dataset", parquet, "--field", "body", "--out", f"{folder}/columns", *common)
    assert pathlib.Path(f"{folder}/columns.bin").read_bytes() == pathlib.Path(f"{folder}/corpus.bin").read_bytes()
    run(PACK, "convert", parquet, "--out", f"{folder}/no", fails_with="train.parquet: it is a table of a data set: convert Parquet and Arrow with examples/recipes")

    recipe("text_to_tokens.py", f"{folder}/pages.jsonl", "--field", "body", "--out", f"{folder}/bad", *common,
           fails_with="pages.jsonl:1: no JSON object with 'body'")
    assert not list(pathlib.Path(folder).glob("bad*"))


def check_large_vocabulary(folder):
    from token_file import TokenFile

    with TokenFile(f"{folder}/wide", vocabulary=70000) as out:
        out.add([69999, 0, 1])
        out.add([])
        out.add([65536])
    run(PACK, "convert", f"{folder}/wide", "--out", f"{folder}/wide_pack")
    assert tokens_of(f"{folder}/wide_pack", 2) == [[69999, 0, 1], [65536]]


def check_images(folder):
    def picture(number, kind):
        out = io.BytesIO()
        PIL.Image.new("RGB", (8 + number, 8), (number * 20, 255 - number, 3)).save(out, kind)
        return out.getvalue()

    kinds = ["PNG", "JPEG", "GIF", "PNG"]
    files = [picture(number, kind) for number, kind in enumerate(kinds)]
    data = datasets.Dataset.from_dict({"image": [{"bytes": file, "path": None} for file in files], "label": [3, 1, 4, 1]},
                                      features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}))
    data.save_to_disk(f"{folder}/images")
    out = f"{folder}/tars"
    recipe("images_to_tars.py", f"{folder}/images", "--shard-size", "1", "--out", out)
    run(PACK, "index", out)
    run(PACK, "verify", out)
    for number, (kind, file, label) in enumerate(zip(kinds, files, [3, 1, 4, 1])):
        assert run(PACK, "cat", out, "--sample", number, "--kind", "cls") == str(label)
        ending = "jpg" if kind == "JPEG" else "png"
        got = subprocess.run([PACK, "cat", out, "--sample", str(number), "--kind", ending], capture_output=True, check=True).stdout
        if kind == "GIF":
            assert PIL.Image.open(io.BytesIO(got)).format == "PNG"
        else:
            assert got == file

    folders = pathlib.Path(folder, "classes")  # an imagefolder: a folder for each class
    for name in ("cat", "dog"):
        (folders / name).mkdir(parents=True)
        (folders / name / "1.png").write_bytes(files[0] if name == "cat" else files[3])
    recipe("images_to_tars.py", folders, "--size", "16", "--out", f"{folder}/scaled")
    run(PACK, "index", f"{folder}/scaled")
    labels = [run(PACK, "cat", f"{folder}/scaled", "--sample", number, "--kind", "cls") for number in range(2)]
    assert labels == ["0", "1"]
    got = subprocess.run([PACK, "cat", f"{folder}/scaled", "--sample", "1", "--kind", "png"], capture_output=True, check=True).stdout
    assert PIL.Image.open(io.BytesIO(got)).size == (16, 16)


def part(pack, number, kind):
    return subprocess.run([PACK, "cat", pack, "--sample", str(number), "--kind", kind], capture_output=True, check=True).stdout


def check_resized(folder):
    """A gradient from black at the left to white at the right, whose camera was held upright, and a square PNG."""
    photos = pathlib.Path(folder, "photos")
    (photos / "b").mkdir(parents=True)
    wide = PIL.Image.linear_gradient("L").rotate(90).resize((600, 400)).convert("RGB")
    turned = PIL.Image.Exif()
    turned[274] = 6  # orientation: turn a quarter clockwise
    wide.save(photos / "a.jpeg", quality=95, exif=turned)
    PIL.Image.new("RGBA", (100, 100), (200, 0, 0, 255)).save(photos / "b/c.png")
    for name, label in (("a", "7"), ("b/c", "8")):
        (photos / f"{name}.cls").write_text(label)
    out = f"{folder}/resized"
    recipe("resize_images.py", photos, "--resize", "64,32", "--crop", "24", "--out", out, "--workers", "2")
    recipe("resize_images.py", photos, "--resize", "64", "--orientation", "keep", "--format", "PNG", "--out", out)
    for pack in (out, f"{out}-64", f"{out}-32"):
        run(PACK, "index", pack)
        run(PACK, "verify", pack)
        assert [part(pack, number, "cls") for number in range(2)] == [b"7", b"8"]
    for side in (64, 32):
        picture = PIL.Image.open(io.BytesIO(part(f"{out}-{side}", 0, "jpg")))
        assert picture.size == (24, 24) and picture.format == "JPEG" and not picture.getexif()
        # The gradient runs down now, and the crop is its middle.
        shown = numpy.asarray(picture.convert("L"), dtype=int)
        step = 255 * 24 / (side * 1.5)
        assert numpy.ptp(shown.mean(axis=1)) > step / 2 and numpy.ptp(shown.mean(axis=0)) < 6, shown
    kept = PIL.Image.open(io.BytesIO(part(out, 0, "png")))
    assert kept.size == (96, 64) and kept.getexif()[274] == 6
    shown = numpy.asarray(kept.convert("L"), dtype=int)
    assert numpy.abs(shown[32] - numpy.asarray(wide.resize((96, 64)).convert("L"), dtype=int)[32]).max() < 8
    assert PIL.Image.open(io.BytesIO(part(out, 1, "png"))).getpixel((5, 5)) == (200, 0, 0)

    recipe("resize_images.py", f"{out}-64", "--resize", "16", "--out", f"{folder}/again")  # from tar shards
    run(PACK, "index", f"{folder}/again")
    assert PIL.Image.open(io.BytesIO(part(f"{folder}/again", 1, "jpg"))).size == (16, 16)

    (photos / "a.jpeg").write_bytes((photos / "a.jpeg").read_bytes()[:2000])
    recipe("resize_images.py", photos, "--resize", "8", "--out", f"{folder}/no", fails_with="a.jpeg: image file is truncated")
    PIL.Image.new("L", (8, 8)).save(photos / "a.mask.png")
    recipe("resize_images.py", photos, "--resize", "8", "--out", f"{folder}/nor", fails_with="a: --kind must name one picture")


def check_npy(folder):
    rows = numpy.arange(12, dtype="<u2").reshape(3, 4)
    numpy.save(f"{folder}/rows.npy", rows)
    numpy.save(f"{folder}/one.npy", numpy.array([70000, 1, 2], dtype=">i4"))
    recipe("from_npy.py", f"{folder}/rows.npy", f"{folder}/one.npy", "--out", f"{folder}/npy")
    run(PACK, "convert", f"{folder}/npy", "--out", f"{folder}/npy_pack")
    assert tokens_of(f"{folder}/npy_pack", 4) == [*rows.tolist(), [70000, 1, 2]]
    pictures = numpy.asfortranarray(numpy.arange(2 * 4 * 3 * 3, dtype="uint8").reshape(2, 4, 3, 3))
    numpy.save(f"{folder}/pictures.npy", pictures)
    recipe("from_npy.py", f"{folder}/pictures.npy", "--out", f"{folder}/pictures")
    run(PACK, "index", f"{folder}/pictures")
    assert [part(f"{folder}/pictures", number, "raw") for number in range(2)] == [picture.tobytes() for picture in pictures]
    numpy.save(f"{folder}/negative.npy", numpy.array([1, -1]))
    recipe("from_npy.py", f"{folder}/negative.npy", "--out", f"{folder}/no", fails_with="negative.npy: a token is not in 0..65535")


def from_mds(*arguments, **options):
    return run(sys.executable, pathlib.Path(__file__).with_name("streaming_alone.py"), RECIPES / "from_mds.py", *arguments, **options)


def check_mds(folder):
    streaming_alone.load()
    from streaming.base.format.mds.writer import MDSWriter

    samples = [{"image": bytes([number]) * 50, "label": number * 3, "text": f"text {number} ü"} for number in range(7)]
    with MDSWriter(out=f"{folder}/mds", columns={"image": "bytes", "label": "int", "text": "str"}, size_limit=200) as out:
        for sample in samples:
            out.write(sample)
    assert len(list(pathlib.Path(folder, "mds").glob("*.mds"))) > 1
    from_mds(f"{folder}/mds", "--name", "image=jpg", "--name", "label=cls", "--out", f"{folder}/mds_tars")
    run(PACK, "index", f"{folder}/mds_tars")
    for number, sample in enumerate(samples):
        found = [part(f"{folder}/mds_tars", number, kind) for kind in ("jpg", "cls", "text")]
        assert found == [sample["image"], str(sample["label"]).encode(), sample["text"].encode()]

    tokens = numpy.arange(24, dtype="uint16").reshape(3, 8)
    with MDSWriter(out=f"{folder}/mds_tokens", columns={"tokens": "ndarray:uint16:8"}) as out:
        for row in tokens:
            out.write({"tokens": row})
    from_mds(f"{folder}/mds_tokens", "--out", f"{folder}/mds_corpus")
    run(PACK, "convert", f"{folder}/mds_corpus", "--out", f"{folder}/mds_pack")
    assert tokens_of(f"{folder}/mds_pack", 3) == tokens.tolist()


def main(*checks):
    global PACK
    parser = argparse.ArgumentParser()
    parser.add_argument("--pack", required=True)
    PACK = parser.parse_args().pack
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HF_HOME"] = f"{folder}/cache"
            check(folder)


if __name__ == "__main__":
    main(check_tokens, check_large_vocabulary, check_images, check_resized, check_npy, check_mds)
