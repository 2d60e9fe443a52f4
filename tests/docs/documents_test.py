#!/usr/bin/env python3
"""The recipes read texts as Python's json and csv modules do, and name file and line of what cannot be meant."""

import bz2
import codecs
import gzip
import json
import lzma
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


JSON_LINES = b'{"text": "a"}\n{"text": "b"}\n'
TABLE = b"id,text\n1,a\n2,b\n"
# The name of a file, its bytes, and its texts or the message without the file's folder.
DOCUMENTS = [
    ("a.JSONL", JSON_LINES, ["a", "b"]), ("a.ndjson", JSON_LINES, ["a", "b"]), ("a.Json", JSON_LINES, ["a", "b"]),
    ("a.jsonl.gz", gzip.compress(JSON_LINES), ["a", "b"]), ("a.ndjson.GZ", gzip.compress(JSON_LINES), ["a", "b"]),
    ("a.jsonl.xz", lzma.compress(JSON_LINES), ["a", "b"]), ("a.csv.bz2", bz2.compress(TABLE), ["a", "b"]),
    ("a.CSV", TABLE, ["a", "b"]), ("a.csv.gz", gzip.compress(TABLE), ["a", "b"]),
    ("a.Tsv", TABLE.replace(b",", b"\t"), ["a", "b"]), ("a.tsv.gz", gzip.compress(TABLE.replace(b",", b"\t")), ["a", "b"]),
    ("a.txt.gz", gzip.compress(b"a\r\nb"), ["a\nb"]), ("a.TXT", b"\xef\xbb\xbfa", ["a"]), ("empty.jsonl", b"", []),
    ("list.json", b'\n [{"text": "a"},\n {"text": "b"}]\n', ["a", "b"]), ("list.jsonl", b'[{"text": "a"}]', ["a"]),
    ("list.json", b'[{"text": "a"},\n{"text": }]', "list.json:2: not JSON: Expecting value: write an object in each line (jq -c .)"),
    ("list.json", b'[{"text": "a"}, 7]', "list.json, element 2: no JSON object with 'text'"),
    ("pretty.json", b'{\n"text": "a"\n}\n', "pretty.json:1: not JSON: Expecting property name enclosed in double quotes: write"),
    ("joined.jsonl", b"\xef\xbb\xbf" + JSON_LINES + b"\r\n\xef\xbb\xbf" + JSON_LINES, ["a", "b"] * 2),
    ("mac.jsonl", JSON_LINES.replace(b"\n", b"\r"), ["a", "b"]),
    ("cut.jsonl", JSON_LINES + b'\n{"te', "cut.jsonl:4: not JSON: Unterminated string"),
    ("zeros.jsonl", JSON_LINES + bytes(9), "zeros.jsonl:3: not JSON"),
    ("number.jsonl", b"7\n", "number.jsonl:1: no JSON object with 'text'"), ("deep.jsonl", b"[" * 99999, "deep.jsonl:1: not JSON"),
    ("null.jsonl", JSON_LINES + b'\n{"text": null}\n', "null.jsonl:4: 'text' must be a text, not null: remove the line"),
    ("half.jsonl", b'{"text": "\\ud83d"}', "half.jsonl:1: 'text' is not a text in UTF-8: character 1 is wrong"),
    ("latin.jsonl", JSON_LINES + b'{"text": "x\xe4"}', "latin.jsonl:3: 'text' is not a text in UTF-8: character 2 is wrong"),
    ("wide.jsonl", JSON_LINES.decode().encode("utf-16"), "wide.jsonl:1: not JSON"),
    ("cut.jsonl.gz", gzip.compress(JSON_LINES * 9)[:-9], "cut.jsonl.gz: cannot be read after line "),
    ("bad.csv.gz", gzip.compress(TABLE)[:10] + b"\xff" * 30, "bad.csv.gz: cannot be read after line 0: Error -3"),
    ("plain.jsonl.gz", JSON_LINES, "plain.jsonl.gz: cannot be read after line 0: Not a gzipped file"),
    ("empty.jsonl.gz", b"", "empty.jsonl.gz: cannot be read after line 0: the file is empty"),
    ("plain.jsonl.xz", JSON_LINES, "plain.jsonl.xz: cannot be read after line 0: Input format not supported"),
    ("many.csv", TABLE + b"3,c, d\n", "many.csv:4: 3 cells, but 2 columns: put a cell that contains the separator"),
    ("few.csv", TABLE + b"\n3\n", "few.csv:5: 1 cells, but 2 columns"), ("few.tsv", b"text\tx\na\n", "few.tsv:2: 1 cells, but 2"),
    ("twice.csv", b"text,id,text\na,1,b\n", "twice.csv:1: 2 columns are named 'text': the columns are 'text', 'id', 'text'"),
    ("no.csv", b"\r\n\r\nid;text\r\n1;a\r\n", "no.csv:3: no column 'text': the columns are 'id;text'"),
    ("empty.csv", b"", "empty.csv:1: no column 'text'"),
    ("cells.csv", b"\xef\xbb\xbf\r\n\r\ntext,id\r\n\r\n,1\r\n,\r\n\"a, \"\"b\"\"\r\nc\",2\r\n", ["", 'a, "b"\r\nc']),
    ("rows.csv", b'text,id\n"a\n\nb",1\n\n"c\nd"\n', "rows.csv:6: 1 cells, but 2 columns"),
    ("quote.csv", TABLE + b'3,"c" d\n', "quote.csv:4: not a row of a table: ',' expected after"),
    ("open.csv", TABLE + b'3,"c\nd\ne\n', "open.csv:4: not a row of a table: unexpected end of data"),
    ("latin.csv", TABLE * 2000 + b"3,x\xe4\n", "latin.csv:6001: 'text' is not a text in UTF-8: character 2 is wrong"),
    ("other.csv", b"id,text\n\xe4,a\n", ["a"]), ("long.csv", b"text\n" + b"a" * 200000, ["a" * 200000]),
    ("wide.txt", "line\nab".encode("utf-16-le"), "wide.txt:1: not a text in UTF-8: unpack or convert it first"),
    ("latin.txt", b"a\nb\nc\xe4\n", "latin.txt:3: not a text in UTF-8"),
    ("x.parquet", b"PAR1\0\0", "x.parquet:1: not a text in UTF-8: unpack or convert it first; give a folder of Parquet or Arrow to --dataset"),
    ("x.jsonl.zst", b"\x28\xb5\x2f\xfd\0", "x.jsonl.zst:1: not a text in UTF-8: unpack"),
    ("na me \u00e4.csv", TABLE + b"3\n", "na me \u00e4.csv:4: 1 cells"), ("\udcff.csv", TABLE + b"3\n", "\udcff.csv:4: 1 cells"),
]


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
        self.refused("x.jsonl", good + b'{"text": "\xff"}\n', "x.jsonl:3:", "UTF-8")
        self.refused("x.jsonl", good + b'{"text": "\\ud83d"}\n', "x.jsonl:3:", "UTF-8")
        self.refused("x.jsonl.gz", gzip.compress(good)[:-6], "x.jsonl.gz: cannot be read after line")

    def test_tables_as_spreadsheets_write_them(self):
        content = codecs.BOM_UTF8 + b'id,text\r\n1,"a, ""b"""\r\n2,"two\nlines"\r\n3,\r\n'
        self.assertEqual(self.texts("x.csv", content), ['a, "b"', "two\nlines", ""])
        self.assertEqual(self.texts("x.tsv", b"id\ttext\n1\ta,b\n"), ["a,b"])

    def test_a_row_that_cannot_be_meant_is_named(self):
        self.refused("x.csv", b"id,text\n1,a\n2\n", "x.csv:3: 1 cells, but 2 columns")
        self.refused("x.csv", b'id,text\n1,"a\n', "x.csv:")
        self.refused("x.csv", b"id,content\n1,a\n", "x.csv:1: no column 'text'", "'id', 'content'")

    def test_a_text_is_a_document_without_its_mark(self):
        self.assertEqual(self.texts("x.txt", codecs.BOM_UTF8 + b"a\r\nb"), ["a\nb"])
        self.refused("x.txt", b"\xff\xfe", "x.txt:1: not a text in UTF-8")

    def test_each_kind_is_read_as_what_it_is_or_refused(self):
        sys.path.insert(0, str(RECIPES))
        from documents import documents_of

        for name, content, expected in DOCUMENTS:
            with self.subTest(name, expected=expected):
                path = self.folder / name
                path.write_bytes(content)
                try:
                    self.assertEqual(list(documents_of(str(path), "text")), expected)
                except SystemExit as error:
                    self.assertIn(f"{self.folder}/{expected}", str(error))


unittest.main()
