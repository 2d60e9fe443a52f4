#!/usr/bin/env python3
"""All tools and verbs keep the same habits: --help, --version, --json, exit codes, one line per error, progress only on a
terminal. A verb that is missing in CALLS fails the test, so a new one gets its line here.

Usage: habits_test.py BIN_DIR SOURCE_DIR
"""

import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv[1]).resolve()
SOURCE = pathlib.Path(sys.argv[2]).resolve()

# (tool, verb) -> a call that works in the world that make_world() makes. "{n}" is a new name for each call.
CALLS = {
    ("lockstep-pack", "create"): "text --out new-pack-{n}",
    ("lockstep-pack", "convert"): "pack --out converted-{n}",
    ("lockstep-pack", "ls"): "pack",
    ("lockstep-pack", "cat"): "pack 1.tokens",
    ("lockstep-pack", "verify"): "pack",
    ("lockstep-pack", "stats"): "pack",
    ("lockstep-pack", "index"): "pack",
    ("lockstep-plan", "make"): "pack --ranks 2 --cap 100 --out plan.jsonl",
    ("lockstep-plan", "stats"): "pack",
    ("lockstep-plan", "suggest"): "pack --ranks 2 --cap 100",
    ("lockstep-stage", "put"): "pack --cache cache-{n}",
    ("lockstep-stage", "prefetch"): "pack --cache node-{n}/shared --everyone",
    ("lockstep-stage", "ls"): "--cache cache",
    ("lockstep-stage", "verify"): "--cache cache",
    ("lockstep-stage", "status"): "--cache cache",
    ("lockstep-stage", "gc"): "--cache cache",
    ("lockstep-pin", "plan"): "--tasks 2",
    ("lockstep-pin", "run"): "--tasks 1 --local-rank 0 -- true",
    ("lockstep-report", ""): "records",
}
# Calls that fail: the input does not exist. The others have none, or a wrong option is their only failure.
FAILING = {
    ("lockstep-pack", "create"): "missing --out {n}",
    ("lockstep-pack", "convert"): "missing --out {n}",
    ("lockstep-pack", "ls"): "missing",
    ("lockstep-pack", "cat"): "missing key",
    ("lockstep-pack", "verify"): "missing",
    ("lockstep-pack", "stats"): "missing",
    ("lockstep-pack", "index"): "missing",
    ("lockstep-plan", "make"): "missing --ranks 2 --cap 100",
    ("lockstep-plan", "stats"): "missing",
    ("lockstep-plan", "suggest"): "missing --ranks 2 --cap 100",
    ("lockstep-stage", "put"): "missing --cache cache-{n}",
    ("lockstep-stage", "prefetch"): "missing --cache node-{n}/shared --everyone",
    ("lockstep-stage", "ls"): "--cache missing",
    ("lockstep-stage", "verify"): "--cache missing",
    ("lockstep-stage", "status"): "--cache missing",
    ("lockstep-stage", "gc"): "--cache missing",
    ("lockstep-report", ""): "missing",
}
# Verbs that may take long show their progress on a terminal.
WITH_PROGRESS = [
    ("lockstep-pack", "create"),
    ("lockstep-pack", "convert"),
    ("lockstep-stage", "put"),
    ("lockstep-stage", "prefetch"),
    ("lockstep-stage", "verify"),
]
# Tools that run until they are stopped, need a job, or whose answer depends on the machine: their own tests call them.
CALLED_ELSEWHERE = ["lockstep-exporter", "lockstep-top", "lockstep-doctor", "lockstep-run"]
# Verbs of lockstep-stage that only the plugin calls.
FOR_THE_PLUGIN = ["step", "rendezvous", "recover"]

number = 0
world = pathlib.Path()


def fill(text):
    global number
    number += 1
    return text.format(n=number).split()


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_", "SLURM_"))}
    return {**kept, "XDG_CACHE_HOME": str(world / "home"), "HOME": str(world / "home")}


def call(tool, *arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([BIN / tool, *arguments], cwd=world, env=environment(), text=True, stdin=subprocess.DEVNULL, timeout=60, **options)


def tools():
    return sorted(path.name for path in BIN.glob("lockstep-*") if os.access(path, os.X_OK))


def verbs(tool):
    """The verbs that --help shows; [""] for a tool without verbs."""
    listed = call(tool, "--help").stdout.partition("Subcommands:")[2]
    return re.findall(r"^  (\w+) ", listed, re.M) or [""]


def all_verbs():
    return [(tool, verb) for tool in tools() for verb in verbs(tool)]


def make_world():
    (world / "text").mkdir()
    (world / "home").mkdir()
    for i in range(1, 9):
        (world / "text" / f"{i}.tokens").write_bytes(bytes([i, 0] * i))
    call("lockstep-pack", "create", "text", "--out", "pack", "--token-bytes", "2").check_returncode()
    call("lockstep-stage", "put", "pack", "--cache", "cache").check_returncode()
    writer = "import lockstep\nfor _ in range(5):\n  lockstep.begin_step()\n  lockstep.end_step(tokens=5)\n"
    (world / "record").mkdir()
    (world / "records").mkdir()
    subprocess.run(
        [sys.executable, "-c", writer], check=True, cwd=world,
        env={**environment(), "PYTHONPATH": str(SOURCE / "exporters/python"), "LOCKSTEP_RECORD": str(world / "record"),
             "LOCKSTEP_REPORT_DIR": str(world / "records")},
    )  # fmt: skip


def each(cases):
    """Runs a test for each tool and verb of cases()."""

    def decorate(body):
        def test(self):
            for tool, verb in cases():
                with self.subTest(tool=tool, verb=verb):
                    body(self, tool, verb, [verb] if verb else [])

        return test

    return decorate


class Habits(unittest.TestCase):
    @each(lambda: [*all_verbs(), *((tool, "") for tool in tools())])
    def test_help_goes_to_standard_output(self, tool, verb, arguments):
        answer = call(tool, *arguments, "--help")
        self.assertEqual((0, ""), (answer.returncode, answer.stderr))
        self.assertIn("Usage:", answer.stdout)
        self.assertEqual(answer.stdout, call(tool, *arguments, "-h").stdout)

    @each(lambda: all_verbs())
    def test_help_all_has_every_option_of_every_verb(self, tool, verb, arguments):
        everything = call(tool, "--help-all").stdout
        for option in re.findall(r"^  (--[\w.-]+)", call(tool, *arguments, "--help").stdout, re.M):
            self.assertRegex(everything, rf"(?m)^ +{re.escape(option)}\b")

    @each(lambda: all_verbs())
    def test_version_is_the_tools(self, tool, verb, arguments):
        answer = call(tool, *arguments, "--version")
        self.assertEqual((0, ""), (answer.returncode, answer.stderr))
        self.assertRegex(answer.stdout, rf"^{tool} \d+\.\d+\.\d+\n$")

    @each(lambda: all_verbs())
    def test_wrong_option_exits_with_2_and_one_line(self, tool, verb, arguments):
        answer = call(tool, *arguments, "--no-such-option")
        self.assertEqual((2, ""), (answer.returncode, answer.stdout))
        self.assertRegex(answer.stderr, rf"^{tool}: [^\n]+\n$")

    def test_every_verb_has_a_call_here(self):
        self.assertEqual([], [case for case in all_verbs() if case not in CALLS and case[0] not in CALLED_ELSEWHERE and case[1] not in FOR_THE_PLUGIN])

    @each(lambda: CALLS)
    def test_calls_work_and_print_only_json_with_json(self, tool, verb, arguments):
        answer = call(tool, *arguments, *fill(CALLS[tool, verb]))
        self.assertEqual(0, answer.returncode, answer.stderr)
        self.assertNotIn("\r", answer.stdout + answer.stderr)
        self.assertNotRegex(answer.stdout, r"(?<![\d.])1 (shards|samples|images|files|objects|ranks|tasks|nodes|steps)\b")
        head, _, command = CALLS[tool, verb].partition(" -- ")
        answer = call(tool, *arguments, *fill(head), "--json", *(["--", *command.split()] if command else []))
        self.assertEqual(0, answer.returncode, answer.stderr)
        values = [json.loads(line) for line in answer.stdout.splitlines()]
        if verb != "run":  # prints the output of its command
            self.assertTrue(values)

    @each(lambda: FAILING)
    def test_failed_calls_exit_with_1_and_one_line(self, tool, verb, arguments):
        answer = call(tool, *arguments, *fill(FAILING[tool, verb]))
        self.assertEqual((1, ""), (answer.returncode, answer.stdout), answer.stderr)
        self.assertRegex(answer.stderr, rf"^{tool}: [^\n]+\n$")

    def test_plans_of_files_without_tokens_name_the_option_that_packs_tokens(self):
        call("lockstep-pack", "create", "text", "--out", "bytes").check_returncode()
        for source in "text", "text/1.tokens", "bytes":
            answer = call("lockstep-plan", "suggest", source, "--ranks", "2", "--cap", "100")
            self.assertEqual(1, answer.returncode)
            self.assertIn("lockstep-pack create", answer.stderr)
            self.assertIn("--token-bytes", answer.stderr)

    @each(lambda: [case for case in CALLS if case[1] != "run"])
    def test_output_that_cannot_be_written_exits_with_1(self, tool, verb, arguments):
        with open("/dev/full", "w") as full:
            answer = call(tool, *arguments, *fill(CALLS[tool, verb]), stdout=full)
        self.assertEqual(1, answer.returncode)
        self.assertIn("standard output", answer.stderr)

    @each(lambda: WITH_PROGRESS)
    def test_long_work_shows_its_progress_on_a_terminal(self, tool, verb, arguments):
        reader, terminal = pty.openpty()
        answer = call(tool, *arguments, *fill(CALLS[tool, verb]), stderr=terminal)
        os.close(terminal)
        with os.fdopen(reader, "rb") as shown:
            self.assertEqual(0, answer.returncode)
            self.assertIn(b"\r\033[K", shown.read1(65536))

    @each(lambda: all_verbs())
    def test_completion_names_every_verb_and_option(self, tool, verb, arguments):
        script = call(tool, "--completion").stdout
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        line = next(line for line in script.splitlines() if re.match(rf"    {verb or '[*]'}\) words=", line))
        for option in re.findall(r"^  (?:-\w,)?(--[\w.-]+)", call(tool, *arguments, "--help").stdout, re.M):
            self.assertIn(option, re.split(r"[ ']", line))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        world = pathlib.Path(folder)
        make_world()
        unittest.main(argv=sys.argv[:1])
