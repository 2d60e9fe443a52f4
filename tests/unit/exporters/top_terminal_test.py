#!/usr/bin/env python3
"""lockstep-top on a real (pseudo) terminal and in a pipe, with the records of a simulated job.

  top_terminal_test.py build/release/bin
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
ENTER, LEAVE, HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"
DEADLINE = 60


class Terminal:
    """A terminal of a given size, and a program that it controls."""

    def __init__(self, columns, rows, command):
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.settings = termios.tcgetattr(self.slave)
        self.text = ""
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def resize(self, columns, rows):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys)

    def read(self):
        while select.select([self.master], [], [], 0.05)[0]:
            self.text += os.read(self.master, 65536).decode()

    def wait_for(self, what, condition):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            self.read()
            result = condition()
            if result:
                return result
        raise AssertionError(f"timed out waiting until {what}: {self.text[-2000:]!r}")

    def frames(self):
        """The lines of each whole screen, without the colours."""
        frames = re.findall(re.escape(HOME) + r"(.*?)\x1b\[J", self.text, re.S)
        return [re.sub(r"\x1b\[[0-9;]*[mK]", "", frame).replace("\r", "").split("\n") for frame in frames]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def steps_of(frame):
    steps = re.search(r"· (\d+) steps?\b", frame[0])
    return int(steps[1]) if steps else 0  # there is no record yet


class Top(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name) / "42.0"

    def job(self, *options):
        job = subprocess.Popen([BIN / "simulated_job", self.folder, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(lambda: (job.kill(), job.wait(), job.stdin.close(), job.stdout.close()))
        return job

    def ended_job(self):
        """Ranks that live and have done 20 steps."""
        self.assertEqual(self.job("--steps", "20", "--step-ms", "5", "--slow", "1", "--hold").stdout.readline(), b"done\n")

    def running_job(self):
        self.job("--steps", "1000000", "--step-ms", "5")
        end = time.monotonic() + DEADLINE
        while len(list(self.folder.glob("rank-*.record"))) < 4 and time.monotonic() < end:
            time.sleep(0.02)

    def terminal(self, columns=150, rows=24):
        terminal = Terminal(columns, rows, [BIN / "lockstep-top", self.folder])
        self.addCleanup(terminal.close)
        return terminal

    def top(self, *options):
        return subprocess.run([BIN / "lockstep-top", *options], capture_output=True, text=True, timeout=DEADLINE)

    def test_its_numbers_are_those_of_the_report_for_a_run_that_is_not_longer_than_its_window(self):
        self.ended_job()
        top = json.loads(self.top(self.folder, "--once", "--json").stdout)
        report = json.loads(subprocess.run([BIN / "lockstep-report", self.folder, "--json"], capture_output=True).stdout)
        self.assertEqual((top["job"], top["program"], top["size"], top["state"]), (42, "simulated_job", 4, "running"))
        self.assertEqual(len(top["ranks"]), 4)
        for mine, other in zip(top["ranks"], report["ranks"]):
            self.assertEqual((mine["rank"], mine["node"], mine["steps"]), (other["rank"], other["node"], 20))
            for key in ("step_ms", "own_ms", "comm_wait_ms", "tokens_per_second"):
                self.assertAlmostEqual(mine[key], other[key], places=6, msg=key)
            for phase, share in mine["phase_shares"].items():
                self.assertAlmostEqual(share * other["step_ms"], other["phases_ms"][phase], places=6, msg=phase)
        self.assertEqual(top["ranks"][0]["late_rank"], 1)

    def test_one_table_in_a_pipe(self):
        self.ended_job()
        for options in (["--once"], []):
            done = self.top(self.folder, *options)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            lines = done.stdout.splitlines()
            self.assertEqual(lines[0], "simulated_job · job 42.0 · 4 ranks · 20 steps · running")
            self.assertRegex(lines[1], r"^[\d.]+ [kM] tokens/s · rank 1 works longest, \+\d+ % over the median$")
            self.assertEqual([line.split()[0] for line in lines[3:8]], ["rank", "0", "1", "2", "3"])
            self.assertNotIn("\x1b", done.stdout)

    def test_wrong_calls_are_one_line(self):
        done = self.top("987654321", "--once")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("job 987654321 has no records on this node", done.stderr)
        self.assertEqual(self.top().returncode, 2)

    def test_damaged_records_are_left_out_and_said_once(self):
        self.ended_job()
        os.truncate(self.folder / "rank-000002.record", 5000)
        done = self.top(self.folder, "--once")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.count("cannot be read"), 1, done.stdout)
        self.assertIn("1 of the files cannot be read and was left out", done.stdout)

    def test_the_screen_follows_the_job_and_q_gives_the_terminal_back(self):
        self.running_job()
        terminal = self.terminal()
        first = terminal.wait_for("there is a screen", lambda: terminal.frames())[0]
        self.assertTrue(terminal.text.startswith(ENTER + HOME))
        terminal.wait_for("steps go on", lambda: steps_of(terminal.frames()[-1]) > steps_of(first) + 10)
        self.assertNotEqual(termios.tcgetattr(terminal.slave), terminal.settings)
        terminal.press(b"x")  # any other key changes nothing
        terminal.press(b"q")
        self.assertEqual(terminal.process.wait(timeout=DEADLINE), 0)
        terminal.wait_for("the user's screen is back", lambda: terminal.text.endswith(LEAVE))
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.settings)

    def test_a_resize_is_followed_at_once(self):
        self.running_job()
        terminal = self.terminal(columns=150, rows=24)
        wide = terminal.wait_for("there is a screen with steps",
                                 lambda: [frame for frame in terminal.frames() if steps_of(frame) > 0])[-1]
        self.assertGreater(max(map(len, wide)), 90)
        terminal.resize(70, 7)
        small = terminal.wait_for("the table fits", lambda: [frame for frame in terminal.frames() if len(frame) <= 7])[-1]
        self.assertLessEqual(max(map(len, small)), 70)
        self.assertIn("more ranks", small[-1])

    def test_signals_that_end_it_give_the_terminal_back(self):
        self.ended_job()
        for how in (b"\x03", b"\x1c", signal.SIGTERM):
            with self.subTest(how):
                terminal = self.terminal()
                terminal.wait_for("there is a screen", lambda: terminal.frames())
                if isinstance(how, bytes):
                    terminal.press(how)
                else:
                    terminal.process.send_signal(how)
                self.assertEqual(terminal.process.wait(timeout=DEADLINE), 0)
                terminal.wait_for("the user's screen is back", lambda: LEAVE in terminal.text)
                self.assertEqual(termios.tcgetattr(terminal.slave), terminal.settings)

    def test_while_it_is_stopped_the_terminal_is_the_users(self):
        self.ended_job()
        terminal = self.terminal()
        terminal.wait_for("there is a screen", lambda: terminal.frames())
        terminal.process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status))
        terminal.wait_for("the user's screen is back", lambda: terminal.text.endswith(LEAVE))
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.settings)
        before = len(terminal.frames())
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for("it goes on", lambda: len(terminal.frames()) > before)
        terminal.press(b"q")
        self.assertEqual(terminal.process.wait(timeout=DEADLINE), 0)

    def test_when_the_records_are_removed_the_last_table_stays(self):
        self.ended_job()
        terminal = self.terminal()
        terminal.wait_for("there is a screen", lambda: terminal.frames())
        self.folder.rename(self.folder.with_name("gone"))
        self.assertEqual(terminal.process.wait(timeout=DEADLINE), 0)
        terminal.wait_for("the last table is there", lambda: "the records are gone" in terminal.text)
        self.assertIn("simulated_job · job 42.0", terminal.text.split(LEAVE)[-1])


if __name__ == "__main__":
    unittest.main()
