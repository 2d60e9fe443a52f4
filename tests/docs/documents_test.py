#!/usr/bin/env python3
"""The recipes read texts as Python's json and csv modules do, and name file and line of what cannot be meant."""

import codecs
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "examples/recipes"
READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
from documents import documents_of
print(json.dumps(list(documents_of(sys.argv[2], sys.argv[3]))))
"""


class Documents(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def read(self, name, content, field="text"):
        path = self.folder / name
        path.write_bytes(content)
        return subprocess.run([sys.executable, "-c", READ, str(RECIPES), str(path), field], capture_output=True, text=True)

    def texts(self, name, content, **options):
        done = self.read(name, content, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, name, content, *why):
        done = self.read(name, content)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in why:
            self.assertIn(text, done.stderr)

    def test_json_lines_as_people_have_them(self):
        content = codecs.BOM_UTF8 + b'{"text": "a"}\r\n\r\n{"text": ""}\n   \n{"text": "b\\nc", "x": null}\n\n'
        self.assertEqual(self.texts("x.jsonl", content), ["a", "", "b\nc"])
        self.assertEqual(self.texts("x.jsonl.gz", gzip.compress(content)), ["a", "", "b\nc"])
        self.assertEqual(self.texts("y.jsonl", '{"text": "\u2028 does not end a line"}'.encode()), ["\u2028 does not end a line"])

    def test_a_json_line_that_cannot_be_meant_is_named(self):
        good = b'{"text": "a"}\n\n'
        self.refused("x.jsonl", good + b'{"text": null}\n', "x.jsonl:3:", "not null", "--field")
        self.refused("x.jsonl", good + b'{"text": 7}\n', "x.jsonl:3:", "not int")
        self.refused("x.jsonl", good + b"null\n", "x.jsonl:3:", "'text'")
        self.refused("x.jsonl", good + b'{"content": "a"}\n', "x.jsonl:3:", "'text'")
        self.refused("x.jsonl", good + b'{"text": "a"', "x.jsonl:3:")
        self.refused("x.jsonl", good + b'{"text": "\xff"}\n', "x.jsonl:3:", "not a text in UTF-8")
        self.refused("x.jsonl", good + b'{"text": "\\ud83d"}\n', "x.jsonl:3:", "character 1 is wrong")
        self.refused("x.jsonl.gz", gzip.compress(good)[:-6], "x.jsonl.gz: cannot be read after line")

    def test_tables_as_spreadsheets_write_them(self):
        content = codecs.BOM_UTF8 + b'id,text\r\n1,"a, ""b"""\r\n2,"two\nlines"\r\n3,\r\n'
        self.assertEqual(self.texts("x.csv", content), ['a, "b"', "two\nlines", ""])
        self.assertEqual(self.texts("x.tsv", b"id\ttext\n1\ta,b\n"), ["a,b"])

    def test_a_row_that_cannot_be_meant_is_named(self):
        self.refused("x.csv", b"id,text\n1,a\n2\n", "x.csv:3:", "1 cells, but 2 columns")
        self.refused("x.csv", b'id,text\n1,"a\n', "x.csv:")
        self.refused("x.csv", b"id,content\n1,a\n", "x.csv:1: no column 'text'", "id, content")

    def test_a_text_is_a_document_without_its_mark(self):
        self.assertEqual(self.texts("x.txt", codecs.BOM_UTF8 + b"a\r\nb"), ["a\nb"])
        self.refused("x.txt", b"\xff\xfe", "x.txt:1: not a text in UTF-8")


unittest.main()
