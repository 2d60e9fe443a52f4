#!/usr/bin/env python3
"""Folders with sparse files, programs and symbolic links are staged as they are.

  folders_test.py lockstep-stage
"""

import filecmp
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "data"))
import folders

STAGE = pathlib.Path(sys.argv.pop(1)).resolve()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(path, name), folder)
                  for path, _, names in os.walk(folder, followlinks=True) for name in names)


class Folders(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lockstep-folders-")
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name).resolve()

    def command(self, source, *options, cache="cache"):
        return [STAGE, "put", source, "--cache", self.top / cache, "--json", *options]

    def put(self, source, *options):
        done = subprocess.run(self.command(source, *options), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        return result, pathlib.Path(result["path"])

    def expect_same(self, copy, source):
        self.assertEqual(files_below(copy), files_below(source))
        for name in files_below(source):
            self.assertTrue(filecmp.cmp(copy / name, source / name, shallow=False), name)

    def stored(self, folder):
        return sum(path.stat().st_blocks for path in folder.rglob("*") if path.is_file()) * 512

    def test_holes_stay_holes_and_do_not_count(self):
        source = self.top / "sparse"
        stored = folders.sparse(source)
        self.assertLess(stored, 16 << 20)
        # The quota has room for what is stored, not for the files' lengths.
        result, copy = self.put(source, "--quota", "20M")
        self.expect_same(copy, source)
        for path in source.iterdir():
            self.assertLessEqual((copy / path.name).stat().st_blocks, path.stat().st_blocks + 64, path.name)
        self.assertLessEqual(result["bytes"], stored)
        self.assertLessEqual(result["from_source"], stored)
        again, _ = self.put(source, "--verify", "full")
        self.assertTrue(again["hit"])
        self.assertEqual(again["bytes"], result["bytes"])

    def test_holes_stay_holes_on_every_node(self):
        source = self.top / "sparse"
        folders.sparse(source)
        (self.top / "key").write_text("a secret of all nodes")
        nodes = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
        jobs = [subprocess.Popen(self.command(source, "--nodes", nodes, "--node-id", str(node), "--key-file", self.top / "key",
                                              cache=f"cache{node}"), stdout=subprocess.PIPE, text=True) for node in range(2)]
        outputs = [job.communicate(timeout=120)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0])
        for output in outputs:
            copy = pathlib.Path(json.loads(output.splitlines()[-1])["path"])
            self.expect_same(copy, source)
            self.assertLessEqual(self.stored(copy), self.stored(source) + (1 << 20))

    def test_a_sparse_file_is_copied_again_over_what_was_left(self):
        source = self.top / "sparse"
        folders.sparse(source)
        _, copy = self.put(source)
        changed = copy / "map.bin"
        changed.chmod(0o644)
        with open(changed, "r+b") as file:
            file.seek(200 << 20)
            file.write(b"damage")
        again, copy = self.put(source, "--verify", "full")
        self.assertFalse(again["hit"])
        self.expect_same(copy, source)

    def test_programs_can_be_executed(self):
        source = self.top / "programs"
        executable = folders.programs(source)
        _, copy = self.put(source)
        for path in copy.rglob("*"):
            if path.is_file():
                wanted = 0o555 if str(path.relative_to(copy)) in executable else 0o444
                self.assertEqual(path.stat().st_mode & 0o7777, wanted, path)
        self.assertEqual(subprocess.run([copy / "run.sh"], capture_output=True, text=True).stdout, "run.sh\n")
        # Nothing else tells that the file is another one now.
        (source / "data.txt").chmod(0o755)
        again, copy = self.put(source)
        self.assertFalse(again["hit"])
        self.assertTrue(os.access(copy / "data.txt", os.X_OK))

    def test_programs_can_be_executed_from_the_shared_store(self):
        source = self.top / "programs"
        folders.programs(source)
        done = subprocess.run([STAGE, "prefetch", source, "--cache", self.top / "shared", "--everyone", "--json"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        copy = pathlib.Path(json.loads(done.stdout.splitlines()[-1])["path"])
        self.assertEqual((copy / "run.sh").stat().st_mode & 0o7777, 0o555)
        self.assertEqual((copy / "data.txt").stat().st_mode & 0o7777, 0o444)

    def test_a_snapshot_of_hugging_face_becomes_files(self):
        repository = self.top / "models--a--b"
        revision = folders.snapshot(repository)
        for source in (revision, repository):
            _, copy = self.put(source)
            self.expect_same(copy, source)
            self.assertEqual([path for path in copy.rglob("*") if path.is_symlink()], [])

    def test_links_inside_the_folder_are_followed(self):
        source = self.top / "links"
        folders.links(source)
        _, copy = self.put(source)
        self.expect_same(copy, source)
        self.assertEqual((copy / "linked/deeper/b.txt").read_text(), "b")
        self.assertEqual((copy / "again.txt").read_text(), "a")

    def test_other_links_are_refused_with_what_to_do(self):
        for source, text in folders.refused(self.top / "refused"):
            with self.subTest(source.name):
                done = subprocess.run(self.command(source), capture_output=True, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn("link", done.stderr)
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
