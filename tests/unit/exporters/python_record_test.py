#!/usr/bin/env python3
"""Records that exporters/python/lockstep.py writes are read by lockstep-report and lockstep-exporter.

  python_record_test.py build/release/bin
"""

import glob
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
MODULE = pathlib.Path(__file__).resolve().parents[3] / "exporters/python"

# Two steps of 100 ms and 40 ms on a clock of its own: the times must come out exactly.
TWO_STEPS = """
import lockstep
now = [10**9]
lockstep.time.monotonic_ns = lambda: now[0]
def work(ms): now[0] += ms * 10**6
def data():
    for batch in (3, 4):
        work(batch * 10 // 4)
        yield batch
for batch in lockstep.batches(data()):
    with lockstep.phase("forward"):
        work(10)
    with lockstep.phase("backward"):
        work(3 * batch)
        with lockstep.phase("comm_exposed"):
            work(2)
        work(2 * batch)
    work(1)
    lockstep.end_step(tokens=100, samples=batch, padding=7)
"""


class PythonRecord(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.records = self.folder / "records/1000/77.2"

    def environment(self, **variables):
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {**kept, "PYTHONPATH": str(MODULE), "PYTHONDONTWRITEBYTECODE": "1", "LOCKSTEP_RECORD": str(self.records),
                "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_LOCALID": "1", "SLURMD_NODENAME": "n2", **variables}

    def run_job(self, script, **variables):
        file = self.folder / "train.py"
        file.write_text(script)
        job = subprocess.run([sys.executable, file], env=self.environment(**variables), capture_output=True, text=True)
        self.assertEqual(job.returncode, 0, job.stderr)
        return job.stderr

    def start_job(self, script, **variables):
        """A job that goes on until standard input ends; returns when it has printed a line."""
        job = subprocess.Popen([sys.executable, "-c", script], env=self.environment(**variables), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (job.kill(), job.wait(), job.stdin.close(), job.stdout.close()))
        job.stdout.readline()
        return job

    def report(self, folder=None):
        output = subprocess.run([BIN / "lockstep-report", folder or self.records, "--json"], check=True, stdout=subprocess.PIPE)
        return json.loads(output.stdout)

    def test_the_report_shows_what_the_job_did(self):
        self.assertEqual(self.run_job(TWO_STEPS), "")
        run = self.report()
        self.assertEqual((run["job"], run["step"], run["size"], run["program"]), (77, 2, 4, "train.py"))
        self.assertEqual(run["state"], "finished")
        rank = run["ranks"][0]
        self.assertEqual((rank["rank"], rank["node"], rank["steps"]), (3, "n2", 2))
        self.assertEqual((rank["tokens"], rank["padding"]), (200, 14))
        # 7 + 10 + 15 + 2 + 1 and 10 + 10 + 20 + 2 + 1 milliseconds
        self.assertAlmostEqual(rank["step_ms"], (35 + 43) / 2)
        expected = {"data_wait": 8.5, "host_to_device": 0, "forward": 10, "backward": 17.5, "comm_exposed": 2, "optimizer": 0,
                    "checkpoint": 0, "other": 1}
        for phase, milliseconds in expected.items():
            self.assertAlmostEqual(rank["phases_ms"][phase], milliseconds, msg=phase)

    def test_the_report_shows_what_the_process_used(self):
        self.run_job("import lockstep\nlockstep.begin_step()\nkept = b'x' * 50_000_000\nlockstep.end_step()\n"
                     "sum(range(3_000_000))\nlockstep.end_step()\n")
        rank = self.report()["ranks"][0]
        self.assertEqual(rank["steps"], 2)
        self.assertGreater(rank["cpu_seconds"], 0.02)
        self.assertLess(rank["cpu_seconds"], 60)
        self.assertGreater(rank["memory_peak_bytes"], 50_000_000)
        self.assertLess(rank["memory_peak_bytes"], 1_000_000_000)
        self.assertGreater(rank["read_bytes"], 1000)
        self.assertGreater(rank["read_calls"], 0)

    def test_a_job_that_ends_by_an_exception_died(self):
        file = self.folder / "train.py"
        file.write_text(TWO_STEPS + "raise RuntimeError('no')")
        job = subprocess.run([sys.executable, file], env=self.environment(), capture_output=True)
        self.assertEqual(job.returncode, 1)
        run = self.report()
        self.assertEqual((run["state"], run["ranks"][0]["steps"]), ("died", 2))

    def test_without_slurm_ranks_of_different_parents_are_one_job(self):
        (self.folder / "train.py").write_text(TWO_STEPS)
        report = self.folder / "report"
        for rank in "01":
            environment = self.environment(LOCKSTEP_REPORT_DIR=str(report), RANK=rank, WORLD_SIZE="2", LOCAL_RANK="",
                                           MASTER_ADDR="n1", MASTER_PORT="29500")
            del environment["SLURM_JOB_ID"], environment["LOCKSTEP_RECORD"]
            subprocess.run(["sh", "-c", '"$0" train.py; true', sys.executable], cwd=self.folder, env=environment, check=True)
        run = self.report(report)
        self.assertEqual((len(run["ranks"]), run["notes"]), (2, []))

    def test_a_variable_that_is_not_a_number_is_named(self):
        for wrong in ("x", "-1", "99999999999", "9" * 5000, "²"):
            line = self.run_job(TWO_STEPS, RANK=wrong, WORLD_SIZE="2", LOCAL_RANK="0")
            self.assertIn(f"the environment variable RANK is not an integer in 0..2147483647: '{wrong[:80]}'\n", line)
            self.assertEqual(line.count("\n"), 1)
        self.assertIn("SLURM_JOB_ID is not", self.run_job(TWO_STEPS, SLURM_JOB_ID=str(2**64)))
        self.assertEqual(self.run_job(TWO_STEPS, SLURM_STEP_ID="²"), "")

    def test_a_comparison_writes_the_page_too(self):
        self.run_job(TWO_STEPS)
        page = self.folder / "page.html"
        subprocess.run([BIN / "lockstep-report", self.records, "--compare", self.records, "--out", page], check=True,
                       stdout=subprocess.DEVNULL)
        self.assertIn("<!doctype html>", page.read_text())
        refused = subprocess.run([BIN / "lockstep-report", self.records, "--out", ""], capture_output=True)
        self.assertEqual(refused.returncode, 2)

    def test_the_exporter_serves_its_histograms(self):
        job = self.start_job(TWO_STEPS + "print(flush=True)\ninput()")
        exporter = subprocess.Popen([BIN / "lockstep-exporter", "--records", self.folder / "records", "--listen", "127.0.0.1:0",
                                     "--json"], stdout=subprocess.PIPE, text=True)
        try:
            with urllib.request.urlopen(json.loads(exporter.stdout.readline())["url"]) as answer:
                page = answer.read().decode()
        finally:
            exporter.kill()
            exporter.wait()
            exporter.stdout.close()
        buckets = dict(re.findall(r'lockstep_step_seconds_bucket\{[^}]*rank="3"[^}]*le="([^"]*)"\} (\d+)', page))
        self.assertEqual((buckets["0.02"], buckets["0.05"], buckets["+Inf"]), ("0", "2", "2"))
        self.assertIn('program="-c"', page)

    def test_independent_programs_in_one_step_have_a_record_each(self):
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        self.start_job(TWO_STEPS + "print(flush=True)\ninput()", **alone)
        self.assertIn(f"another program records as rank 0 in {self.records}; this one's record is that of rank 1",
                      self.run_job(TWO_STEPS + "lockstep.end_step(tokens=5)", **alone))
        self.assertEqual(sorted(file.name for file in self.records.iterdir()), ["rank-000000.record", "rank-000001.record"])
        self.assertEqual([(rank["rank"], rank["steps"]) for rank in self.report()["ranks"]], [(0, 2), (1, 3)])
        # A program that has ended is replaced by the next one.
        self.assertEqual(self.run_job(TWO_STEPS, RANK="1", WORLD_SIZE="1", LOCAL_RANK="0"), "")
        self.assertEqual([rank["steps"] for rank in self.report()["ranks"]], [2, 2])

    def test_torchruns_variables_come_before_slurms(self):
        self.run_job(TWO_STEPS, RANK="5", WORLD_SIZE="8", LOCAL_RANK="0")
        run = self.report()
        self.assertEqual((run["ranks"][0]["rank"], run["size"]), (5, 8))

    def ranks_of(self, **variables):
        """Rank, size and local rank in the record of a job with these variables and Slurm's."""
        self.run_job(TWO_STEPS, **variables)
        file, = self.records.glob("*.record")
        content = file.read_bytes()
        file.unlink()
        return struct.unpack_from("=iii", content, 36)

    def test_mpiruns_variables_come_before_slurms(self):
        # In a job, mpirun's daemon is a task of srun, and its ranks on a node have the variables of that task.
        daemon = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
        self.assertEqual(self.ranks_of(**daemon, OMPI_COMM_WORLD_RANK="5", OMPI_COMM_WORLD_SIZE="8",
                                       OMPI_COMM_WORLD_LOCAL_RANK="2"), (5, 8, 2))
        self.assertEqual(self.ranks_of(**daemon, PMI_RANK="6", PMI_SIZE="8", MPI_LOCALRANKID="3"), (6, 8, 3))
        self.assertEqual(self.ranks_of(PMI_RANK="3", PMI_SIZE="4"), (3, 4, 1))  # srun --mpi=pmi2

    def test_without_phases_the_first_call_begins_the_first_step(self):
        self.run_job("import lockstep\nnow = [10**9]\nlockstep.time.monotonic_ns = lambda: now[0]\n"
                     "for tokens in (1, 2, 4):\n    now[0] += 50 * 10**6\n    lockstep.end_step(tokens=tokens)\n")
        rank = self.report()["ranks"][0]
        self.assertEqual((rank["steps"], rank["tokens"], rank["step_ms"]), (2, 6, 50))

    def test_a_snapshot_of_a_running_job_is_whole(self):
        job = self.start_job("import lockstep\nlockstep.begin_step()\nlockstep.end_step()\nprint(flush=True)\n"
                             "import threading; ended = []\n"
                             "threading.Thread(target=lambda: ended.append(input()), daemon=True).start()\n"
                             "while not ended:\n"
                             "    with lockstep.phase('forward'): pass\n"
                             "    lockstep.end_step(tokens=7)\n")
        steps = 0
        for _ in range(40):
            rank = self.report()["ranks"][0]
            steps = max(steps, rank["steps"])
            self.assertTrue(rank["alive"])
            self.assertEqual(rank["tokens"], 7 * (rank["steps"] - 1))
            self.assertAlmostEqual(sum(rank["phases_ms"].values()), rank["step_ms"], places=6)
        self.assertGreater(steps, 512, "the ring of steps was not overwritten")

    def test_a_killed_rank_leaves_its_last_step(self):
        job = self.start_job(TWO_STEPS + "print(flush=True)\ninput()")
        self.assertEqual(self.report()["state"], "running")
        job.send_signal(signal.SIGKILL)
        job.wait()
        run = self.report()
        self.assertEqual((run["state"], run["ranks"][0]["steps"]), ("died", 2))

    def test_a_forked_worker_neither_writes_nor_keeps_the_rank_alive(self):
        job = self.start_job(TWO_STEPS + "import os, time\nworker = os.fork()\nif not worker:\n"
                             "    with lockstep.phase('forward'): pass\n    lockstep.end_step(tokens=1)\n    time.sleep(600)\n"
                             "print(worker, flush=True)\ninput()")
        workers = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(workers), 1)
        self.addCleanup(os.kill, int(workers[0]), signal.SIGKILL)
        job.kill()
        job.wait()
        deadline = time.monotonic() + 20  # the worker may not have left the record yet
        while (run := self.report())["state"] != "died" and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual((run["state"], run["ranks"][0]["tokens"]), ("died", 200))

    def test_each_rank_leaves_a_copy_for_the_report(self):
        self.run_job(TWO_STEPS, LOCKSTEP_REPORT_DIR=str(self.folder / "report"))
        self.records.joinpath("staging.json").write_text('{"node":"n2","sources":[]}')
        self.run_job(TWO_STEPS, LOCKSTEP_REPORT_DIR=str(self.folder / "report"), RANK="0", WORLD_SIZE="4")
        run = self.report(self.folder / "report")
        self.assertEqual([rank["rank"] for rank in run["ranks"]], [0, 3])
        self.assertTrue(all(rank["finished"] for rank in run["ranks"]))
        self.assertEqual([staging["node"] for staging in run["staging"]], ["n2"])

    def test_without_a_record_folder_the_copy_is_enough(self):
        self.assertEqual(self.run_job(TWO_STEPS, LOCKSTEP_RECORD="", LOCKSTEP_REPORT_DIR=str(self.folder / "report")), "")
        self.assertEqual(self.report(self.folder / "report")["ranks"][0]["steps"], 2)

    # What a program does when it is ended.
    WAITS = {
        "in Python": "while True: pass\n",
        "in a system call": "input()\n",
        # As in a collective: no handler of Python runs meanwhile.
        "in C": "import ctypes\nlock = ctypes.create_string_buffer(64)\nctypes.CDLL(None).pthread_mutex_lock(lock)\n"
                "ctypes.CDLL(None).pthread_mutex_lock(lock)\n",
    }

    def end_by(self, number, script, waits="input()", **variables):
        """Sends a signal to a job that has made two steps; returns its exit code and what its report says."""
        report = self.folder / "report"
        job = self.start_job(script + "print(flush=True)\n" + waits, LOCKSTEP_REPORT_DIR=str(report), **variables)
        job.send_signal(number)
        code = job.wait(60)
        return code, self.report(report)

    def test_a_signal_ends_the_job_with_a_whole_record(self):
        for wait, until in self.WAITS.items():
            for number in (signal.SIGTERM, signal.SIGHUP):
                for folder in (str(self.records), ""):
                    with self.subTest(wait, signal=number, folder=folder):
                        code, run = self.end_by(number, TWO_STEPS, until, LOCKSTEP_RECORD=folder)
                        self.assertEqual(code, -number)
                        self.assertEqual((run["state"], run["ranks"][0]["steps"], run["ranks"][0]["tokens"]), ("died", 2, 200))

    def test_ctrl_c_ends_the_job_with_a_whole_record(self):
        code, run = self.end_by(signal.SIGINT, TWO_STEPS)
        self.assertEqual((code, run["state"], run["ranks"][0]["steps"]), (-signal.SIGINT, "died", 2))
        # Many programs let it end them at once.
        code, run = self.end_by(signal.SIGINT, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n" + TWO_STEPS)
        self.assertEqual((code, run["state"], run["ranks"][0]["steps"]), (-signal.SIGINT, "died", 2))

    def test_a_handler_of_the_program_still_runs(self):
        handler = "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda number, frame: {})\n"
        for code, script in ((7, handler.format("sys.exit(7)") + TWO_STEPS), (7, TWO_STEPS + handler.format("sys.exit(7)")),
                             (8, handler.format("os._exit(8)") + TWO_STEPS)):
            ended, run = self.end_by(signal.SIGTERM, script)
            self.assertEqual((ended, run["ranks"][0]["steps"]), (code, 2))

    def test_a_handler_may_let_the_job_go_on(self):
        code, run = self.end_by(
            signal.SIGTERM, "import signal\nseen = []\nsignal.signal(signal.SIGTERM, lambda *_: seen.append(1))\n" + TWO_STEPS,
            "while not seen: pass\nlockstep.end_step()\n")
        self.assertEqual((code, run["state"], run["ranks"][0]["steps"]), (0, "finished", 3))

    def test_an_ignored_signal_stays_ignored(self):
        job = self.start_job("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TWO_STEPS +
                             "print(flush=True)\ninput()\n", LOCKSTEP_REPORT_DIR=str(self.folder / "report"))
        job.send_signal(signal.SIGTERM)
        job.stdin.write("\n")
        job.stdin.flush()
        self.assertEqual(job.wait(60), 0)

    def test_a_handler_of_c_code_is_not_replaced(self):
        code, run = self.end_by(signal.SIGTERM, "import faulthandler, signal\nfaulthandler.register(signal.SIGTERM, file=open("
                                "'/dev/null', 'w'), chain=False)\n" + TWO_STEPS, "import time\ntime.sleep(1)\nlockstep.end_step()\n")
        self.assertEqual((code, run["state"], run["ranks"][0]["steps"]), (0, "finished", 3))

    def test_a_signal_to_a_forked_worker_ends_only_the_worker(self):
        report = self.folder / "report"
        self.run_job(TWO_STEPS + "import os, signal\nworker = os.fork()\nif not worker: signal.pause()\n"
                     "os.kill(worker, signal.SIGTERM)\nassert os.waitpid(worker, 0)[1] == signal.SIGTERM\nlockstep.end_step()\n",
                     LOCKSTEP_REPORT_DIR=str(report))
        run = self.report(report)
        self.assertEqual((run["state"], run["ranks"][0]["steps"]), ("finished", 3))

    def test_outside_the_main_thread_it_records_too(self):
        report = self.folder / "report"
        self.run_job("import threading\ndef train():\n" + "".join(f"    {line}\n" for line in TWO_STEPS.splitlines()) +
                     "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\n", LOCKSTEP_REPORT_DIR=str(report))
        self.assertEqual(self.report(report)["ranks"][0]["steps"], 2)

    def test_a_program_may_close_all_descriptors(self):
        report = self.folder / "report"
        said = self.run_job(TWO_STEPS + "import os, time\nos.closerange(3, 256)\ntime.sleep(0.3)\nlockstep.end_step()\n", LOCKSTEP_RECORD="",
                            LOCKSTEP_REPORT_DIR=str(report))
        self.assertEqual((said, self.report(report)["ranks"][0]["steps"]), ("", 3))

    def test_a_process_that_calls_exit_at_once_leaves_a_readable_record(self):
        for folder in (str(self.records), ""):
            report = self.folder / "report"
            self.run_job(TWO_STEPS + "import os\nos._exit(0)\n", LOCKSTEP_RECORD=folder, LOCKSTEP_REPORT_DIR=str(report))
            run = self.report(self.records if folder else report)
            self.assertEqual((run["state"], run["ranks"][0]["steps"]), ("died", 2 if folder else 1))

    def test_names_may_have_any_bytes_in_any_locale(self):
        # The kernel cuts a process's name after 15 bytes, also within a character.
        renamed = "import ctypes\nctypes.CDLL(None).prctl(15, '\u8a13\u7df4\u4e2d\u306e\u4e8b7'.encode())\n" + TWO_STEPS
        file = os.fsencode(self.folder) + b"/tr\xe4n.py"
        pathlib.Path(os.fsdecode(file)).write_text(renamed, encoding="utf-8")
        for locale in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
            with self.subTest(locale):
                job = subprocess.run([sys.executable, file], env=self.environment(**locale, SLURMD_NODENAME="n\udce4"), capture_output=True)
                self.assertEqual((job.returncode, job.stderr), (0, b""))
                run = self.report()
                self.assertEqual((run["program"], run["ranks"][0]["node"], run["ranks"][0]["steps"]), ("tr?n.py", "n?", 2))
        code, run = self.end_by(signal.SIGTERM, renamed)
        self.assertEqual((code, run["ranks"][0]["steps"]), (-signal.SIGTERM, 2))

    def test_python_that_lacks_the_locks_name(self):  # as conda's, made for an older glibc
        self.assertEqual(self.run_job("import fcntl\ndel fcntl.F_OFD_SETLK\n" + TWO_STEPS), "")
        self.assertEqual(self.report()["ranks"][0]["steps"], 2)

    def test_the_report_folder_is_that_of_the_start(self):
        file = self.folder / "train.py"
        file.write_text(TWO_STEPS + f"import os\nos.chdir({str(MODULE)!r})\n")
        subprocess.run([sys.executable, file], env=self.environment(LOCKSTEP_REPORT_DIR="report"), cwd=self.folder, check=True)
        self.assertEqual(self.report(self.folder / "report")["ranks"][0]["steps"], 2)
        self.assertFalse((MODULE / "report").exists())

    def test_an_exception_between_any_two_lines_does_not_cost_the_copy(self):
        # As Ctrl-C, or a handler that calls sys.exit(), at each line that publishes a step.
        report = self.folder / "report"
        script = TWO_STEPS + """
import sys
def interrupt(frame, event, argument, left=[LINE]):
    if frame.f_code.co_name in ("_publish", "_fence"):
        left[0] -= event == "line"
        if event == "line" and left[0] == 0: raise KeyboardInterrupt
    return interrupt
sys.settrace(interrupt)
try:
    lockstep.end_step()
except KeyboardInterrupt:
    pass
finally:
    sys.settrace(None)
print(interrupt.__defaults__[0][0])
"""
        file, line, left = self.folder / "train.py", 0, 0
        while left <= 0:
            line += 1
            file.write_text(script.replace("LINE", str(line)))
            job = subprocess.run([sys.executable, file], env=self.environment(LOCKSTEP_REPORT_DIR=str(report)), capture_output=True, text=True)
            self.assertEqual((job.returncode, job.stderr), (0, ""), f"line {line}")
            run = self.report(report)
            self.assertEqual(run["state"], "finished", f"line {line}")
            left = int(job.stdout)
        self.assertGreater(line, 8)

    def test_workers_of_a_loader_that_are_not_forked_record_nothing(self):
        worker = "import sys, types\ndata = sys.modules['torch.utils.data'] = types.ModuleType('torch.utils.data')\n"
        self.run_job(worker + "data.get_worker_info = lambda: 'worker 0'\n" + TWO_STEPS)
        self.assertFalse(self.records.exists())
        self.run_job(worker + "data.get_worker_info = lambda: None\n" + TWO_STEPS)
        self.assertEqual(self.report()["ranks"][0]["steps"], 2)

    def test_ranks_that_multiprocessing_starts_leave_a_copy(self):
        script = f"""
import multiprocessing, os, sys
def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="4", LOCAL_RANK=str(rank))
    exec({TWO_STEPS!r}, {{}})
    if rank == 1: raise RuntimeError("no")
    if rank == 2: sys.exit(1)
    if rank == 3: sys.exit(0)
if __name__ == "__main__":
    for kind in sys.argv[1:]:
        ranks = [multiprocessing.get_context(kind).Process(target=train, args=(rank,)) for rank in range(4)]
        for rank in ranks: rank.start()
        for rank in ranks: rank.join()
"""
        file = self.folder / "train.py"
        file.write_text(script)
        for kind in ("fork", "spawn", "forkserver"):
            with self.subTest(kind):
                report = self.folder / kind
                subprocess.run([sys.executable, file, kind], env=self.environment(LOCKSTEP_REPORT_DIR=str(report)), check=True,
                               stderr=subprocess.DEVNULL)
                ranks = self.report(report)["ranks"]
                unknown = sys.version_info >= (3, 13)  # multiprocessing no longer says how the process ended
                self.assertEqual([(rank["rank"], rank["steps"], rank["finished"]) for rank in ranks],
                                 [(0, 2, True), (1, 2, unknown), (2, 2, unknown), (3, 2, True)])

    def test_standard_error_may_be_closed_or_replaced(self):
        wrong = "with lockstep.phase('foward'): pass\nlockstep.end_step(tokens=-1)\n"
        for stderr in ("sys.stderr.close()", "sys.stderr = None", "sys.stderr = Tee()"):
            with self.subTest(stderr):
                file = self.folder / "train.py"
                file.write_text("import sys\nclass Tee:\n    def write(self, text): raise RuntimeError('reentrant call')\n"
                                f"    def flush(self): pass\n{stderr}\n" + TWO_STEPS + wrong)
                job = subprocess.run([sys.executable, file], env=self.environment(), capture_output=True, text=True)
                self.assertEqual((job.returncode, job.stdout), (0, ""))
                self.assertEqual(self.report()["ranks"][0]["steps"], 3)

    def test_one_line_says_why_nothing_is_recorded(self):
        line = self.run_job(TWO_STEPS, LOCKSTEP_RECORD="", RANK="0", WORLD_SIZE="4")
        self.assertRegex(line, r"^lockstep: step times are not recorded.*--metrics=on.*\n$")
        self.assertEqual(self.run_job(TWO_STEPS, LOCKSTEP_RECORD=""), "")  # rank 3: once per job
        self.assertEqual(self.run_job(TWO_STEPS, LOCKSTEP_METRICS="off"), "")
        line = self.run_job(TWO_STEPS, LOCKSTEP_METRICS="maybe")
        self.assertRegex(line, r"^lockstep: rank 3 on .* cannot record its step times: LOCKSTEP_METRICS='maybe' must be on or off\n$")
        self.assertFalse(self.records.exists())
        (self.folder / "file").touch()
        line = self.run_job(TWO_STEPS, LOCKSTEP_RECORD=str(self.folder / "file/records"))
        self.assertRegex(line, r"^lockstep: rank 3 on .* cannot record its step times in .*/file/records: .*\n$")
        line = self.run_job(TWO_STEPS, LOCKSTEP_REPORT_DIR=str(self.folder / "file/report"))
        self.assertRegex(line, r"^lockstep: rank 3 on n2 cannot copy its record to LOCKSTEP_REPORT_DIR: .*\n$")
        line = self.run_job(TWO_STEPS, LOCKSTEP_REPORT_DIR=str(self.folder / "file/report"), SLURM_LOCALID="0")
        self.assertRegex(line, "^lockstep: rank 3 on n2 will not be able to copy its record")

    def test_a_full_file_system_is_one_line(self):
        full = self.folder / "full"
        full.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "full", full], capture_output=True).returncode:
            self.skipTest("needs root")
        self.addCleanup(subprocess.run, ["umount", full])
        line = self.run_job(TWO_STEPS, LOCKSTEP_RECORD=str(full))
        self.assertRegex(line, r"^lockstep: rank 3 on .* No space left on device: check .*\n$")
        self.assertEqual(glob.glob(str(full / ".*")), [])

    def test_wrong_calls_print_a_line_and_do_not_end_the_job(self):
        lines = self.run_job("import lockstep\nlockstep.begin_step()\nfor _ in range(3):\n    with lockstep.phase('foward'): pass\n"
                             "    lockstep.end_step(tokens=-1, samples='many')\n").splitlines()
        self.assertEqual(len(lines), 3, lines)
        self.assertRegex(lines[0], r"^lockstep: phase\('foward'\) counts as 'other': use one of data_wait, ")
        self.assertRegex(lines[1], r"^lockstep: end_step\(tokens=-1\) counts as 0")
        rank = self.report()["ranks"][0]
        self.assertEqual((rank["steps"], rank["tokens"]), (3, 0))
        tensor = self.run_job("import lockstep\nclass Tensor:\n    def __int__(self): raise RuntimeError('2 elements')\n"
                              "    def __repr__(self): return 'tensor([1,\\n  2])' + 'x' * 999\nlockstep.end_step(tokens=Tensor())\n")
        self.assertRegex(tensor, r"^lockstep: end_step\(tokens=tensor\(\[1, 2\]\)x{66}\) counts as 0: .*\n$")
        many = self.run_job("import lockstep\nfor i in range(50): lockstep.phase(f'phase{i}')\n")
        self.assertEqual(len(many.splitlines()), 8)

    def test_the_start_of_a_loaders_workers_is_data_wait(self):
        self.run_job("import lockstep\nnow = [10**9]\nlockstep.time.monotonic_ns = lambda: now[0]\n"
                     "class Loader:\n    def __len__(self): return 2\n"
                     "    def __iter__(self):\n        now[0] += 70 * 10**6\n        return iter([1, 2])\n"
                     "batches = lockstep.batches(Loader())\nassert len(batches) == 2\n"
                     "for batch in batches:\n    now[0] += 10 * 10**6\n    lockstep.end_step(tokens=1)\n")
        rank = self.report()["ranks"][0]
        self.assertEqual((rank["steps"], rank["phases_ms"]["data_wait"], rank["phases_ms"]["other"]), (2, 35, 10))

    def test_the_advice_is_for_python(self):
        self.run_job("import lockstep\nnow = [10**9]\nlockstep.time.monotonic_ns = lambda: now[0]\nlockstep.begin_step()\n"
                     "for _ in range(8):\n    now[0] += 100 * 10**6\n    lockstep.end_step(tokens=5)\n")
        remedies = {rule["rule"]: rule["remedy"] for rule in self.report()["rules"]}
        self.assertRegex(remedies["no-phase"], r'^Loop over lockstep.batches\(loader\), .*\(with lockstep.phase\("optimizer"\)')

    def test_reads_count_from_the_first_call_on(self):
        self.run_job("for _ in range(3000): open('/proc/self/stat').read()\nimport lockstep\nlockstep.begin_step()\n"
                     "lockstep.end_step()\n")
        self.assertLess(self.report()["ranks"][0]["read_calls"], 1000)

    def test_the_version_is_that_of_the_tools(self):
        version = subprocess.run([BIN / "lockstep-report", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.run_job(f"import lockstep\nassert lockstep.__version__ in {version!r}.split(), lockstep.__version__\n")


if __name__ == "__main__":
    unittest.main()
