#!/usr/bin/env python3
"""Files as other people have them (tests/data/other_files.py), given to lockstep-pack and lockstep-plan.

Compares the samples of tar files with WebDataset's, if Python finds it (PYTHONPATH).
Usage: other_files_test.py --bin FOLDER
"""

import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "data"))
import other_files as files  # noqa: E402

try:
    import webdataset
except ImportError:
    webdataset = None


class World(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def run_tool(self, *words, tool="lockstep-pack", environment=None):
        command = [f"{BIN}/{tool}", *map(str, words)]
        return subprocess.run(command, capture_output=True, cwd=self.folder,
                              env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), **(environment or {})})

    def done(self, *words, **options):
        done = self.run_tool(*words, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, b"")
        return os.fsdecode(done.stdout)

    def refused(self, *words, **options):
        refused = self.run_tool(*words, **options)
        self.assertEqual(refused.returncode, 1, refused)
        self.assertEqual(refused.stderr.count(b"\n"), 1, refused.stderr)
        return os.fsdecode(refused.stderr)

    def assert_in_all(self, texts, line):
        for text in texts:
            self.assertIn(text, line)

    def samples(self, folder, **options):
        """[(key, {kind: bytes})] as lockstep-pack reads them."""
        samples = []
        for line in self.done("ls", folder, "--json", **options).splitlines():
            part = json.loads(line)
            if not samples or part["sample"] != len(samples) - 1:
                samples.append((part["key"], {}))
            with open(folder / part["shard"], "rb") as shard:
                shard.seek(part["offset"])
                kind = part["kind"].lower()
                samples[-1][1][kind.strip(".") and kind] = shard.read(part["bytes"])  # "a." has the kind "." here
        return samples

    def assert_as_web_data_set(self, folder):
        ours = self.samples(folder)
        if webdataset is None:
            return
        data = webdataset.WebDataset(sorted(map(str, folder.glob("[!.]*.tar"))), shardshuffle=False)
        theirs = [(sample["__key__"].removeprefix("./"), {kind: part for kind, part in sample.items() if not kind.startswith("__")})
                  for sample in data]
        # It takes "__MACOSX/._000.jpg" for a sample "__MACOSX/" of the kind "_000.jpg", though it leaves out "._000.jpg".
        self.assertEqual(ours, [(key, parts) for key, parts in theirs if key != "__MACOSX/"])


class Tar(World):
    def test_a_tar_file_of_a_mac_has_the_samples_that_web_data_set_finds(self):
        for name, inner in (("web", b""), ("deep", b"train/")):
            folder = self.write(f"{name}/x-0.tar", files.mac_tar(inner)).parent
            self.write(f"{name}/._x-0.tar", files.APPLE_DOUBLE)
            self.write(f"{name}/.DS_Store", b"\0Bud1")
            line = self.done("index", folder)
            self.assert_in_all([": 3 samples", "9 members are left out", "'._.DS_Store' in x-0.tar", "2 files left out"], line)
            self.assertEqual([key for key, _ in self.samples(folder)], [f"{os.fsdecode(inner)}{n:03}" for n in range(3)])
            self.assertEqual(self.samples(folder)[1][1], {"cls": b"cls of 1", "jpg": b"jpg of 1"})
            self.done("verify", folder)
            if not inner:
                self.assert_as_web_data_set(folder)

    def test_names_keep_their_bytes_in_any_locale(self):
        tar, names = files.names_tar()
        for locale in ("C", "C.UTF-8", "POSIX"):
            folder = self.write(f"{locale}/x.tar", tar).parent
            self.done("index", folder, environment={"LC_ALL": locale})
            self.done("verify", folder, environment={"LC_ALL": locale})
            index = (folder / "index.lockstep").read_bytes()
            for number, name in enumerate(names):
                self.assertIn(name.rpartition(b".")[0], index, locale)
                shown = self.run_tool("cat", folder, "--sample", number, environment={"LC_ALL": locale})
                self.assertEqual(shown.stdout, str(number).encode(), name)

    def test_of_several_headers_of_a_member_that_one_counts_which_counts_for_pythons_tarfile(self):
        for name, content in files.header_tars().items():
            with self.subTest(name):
                folder = self.write(f"{name}/x.tar", content).parent
                self.done("index", folder)
                self.done("verify", folder)
                with tarfile.open(fileobj=io.BytesIO(content), mode="r|") as members:
                    theirs = [(member.name, members.extractfile(member).read()) for member in members]
                ours = [(f"{key}.{kind}", part) for key, parts in self.samples(folder) for kind, part in parts.items()]
                self.assertEqual(ours, theirs)
        self.write("sizes/x.tar", files.pax({b"size": b"1"}, b"g") + files.tar_of({"a.txt": b"a"}))
        self.assert_in_all(["x.tar", "a global PAX header gives all members one size"], self.refused("index", "sizes"))

    def test_names_are_split_as_web_data_set_does_and_unequal_samples_are_counted(self):
        content = files.tar_of({"img.v1.jpg": b"1", "img.v2.jpg": b"2", "a.b/c.jpg": b"3", "a.b/c.cls": b"4", "d.jpg": b"5",
                                "d.CLS": b"6", "e.jpg": b"7", "e.cls": b"8", "README": b"9", "f..jpg": b"10", "g.": b"11",
                                "__index__.json": b"12", "__meta__": b"13", "__meta__/x.y": b"14"})
        folder = self.write("web/x.tar", content).parent
        line = self.done("index", folder)
        self.assert_in_all(["of 7 samples have other parts than the others (cls, jpg): the first is 'img' (v1.jpg, v2.jpg)"], line)
        self.assertIn("4 of 7", line)
        self.assertIn("3 members are left out", line)
        self.assert_as_web_data_set(folder)

    def test_hidden_files_are_split_as_web_data_set_does(self):
        names = ["d/.a.jpg", "d/.a.cls", "d/.b", "d/e/.c.jpg", "a.b/c/.d.jpg", "a.b/c.jpg", "q\n/.e.jpg", "f/g.jpg"]
        ignored = [".a.jpg", "a.b/.c.jpg", "x/.y/.z.jpg", "a.\nb/c.jpg"]
        folder = self.write("web/x.tar", files.tar_of({name: name.encode() for name in names + ignored})).parent
        self.assertIn(f"{len(ignored)} members are left out that belong to no sample ({len(ignored)} without", self.done("index", folder))
        self.assertEqual([key for key, _ in self.samples(folder)], ["d/", "d/e/", "a.b/c/", "a.b/c", "q\n/", "f/g"])
        self.assertEqual(self.samples(folder)[0][1], {"a.jpg": b"d/.a.jpg", "a.cls": b"d/.a.cls", "b": b"d/.b"})
        self.assert_as_web_data_set(folder)
        self.done("verify", folder)
        self.done("convert", folder, "--out", "again")
        self.assertEqual(self.samples(self.folder / "again"), self.samples(folder))
        for name in names:
            self.write(f"files/{name}", name.encode())
        self.done("create", "files", "--out", "pack")
        self.assertEqual({key for key, _ in self.samples(self.folder / "pack")}, {key for key, _ in self.samples(folder)})
        self.assert_as_web_data_set(self.folder / "pack")

    def test_members_without_an_ending_are_samples_if_there_are_no_others(self):
        folder = self.write("web/x.tar", files.tar_of({"0001": b"1", "0002": b"2", "._0002": b"3"})).parent
        self.assert_in_all([": 2 samples", "1 member is left out"], self.done("index", folder))
        self.assertEqual([key for key, _ in self.samples(folder)], ["0001", "0002"])
        self.done("verify", folder)

    def test_bytes_after_the_end_are_reported(self):
        first, second = files.tar_of({"a.txt": b"a"}), files.tar_of({"b.txt": b"b"})
        folder = self.write("web/x.tar", first + second).parent
        for line in (self.done("index", folder), self.done("verify", folder)):
            self.assert_in_all([": 1 samples", f"{len(second)} bytes follow the end of x.tar"], line)
        empty = self.write("empty/0.tar", files.end(b"") + second).parent
        text = f"{len(second)} bytes follow the end of 0.tar"
        self.assert_in_all(["its tar files hold no samples", text], self.refused("index", empty))
        self.write("empty/1.tar", first)
        self.write("empty/2.tar", files.tar_of({"README": b""}) + second)
        self.assert_in_all([": 1 samples", "2 shards hold no samples", text, "end of 2.tar"], self.done("index", empty))
        plain = self.write("plain/x.tar", first + bytes(50000)).parent
        self.assertNotIn("follow", self.done("index", plain))
        self.assertEqual(json.loads(self.done("verify", plain, "--json"))["notes"], [])

    def test_empty_shards_have_no_samples_and_compressed_ones_are_counted(self):
        folder = self.write("web/x-0.tar", files.tar_of({"a.txt": b"a"})).parent
        self.write("web/x-1.tar", files.end(b""))
        self.write("web/x-2.tar", b"")
        self.write("web/x-3.tar.gz", b"")
        self.write("web/x-4.TGZ", b"")
        self.assert_in_all([": 1 samples", "2 shards hold no samples", "x-1.tar", "compressed tar files are left out: 2, such as x-"],
                           self.done("index", folder))
        self.done("verify", folder)
        self.write("none/x.tar", files.end(b""))
        self.assertIn("its tar files hold no samples", self.refused("index", "none"))

    def test_tar_files_that_an_older_index_lacks_are_counted(self):
        folder = self.write("web/0.tar", files.tar_of({"a.txt": b"a"})).parent
        self.assertNotIn("does not have", self.done("index", folder))
        self.write("web/1.tar", files.tar_of({"b.txt": b"b"}))
        self.assert_in_all([": 1 samples", "index.lockstep does not have: 1, such as 1.tar"], self.done("index", folder))

    def test_tar_files_in_tar_files_are_named(self):
        tar = files.tar_of({"a.jpg": b"a"})
        for number, (inner, content) in enumerate({"n01.tar": tar, "N01.TAR": tar, "x.tar.gz": files.gzip.compress(tar),
                                                   "x.TGZ": files.gzip.compress(tar)}.items()):
            self.write(f"nested{number}/train.tar", files.tar_of({inner: content}))
            self.assert_in_all(["train.tar", f"'{inner}'", "is a tar file itself", "unpack"], self.refused("index", f"nested{number}"))
        other = self.write("other/x.tar", files.tar_of({"a.target": files.gzip.compress(b"x"), "a.tar": b"not one"})).parent
        self.assertIn(": 1 samples", self.done("index", other))
        self.write("packed/x.tar", files.gzip.compress(files.tar_of({"a.jpg": b"a"})))
        self.assert_in_all(["x.tar", "compressed with gzip", "gzip -dc"], self.refused("index", "packed"))

    def test_members_without_bytes_of_their_own_are_refused_with_what_to_do(self):
        one = files.member(b"a.jpg", b"a")
        for number, (name, content, advice) in enumerate((
                ("b.jpg", files.member(b"b.jpg", b"", kind=b"1", link=b"a.jpg"), "a hard link: make the tar file with --hard-dereference"),
                ("b.jpg", files.member(b"b.jpg", b"", kind=b"2", link=b"a.jpg"), "a symbolic link: make the tar file with --dereference"),
                ("b.jpg", files.sparse_member(b"b.jpg"), "(sparse): make the tar file without --sparse"),
                ("d/b.jpg", files.sparse_pax_member(b"d/b.jpg"), "(sparse): make the tar file without --sparse"))):
            self.write(f"{number}/x.tar", files.end(one + content))
            self.assert_in_all(["x.tar", f"member '{name}'", advice], self.refused("index", f"{number}"))
        # Members that are left out may have any form.
        others = files.sparse_member(b"._a.jpg") + files.sparse_pax_member(b"._b.jpg") + files.member(b"d/", b"Ya.jpg\0\0", kind=b"D")
        folder = self.write("web/x.tar", files.end(others + one)).parent
        self.assert_in_all([": 1 samples", "2 members are left out"], self.done("index", folder))
        self.done("verify", folder)
        self.assert_as_web_data_set(folder)

    def test_damaged_tar_files_are_refused_with_the_offset(self):
        good = files.tar_of({"a.txt": b"a", "b.txt": b"b"})
        for content, why in ((good[:1030], "within a header"), (good[:1024] + b"x" + good[1025:], "checksum"),
                             (b"text", "at offset 0"), (files.member(b"a.txt", b"a" * 2000)[:1500], "was truncated")):
            self.write("web/x.tar", content)
            self.assert_in_all(["x.tar", "not a complete tar file", why], self.refused("index", "web"))


class Folders(World):
    def test_files_of_operating_systems_are_left_out_with_their_number(self):
        for name in ("a.jpg", "a.cls", "sub/b.jpg", "sub/b.cls"):
            self.write(f"photos/{name}", b"xy")
        strays = [".DS_Store", "._a.jpg", "Thumbs.db", "desktop.ini", "README", "sub/.DS_Store", "sub/THUMBS.DB", "sub/Readme.md",
                  "__MACOSX/._a.jpg", ".git/config", "@eaDir/a.jpg/x.jpg", "LICENSE.txt", "lost+found/a.jpg", ".cache/huggingface/a.jpg.metadata",
                  "#recycle/a.jpg", ".@__thumb/a.jpg", "sub/~$b.jpg", ".~lock.a.jpg#", ".svn/entries", "Network Trash Folder/a.jpg"]
        for name in strays:
            self.write(f"photos/{name}", b"x")
        line = self.done("create", "photos", "--out", "pack")
        self.assert_in_all(["packed 2 samples", f"{len(strays)} files left out that are not data", "--filter"], line)
        self.assertNotIn("other parts", line)
        tokens = self.done("create", "photos", "--out", "filtered", "--filter", "*.jpg", "--token-bytes", "2")
        self.assertIn("packed 2 samples", tokens)
        self.assertIn("packed 2 samples", self.done("create", "photos", "--out", "readmes", "--filter", "R*"))
        only = self.write("only/Thumbs.db", b"x").parent
        self.assert_in_all(["nothing to pack", "Thumbs.db", "--filter"], self.refused("create", only, "--out", "none"))

    def test_a_folder_of_tar_files_is_not_packed_again(self):
        folder = self.write("web/x.tar", files.tar_of({"a.txt": b"a"})).parent
        self.assertIn(f"run lockstep-pack index {folder}", self.refused("create", folder, "--out", "pack"))
        for index in ("wids.json", "x.idx", "index.lockstep"):
            self.write(f"web/{index}", b"{}")
            self.assertIn(f"run lockstep-pack index {folder}", self.refused("create", folder, "--out", "pack"))
        for number, name in enumerate(("x.TAR", "x.tgz", "x.tar.zst", "x.Tar.Z")):
            folder = self.write(f"{number}/{name}", files.gzip.compress(b"x")).parent
            self.assert_in_all(["holds tar files", "run lockstep-pack index", "--filter '*'"], self.refused("create", folder, "--out", "pack"))
            self.done("create", folder, "--out", f"pack{number}", "--filter", "*")

    def test_endings_count_in_any_case(self):
        self.write("web/x.TAR", files.tar_of({"a.txt": b"a"}))
        self.write("web/y.tar", files.tar_of({"b.txt": b"b"}))
        self.assertIn(": 2 samples", self.done("index", "web"))
        self.assertIn(": 1 samples", self.done("verify", "web/x.TAR"))
        self.write("records/TRAIN.TFRecord", files.tfrecord([b"one"]))
        self.write("counted/PART-R-00000", files.tfrecord([b"one"]))
        self.write("numbered/Train.TFRECORD-00000-OF-00001", files.tfrecord([b"one"]))
        self.write("db/DATA.MDB", files.lmdb({b"a": b"b"}))
        for folder in ("records", "counted", "numbered", "db"):
            self.assertIn(": 1 samples", self.done("verify", folder))

    def test_samples_with_other_parts_are_counted(self):
        for name in ("a.jpg", "a.cls", "b.jpg", "b.cls", "c.jpg"):
            self.write(f"photos/{name}", b"x")
        self.assertIn("1 of 3 samples have other parts than the others (cls, jpg): the first is 'c' (jpg)",
                      self.done("create", "photos", "--out", "pack"))

    def test_strays_beside_data_of_other_formats_are_ignored(self):
        self.write("records/train.tfrecord", files.tfrecord([b"one"]))
        self.write("records/._train.tfrecord", files.APPLE_DOUBLE)
        self.assertIn(": 1 samples", self.done("index", "records"))
        self.write("megatron/a.idx", files.megatron(8, [2])[0])
        self.write("megatron/a.bin", files.megatron(8, [2])[1])
        self.write("megatron/._a.idx", files.APPLE_DOUBLE)
        self.write("megatron/corpus.jsonl.gz", b"")
        self.assertIn(": 1 samples", self.done("stats", "megatron"))

    def test_records_are_recognised_by_their_content(self):
        for folder, names in {"hadoop": ["part-r-00000", "part-r-00001"], "named": ["train.record", "val.record"],
                              "counted": ["train_0", "train_1"]}.items():
            for name in names:
                self.write(f"{folder}/{name}", files.tfrecord([name.encode(), b"two"]))
            for other in ("_SUCCESS", ".part-r-00000.crc", "labels.txt"):
                self.write(f"{folder}/{other}", b"" if other == "_SUCCESS" else b"other")
            self.assertIn(": 4 samples", self.done("index", folder))
            self.assertIn(": 2 samples", self.done("verify", f"{folder}/{names[0]}"))

    def test_a_folder_of_records_with_other_names_is_named(self):
        for number, (name, content, ending) in enumerate((("train.tf", files.tfrecord([b"one"]), ".tfrecord"),
                                                          ("train.tfrecord.0", files.tfrecord([b"one"]), ".tfrecord"),
                                                          ("train.db", files.lmdb({b"a": b"b"}), ".mdb"))):
            path = self.write(f"{number}/{name}", content)
            self.assert_in_all([str(path), f"of a {ending} file: name the file"], self.refused("stats", path.parent))
            self.assertIn(": 1 samples", self.done("stats", path))

    def test_compressed_files_beside_others_are_not_missing_without_a_word(self):
        for folder, name, content in (("named", "b.tfrecord", files.tfrecord([b"two"])), ("counted", "part-r-00001", files.tfrecord([b"two"]))):
            self.write(f"{folder}/{name[:-1]}0" if folder == "counted" else f"{folder}/a.tfrecord", content)
            packed = self.write(f"{folder}/{name}.gz", files.gzip.compress(content))
            self.assert_in_all([str(packed), "compressed", "unpack it"], self.refused("stats", folder))
            self.write(f"{folder}/{name}", content)
            self.assertIn(": 2 samples", self.done("stats", folder))

    def test_every_advice_is_right_for_its_file(self):
        for number, (name, content, advice) in enumerate(files.strange_files()):
            with self.subTest(name):
                path = self.write(f"{number}/{name}", content)
                if name.endswith(".idx"):
                    self.write(f"{number}/{name[:-4]}.bin", b"")
                for source in (path, path.parent):
                    line = self.refused("stats", source)
                    self.assertIn(advice, line, source)
                    self.assertEqual("lockstep-pack create" in line, name.lower().endswith((".zip", ".7z")), line)

    def test_other_files_are_packed_by_create(self):
        path = self.write("texts/a.txt", b"text")
        for source in (path, path.parent):
            self.assertIn(f"run lockstep-pack create {path.parent} --out PACK", self.refused("stats", source))
        self.done("create", path.parent, "--out", "pack")


class Tables(World):
    def pair(self, name, pair):
        self.write(f"{name}.idx", pair[0])
        self.write(f"{name}.bin", pair[1])
        return self.folder / name

    def stats(self, source):
        return json.loads(self.done("stats", source, "--json"))

    def test_documents_that_end_early_are_refused_with_the_numbers(self):
        self.pair("a", files.megatron(4, [3, 2, 4], documents=[0, 1, 2]))
        self.assert_in_all(["a.idx", "documents end at sequence 2", "3 sequences"], self.refused("verify", "a"))

    def test_types_of_forks_are_read_where_the_offsets_show_them(self):
        for code, size, unit in ((9, 4, "tokens"), (10, 8, "tokens"), (6, 4, "tokens"), (7, 8, "tokens")):
            stats = self.stats(self.pair(f"code{code}", files.megatron(code, [3, 2, 4], size=size)))
            self.assertEqual((stats["unit"], stats["total"], stats["max"]), (unit, 9, 4), code)
        self.pair("other", files.megatron(8, [3, 2, 4], size=4))
        self.assert_in_all(["type code 8 means u16 (2 bytes)", "tokens of 4 bytes"], self.refused("stats", "other"))
        self.pair("none", files.megatron(11, [3], size=2))
        self.assert_in_all(["type code 11 is none of Megatron's", "with Megatron-Core"], self.refused("stats", "none"))
        self.pair("floats", files.megatron(6, [0, 3, 2], size=2))  # an empty document first
        self.assert_in_all(["type code 6 means f64 (8 bytes)", "tokens of 2 bytes"], self.refused("stats", "floats"))

    def test_files_of_fairseq_are_read(self):
        source = self.pair("f", files.fairseq(8, [3, 2, 4]))
        self.assertEqual(self.stats(source)["total"], 9)
        self.done("verify", source)

    def test_the_old_format_is_named(self):
        self.pair("old/a", files.old_megatron())
        for source in ("old", "old/a", "old/a.idx", "old/a.bin"):
            self.assert_in_all(["TNTIDX", "--dataset-impl mmap"], self.refused("stats", source))

    def test_empty_documents_are_left_out_of_plans_with_their_number(self):
        source = self.pair("a", files.megatron(8, [3, 0, 2, 0, 4]))
        self.assertIn("2 of 5 samples are empty (the first is 1): plans leave them out", self.done("verify", source))
        plan = self.folder / "plan.jsonl"
        line = self.done("make", source, "--ranks", 1, "--cap", 5, "--out", plan, tool="lockstep-plan")
        self.assertRegex(line, "empty +2 samples")
        used = sorted(sample for line in plan.read_text().splitlines()[1:] for batch in json.loads(line)["ranks"][0] for sample in batch)
        self.assertEqual(used, [0, 2, 4])
        self.assertEqual(json.loads(self.done("stats", source, "--json", tool="lockstep-plan"))["empty"], 2)
        self.write("s/a", b"")
        self.write("s/b", b"xy")
        self.done("create", "s", "--out", "p", "--token-bytes", 2)
        self.assertRegex(self.done("make", "p", "--ranks", 1, "--cap", 5, tool="lockstep-plan"), "empty +1 samples")
        self.assertIn("1 of 2 samples are empty (the first is 0)", self.done("verify", "p"))
        self.pair("none", files.megatron(8, [0, 0]))
        self.assertIn("all its samples are empty", self.refused("make", "none", "--ranks", 1, "--cap", 5, tool="lockstep-plan"))

    def test_entries_that_describe_a_database_are_named_and_can_be_left_out(self):
        entries = {b"%04d" % number: b"sample" for number in range(5)} | {b"length": b"5", b"__keys__": b"pickled", b"__len__": b"5"}
        self.write("db/data.mdb", files.lmdb(entries))
        self.write("db/lock.mdb", b"")
        self.write("more/data.mdb", files.lmdb({b"0": b"", b"KEYS": b"", b"Length\0": b"", b"num_examples": b"9", b"sized": b"", b"length-1": b""}))
        self.assertIn("3 of the samples seem", self.done("verify", "more"))
        line = self.done("verify", "db")
        self.assert_in_all([": 8 samples", "3 of the samples seem", "--leave-out __keys__", "--leave-out __len__", "--leave-out length"], line)
        line = self.done("stats", "--leave-out", "length", "--leave-out", "__*__", "db")
        self.assertIn(": 5 samples", line)
        self.assertNotIn("seem", line)
        self.done("convert", "db", "--out", "pack", "--leave-out", "length", "--leave-out", "__*__")
        self.assertEqual(len(self.samples(self.folder / "pack")), 5)

    def test_the_shown_command_leaves_out_keys_of_any_bytes(self):
        entries = {b"%04d" % number: b"sample" for number in range(5)} | {b"__with spaces__": b"", b"__it's \"$HOME\"__": b"", b"__[a]*?\\__": b"",
                   b"__[a]bc\\__": b"", b"__\x01\n\xff\xc3\xa4'\\__": b"", b"__a\0b__": b"", b"length\0": b"", b"__;rm -rf`ls`#__": b""}
        self.write("db/data.mdb", files.lmdb(entries))
        line = self.done("verify", "db")
        self.assertTrue(line.isprintable() or line.count("\n") == 1, line)
        for options in [line[line.index(" --leave-out") :]] + [" --leave-out" + option for option in line.split(" --leave-out")[1:]]:
            command = f"{BIN}/lockstep-pack stats --json db {options}"
            left = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, cwd=self.folder, check=True).stdout)["samples"]
            self.assertEqual(left, len(entries) - options.count("--leave-out"), options)

    def test_data_without_tokens_get_the_advice_of_their_format(self):
        self.write("r/a.tfrecord", files.tfrecord([b"one"]))
        self.assertIn("token_file.py", self.refused("stats", "r", tool="lockstep-plan"))
        self.write("s/a.txt", b"text")
        self.done("create", "s", "--out", "p")
        self.assertIn("lockstep-pack create --token-bytes", self.refused("stats", "p", tool="lockstep-plan"))
        self.pair("f", files.megatron(7, [3, 2]))
        self.assertIn("integers", self.refused("stats", "f", tool="lockstep-plan"))


if __name__ == "__main__":
    at = sys.argv.index("--bin")
    BIN = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    unittest.main()
