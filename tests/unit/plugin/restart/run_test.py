#!/usr/bin/env python3
"""lockstep-run beside commands of Slurm that answer strangely or not at all. cluster.restart has a real Slurm.

Usage: run_test.py build/release/bin/lockstep-run
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

RUN = pathlib.Path(sys.argv.pop(1)).resolve()
KILLED = "echo 'srun: error: n1: task 0: Killed' >&2; "
# Srun: $FIRST is its first start, and what it does is in `said`. Later starts succeed.
COMMANDS = {
    "srun": 'case "$*" in *lockstep-report*) echo "$*" >asked; eval "$OWN_TIMES"; exit ;; esac\n'
            'n=$(cat starts 2>/dev/null || echo 0); echo $((n + 1)) >starts; echo "$LOCKSTEP_SIGNAL" >signal; [ "$n" = 0 ] || exit 0; eval "$FIRST"',
    "squeue": 'case "$*" in *" -s "*) eval "$STEPS" ;; *) echo "7 RUNNING $NODES" ;; esac',
    "lockstep-report": 'echo "$PWD $LOCKSTEP_REPORT_DIR $*" >reported; eval "$REPORTED"',
    "scancel": 'echo "$*" >>scancelled',
    "scontrol": 'case "$*" in *hostnames*) for node in $NODES; do echo $node; done ;; *node*) eval "$SHOWN" ;; esac',
}


class Restarts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        for name, script in COMMANDS.items():
            (self.path / name).write_text(f"#!/bin/bash\n{script}\n")
            (self.path / name).chmod(0o755)

    def text(self, name):
        file = self.path / name
        return file.read_text().strip() if file.exists() else None

    def run_job(self, *options, stderr=subprocess.PIPE, path=None, **variables):
        """The exit code and the messages of lockstep-run, on nodes n1 and n2 with a task each."""
        job = {"PATH": path or f"{self.path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "NODES": "n1 n2", "SLURM_NTASKS": "2",
               "FIRST": "exit 0", "STEPS": "exit 1", "SHOWN": "exit 1", "OWN_TIMES": "", "REPORTED": ""}
        done = subprocess.run([sys.executable, RUN, "--pause", "0", *options, "./train"], env=job | variables, cwd=self.path,
                              stdout=subprocess.DEVNULL, stderr=stderr, timeout=60, check=False)
        return done.returncode, (done.stderr or b"").decode(errors="replace")

    def test_kills_the_step_through_srun_if_slurmctld_does_not_answer(self):
        first = KILLED + "trap 'echo yes >terminated; exit 137' TERM; while :; do sleep 0.05; done"
        code, messages = self.run_job(FIRST=first)
        self.assertEqual(code, 0, messages)
        self.assertEqual(self.text("terminated"), "yes", "the other ranks go on beside those of the next start")

    def test_does_not_kill_the_job_script_if_it_does_not_know_the_earlier_steps(self):
        first = KILLED + "until [ -e scancelled ]; do sleep 0.05; done; exit 137"
        steps = "[ -e asked_before ] || { touch asked_before; exit 1; }; printf '7.batch batch\\n7.0 mine\\n'"
        code, messages = self.run_job("--job-name=mine", FIRST=first, STEPS=steps)
        self.assertEqual(code, 0, messages)
        self.assertEqual(self.text("scancelled"), "--signal=KILL 7.0")

    def test_reads_steps_without_a_name_or_with_any_bytes(self):
        code, messages = self.run_job(STEPS="printf '7.batch batch\\n7.3 \\n7.4 caf\\351\\n'")
        self.assertEqual(code, 0, messages)

    def test_keeps_little_of_a_line_that_does_not_end(self):
        first = "head -c 100000000 /dev/zero >&2; " + KILLED + "exit 137"
        code, _ = self.run_job(FIRST=first, stderr=subprocess.DEVNULL)
        self.assertEqual(code, 0)
        self.assertEqual(self.text("starts"), "2")

    def test_does_not_go_on_with_fewer_nodes_of_a_job_with_uneven_ones(self):
        with socket.create_server(("127.0.0.1", 0)) as slurmd:
            shown = f"echo NodeName=n1 NodeAddr=127.0.0.1 Port={slurmd.getsockname()[1]} State=ALLOCATED; echo; echo Node n2 not found"
            code, messages = self.run_job(FIRST="echo 'srun: error: Node failure on n2' >&2; exit 1", SHOWN=shown, SLURM_NTASKS="4",
                                          SLURM_TASKS_PER_NODE="3,1")
        self.assertEqual((code, self.text("starts")), (1, "1"), messages)
        self.assertIn("not started again: the nodes have different numbers of tasks", messages)

    def test_measures_the_nodes_that_answer_and_ignores_lines_of_a_task_prolog(self):
        with socket.create_server(("127.0.0.1", 0)) as slurmd:
            node = f"NodeAddr=127.0.0.1 Port={slurmd.getsockname()[1]} State=ALLOCATED"
            shown = f"for n in n1 n2 n3; do echo NodeName=$n {node}; done; echo NodeName=n4 NodeAddr=127.0.0.1 Port=1 State=ALLOCATED"
            code, messages = self.run_job("--exclude-slow", "1.3", FIRST=KILLED + "exit 137", SHOWN=shown, NODES="n1 n2 n3 n4",
                                          SLURM_NTASKS="4", OWN_TIMES="printf 'load 99 90\\nfree 99 90\\nn1 60 10\\nn2 60 10\\nn3 60 20\\n'")
        self.assertEqual(code, 0, messages)
        self.assertIn("--nodelist=n1,n2,n3 ", self.text("asked"))
        self.assertIn("leaving out n3: its own work takes 20 ms a step", messages)
        self.assertIn(", on n1,n2, without n3,n4", messages)

    def test_goes_on_when_the_disks_are_full(self):
        (self.path / "restarts-7.jsonl").symlink_to("/dev/full")
        code, messages = self.run_job(LOCKSTEP_REPORT_DIR=str(self.path))
        self.assertEqual(code, 0, messages)
        self.assertIn(f"cannot write {self.path}/restarts-7.jsonl: No space left on device", messages)
        with open("/dev/full", "w") as full:
            self.assertEqual(self.run_job(FIRST=KILLED + "exit 137", stderr=full)[0], 0)

    def test_the_next_start_gets_a_signal_that_came_between_two(self):
        code, messages = self.run_job(FIRST=KILLED + "exit 137", SHOWN='kill -USR1 "$PPID"; exit 1')
        self.assertEqual((code, self.text("starts"), self.text("signal")), (0, "2", "10"), messages)

    def test_the_next_start_gets_a_signal_that_ended_the_ranks_while_they_started(self):
        first = "trap 'echo \"srun: error: n1: task 0: User defined signal 1\" >&2; exit 138' USR1; kill -USR1 $PPID; while :; do sleep 0.05; done"
        code, messages = self.run_job(FIRST=first)
        self.assertEqual((code, self.text("starts"), self.text("signal")), (0, "2", "10"), messages)

    def test_no_start_gets_a_signal_that_did_not_come(self):
        code, messages = self.run_job(FIRST=KILLED + "exit 137", SHOWN='kill -CONT "$PPID"; exit 1')
        self.assertEqual((code, self.text("starts"), self.text("signal")), (0, "2", ""), messages)

    def ends(self):
        return [line for line in map(json.loads, self.text("restarts-7.jsonl").splitlines()) if "end" in line]

    def test_logs_the_steps_that_the_ranks_of_a_start_did(self):
        report = """printf '{"started_unix":%s,"ranks":[{"steps":41},{"steps":42}]}' $(($(date +%s) + 1))"""
        folder = str(self.path)
        code, messages = self.run_job(FIRST=KILLED + "exit 137", REPORTED=report, LOCKSTEP_REPORT_DIR=folder)
        self.assertEqual(code, 0, messages)
        self.assertEqual([line["steps"] for line in self.ends()], [42, None], "nothing is lost of a start that succeeded")

    def test_logs_no_steps_of_an_earlier_start_or_without_a_report(self):
        earlier = """printf '{"started_unix":%s,"ranks":[{"steps":42}]}' $(($(date +%s) - 1))"""
        for report in (earlier, "echo '{'", "exit 1"):
            (self.path / "restarts-7.jsonl").write_text("")
            (self.path / "starts").unlink(missing_ok=True)
            code, messages = self.run_job(FIRST=KILLED + "exit 137", REPORTED=report, LOCKSTEP_REPORT_DIR=str(self.path))
            self.assertEqual((code, [line["steps"] for line in self.ends()]), (0, [None, None]), messages)

    def test_says_that_srun_cannot_be_started(self):
        (self.path / "srun").unlink()
        code, messages = self.run_job(path=str(self.path))
        self.assertEqual((code, messages), (2, "lockstep-run: cannot start srun: No such file or directory\n"))


if __name__ == "__main__":
    unittest.main()
