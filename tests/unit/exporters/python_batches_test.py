#!/usr/bin/env python3
"""lockstep.BatchSampler and lockstep.Pack without PyTorch: plans of lockstep-plan, packs of lockstep-pack.

  python_batches_test.py build/release/bin
"""

import contextlib
import io
import json
import os
import pathlib
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "exporters/python"), str(ROOT / "tests/data")]
os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
os.environ["LOCKSTEP_METRICS"] = "off"
import lockstep
import other_files

RANDOM = random.Random(1)
LENGTHS = [RANDOM.randint(5, 400) for _ in range(900)]
OPTIONS = {"cap": 800, "cost": (60, 1), "seed": 5}


def samplers(ranks, lengths=LENGTHS, **options):
    return [lockstep.BatchSampler(lengths, rank=rank, world_size=ranks, **{**OPTIONS, **options}) for rank in range(ranks)]


class Loader:
    """As a DataLoader does, takes batches before the loop asks for them."""

    def __init__(self, sampler, ahead=0):
        self.batch_sampler, self.ahead = sampler, ahead

    def __iter__(self):
        waiting = []
        for batch in self.batch_sampler:
            waiting.append(batch)
            if len(waiting) > self.ahead:
                yield waiting.pop(0)
        yield from waiting


def run(sampler, steps=None, ahead=0):
    """The MicroBatches of so many steps."""
    done = []
    for batch, micro in sampler.micro_batches(Loader(sampler, ahead)):
        assert batch == micro.samples or (not micro.samples and len(batch) == 1)
        done.append(micro)
        assert micro.scale >= 0
        if micro.last_of_step:
            steps = steps and steps - 1
            if steps == 0:
                break
    return done


class EndlessData:
    """A data set without IndexError: iterating over it never ends."""

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return [1] * 5


class Case(unittest.TestCase):
    def refused(self, call, *words):
        with self.assertRaises(lockstep.Error) as caught:
            call()
        message = str(caught.exception)
        for word in words:
            self.assertIn(word, message)
        self.assertNotIn("\n", message)
        self.assertNotIn("--", message)

    def printed(self, call):
        """The lines that it prints as the first one of a process."""
        lockstep._printed.clear()
        with contextlib.redirect_stderr(io.StringIO()) as lines:
            call()
        return lines.getvalue().splitlines()


class Sampler(Case):
    def test_every_sample_once_over_three_resumes_on_other_ranks(self):
        for ahead in (0, 7):
            for size in ({}, {"step_tokens": 4000}):
                seen, state, steps = [], None, []
                for ranks, count in ((2, 9), (3, 5), (4, 8), (2, None)):
                    group = samplers(ranks, **size)
                    states = []
                    for sampler in group:
                        if state:
                            sampler.load_state_dict(json.loads(state))
                        micro_batches = run(sampler, count, ahead)
                        seen += [sample for micro in micro_batches for sample in micro.samples]
                        states.append(json.dumps(sampler.state_dict()))
                    steps += sorted({(micro.step, micro.tokens) for micro in micro_batches})
                    self.assertEqual(len(set(states)), 1, "the state is the same on all ranks")
                    state = states[0]
                self.assertLess(len(state), 1000)
                self.assertEqual(sorted(seen), list(range(len(LENGTHS))))
                self.assertEqual([step for step, _ in steps], list(range(len(steps))))
                budget = size.get("step_tokens", 0.95 * 2 * 800)
                self.assertLessEqual(max(tokens for _, tokens in steps[:-1]), 1.5 * budget + max(LENGTHS))

    def test_the_state_counts_what_the_loop_has_had(self):
        first, second = samplers(2, accumulate=3)
        for ahead in (0, 9):
            done = run(first, 4, ahead)
            self.assertEqual(first.state_dict()["plan"]["steps"], 4)
            self.assertEqual(done[-1].step, 3)
        # In the middle of a step it is still that before the step.
        loop = iter(second.micro_batches(Loader(second, 3)))
        while (micro := next(loop)[1]).last_of_step or micro.step == 0:
            pass
        self.assertEqual(second.state_dict()["plan"]["steps"], micro.step)

    def test_the_state_after_a_rest_that_was_taken_ahead(self):
        sampler, resumed = samplers(1, accumulate=3) + samplers(1, accumulate=3)
        end = sampler.steps - 2
        run(sampler, end)
        resumed.load_state_dict(sampler.state_dict())
        loop = iter(resumed.micro_batches(Loader(resumed, 1000)))
        self.assertFalse(next(loop)[1].last_of_step)  # the whole rest is taken, and no step done
        self.assertEqual(resumed.state_dict()["plan"]["steps"], end)

    def test_an_epoch_continues_and_the_next_one_begins_anew(self):
        (sampler,) = samplers(1)
        run(sampler, 3)
        state = sampler.state_dict()
        (other,) = samplers(1)
        other.load_state_dict(state)
        other.set_epoch(0)
        self.assertEqual(run(other)[0].step, 3)
        self.assertEqual(run(other)[0].step, 0, "a second loop over the same epoch has all of it")
        first = run(other)[0].samples
        other.set_epoch(1)
        self.assertNotEqual(run(other)[0].samples, first)
        done = other.state_dict()
        self.assertEqual(done["epoch"], 1)
        sampler.load_state_dict(done)
        self.assertEqual((sampler.epoch, len(sampler), run(sampler)), (1, 0, []))

    def test_len_and_steps_are_those_of_the_rest(self):
        for sampler in samplers(3):
            self.assertEqual((len(sampler), sampler.steps), (len(done := run(sampler)), done[-1].step + 1))
            done = run(sampler, 5)
            resumed = lockstep.BatchSampler(LENGTHS, rank=sampler.rank, world_size=3, **OPTIONS)
            resumed.load_state_dict(sampler.state_dict())
            rest = len(resumed.micro_batches(Loader(resumed)))
            self.assertEqual((rest, resumed.steps), (len(run(resumed)), sampler.steps - 5))
        self.assertEqual(len({sampler.steps for sampler in samplers(3)}), 1)

    def test_the_scales_average_over_the_tokens_that_count(self):
        counting = [length // 3 for length in LENGTHS]
        for loss_tokens in (None, counting, numpy.array(counting)):
            sums = {}
            for sampler in samplers(3, loss_tokens=loss_tokens):
                for micro in run(sampler):
                    weight = sum((LENGTHS if loss_tokens is None else counting)[sample] for sample in micro.samples)
                    sums[micro.step] = sums.get(micro.step, 0) + micro.scale * weight / 3  # DDP's average
            for step, total in sums.items():
                self.assertAlmostEqual(total, 1, msg=step)

    def test_a_step_without_a_token_in_the_loss_has_scale_0(self):
        (sampler,) = samplers(1, lengths=[3, 4], loss_tokens=[0, 5], step_tokens=4, cap=4)
        self.assertEqual(sorted(micro.scale for micro in run(sampler)), [0, 1 / 5])

    def test_a_rank_without_samples_takes_part_with_one_times_0(self):
        parts = [run(sampler) for sampler in samplers(5, lengths=[7, 6, 8])]
        self.assertEqual([len(part) for part in parts], [1] * 5)
        empty = [part[0] for part in parts if not part[0].samples]
        self.assertEqual([(micro.scale, micro.rank_tokens, micro.last_of_step) for micro in empty], [(0, 0, True)] * 2)
        taken = [list(sampler) for sampler in samplers(5, lengths=[7, 6, 8])]
        self.assertEqual(sorted(batches[0][0] for batches in taken), [0, 1, 1, 1, 2], "the shortest")

    def test_equal_micro_batches(self):
        lengths = [700] * 10 + [20] * 500  # a long one costs as much as many short ones
        unequal = [[micro.step for micro in run(sampler)] for sampler in samplers(3, lengths=lengths, cost=(0, 1))]
        self.assertNotEqual(unequal[0], unequal[1])
        equal = [[micro.step for micro in run(sampler)] for sampler in samplers(3, lengths=lengths, cost=(0, 1), equal_micro_batches=True)]
        self.assertEqual(equal[0], equal[1])
        self.assertEqual(equal[0], equal[2])

    def test_padded_batches_are_under_the_cap(self):
        for sampler in samplers(2, padded=True):
            steps = {}
            for micro in run(sampler):
                self.assertLessEqual(len(micro.samples) * max(LENGTHS[sample] for sample in micro.samples), 800)
                steps.setdefault(micro.step, []).append(micro)
            for step in steps.values():
                rows = sum(len(micro.samples) * max(LENGTHS[sample] for sample in micro.samples) for micro in step)
                self.assertEqual({micro.rank_padding for micro in step}, {rows - step[0].rank_tokens})
        self.assertEqual({micro.rank_padding for micro in run(samplers(2)[0])}, {0})
        self.assertEqual({run(sampler)[0].rank_padding for sampler in samplers(5, lengths=[7, 6, 8], padded=True)}, {0})

    def test_no_sync_until_the_last_micro_batch(self):
        class Ddp:
            static_graph = False
            calls = 0

            def no_sync(self):
                self.calls += 1
                return open(os.devnull)

        ddp = Ddp()
        done = run(samplers(2, accumulate=3)[0])
        for micro in done:
            with micro.no_sync_unless_last(ddp):
                pass
        self.assertEqual(ddp.calls, sum(not micro.last_of_step for micro in done))
        self.assertGreater(ddp.calls, 0)
        self.assertIn("weights differ", self.printed(lambda: self.step_always(ddp))[0])
        ddp.static_graph = True
        self.refused(lambda: done[0].no_sync_unless_last(ddp), "static_graph=True", "equal_micro_batches=True")
        run(samplers(2, equal_micro_batches=True)[0])[-1].no_sync_unless_last(ddp)

    def step_always(self, ddp):
        sampler = samplers(2, accumulate=3)[0]
        for _, micro in sampler.micro_batches(Loader(sampler)):
            with micro.no_sync_unless_last(ddp):
                micro.scale
            # here optimizer.step(), without `if micro.last_of_step:`

    def test_a_loaded_position_that_is_left_out_is_said(self):
        (sampler,) = samplers(1)
        sampler.set_epoch(1)
        run(sampler, 2)
        middle = sampler.state_dict()
        run(sampler)
        end = sampler.state_dict()
        for state, epoch, words in ((middle, 0, ["leaves out the rest of epoch 1"]), (middle, 1, []), (end, 2, [])):
            resumed = samplers(1)[0]
            resumed.load_state_dict(state)
            lines = self.printed(lambda: resumed.set_epoch(epoch))
            self.assertEqual(len(lines), len(words))
            for word in words:
                self.assertIn(word, lines[0])

    def test_the_tools_errors_are_one_line(self):
        long = "lockstep-plan: lengths: sample 1 has 900 tokens, over the cap of 800"
        self.refused(lambda: samplers(1, lengths=[5, 900]), long, "too_long='skip'")
        self.assertEqual(list(samplers(1, lengths=[5, 900], too_long="skip")[0]), [[0]])
        self.refused(lambda: samplers(1, cost=(0, 0)), "cost must be two finite numbers")
        self.refused(lambda: samplers(1, cost=100), "cost must be two numbers")
        self.assertEqual(list(samplers(1, cap=8e2, step_tokens=700.4)[0]), list(samplers(1, cap=800, step_tokens=700)[0]))
        self.refused(lambda: samplers(1, cap="1e2"), "Could not convert: cap = 1e2")
        self.refused(lambda: samplers(1, accumulate=0), "accumulate: Value 0")
        self.refused(lambda: samplers(1, loss_tokens=[1]), "loss_tokens has 1 numbers for 900 samples")
        self.refused(lambda: lockstep.BatchSampler([1], cap=5, rank=3, world_size=2), "rank must be below world_size 2, not 3")
        path = os.environ["PATH"]
        os.environ["PATH"] = "/nowhere"
        try:
            self.refused(lambda: samplers(1), "lockstep-plan was not found", "PATH")
        finally:
            os.environ["PATH"] = path

    def test_wrong_calls_are_refused(self):
        (sampler,) = samplers(1)
        self.refused(lambda: samplers(1, lengths=[1, 1.5]), "lengths must be whole numbers", "sample 1 has 1.5")
        self.refused(lambda: samplers(1, lengths=[1, 2, -1]), "sample 2 has -1")
        self.refused(lambda: samplers(1, lengths=[2**32]), "sample 0 has 4294967296")
        for wrong in ([], 5, None, iter([3]), numpy.array(3), EndlessData()):
            self.refused(lambda: samplers(1, lengths=wrong), "lengths must be a list", "not empty", type(wrong).__name__)
        for wrong in ([[1]], [[1], [1, 2]], ["a"]):
            self.refused(lambda: samplers(1, lengths=wrong), "not its data", "len(sample)")
        self.assertEqual(list(samplers(1, lengths=numpy.array([3.0, 255], "f4"))[0]), list(samplers(1, lengths=[3, 255])[0]))
        self.refused(lambda: lockstep.BatchSampler([1], cap=5, rank=0), "both rank and world_size")
        self.refused(lambda: sampler.micro_batches(Loader(samplers(1)[0])), "batch_sampler=sampler")
        run(sampler, 2)
        state = sampler.state_dict()
        self.refused(lambda: samplers(1, seed=6)[0].load_state_dict(state), "seed 5", "seed 6")
        self.refused(lambda: sampler.load_state_dict({**state, "version": 9}), "version 9", "version 2")
        self.refused(lambda: samplers(1, lengths=LENGTHS[:-1])[0].load_state_dict(state), "samples 900", "samples 899")
        self.refused(lambda: samplers(1, lengths=[*LENGTHS[:-1], 401])[0].load_state_dict(state), "belongs to other data")
        self.assertEqual(repr(lockstep.Error), "<class 'lockstep.Error'>")
        self.assertIs(pickle.loads(pickle.dumps(lockstep.Error)), lockstep.Error)

    def test_the_rank_is_that_of_the_launcher(self):
        script = "import lockstep; s = lockstep.BatchSampler([1], cap=5); print(s.rank, s.world_size)"
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "exporters/python"), "RANK": "2", "WORLD_SIZE": "3"}
        done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True)
        self.assertEqual(done.stdout, "2 3\n", done.stderr)

    def test_python_that_lacks_memory_files(self):  # as conda's, made for an older glibc
        (expected,) = map(list, samplers(1))
        create = os.memfd_create
        del os.memfd_create
        try:
            self.assertEqual(list(samplers(1)[0]), expected)
        finally:
            os.memfd_create = create

    def test_a_tool_that_is_killed_within_a_line_is_named(self):
        path = os.environ["PATH"]
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "lockstep-plan")
            os.environ["PATH"] = f"{folder}:{path}"
            try:
                for lines in (1, 2):
                    tool.write_text(f'#!/bin/sh\n{BIN}/lockstep-plan "$@" | {{ head -n {lines} | head -c -9; }}\nkill -9 $$\n')
                    tool.chmod(0o755)
                    self.refused(lambda: list(samplers(1)[0]), "lockstep-plan ended with -9")
            finally:
                os.environ["PATH"] = path

    def test_a_loop_that_ends_early_leaves_no_process(self):
        (sampler,) = samplers(1, lengths=LENGTHS * 1000)  # the tool cannot have ended
        batches = iter(sampler)
        next(batches)
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
        self.assertNotEqual(children.read_text(), "")
        fds = [fd for fd in pathlib.Path(f"/proc/{children.read_text().split()[0]}/fd").iterdir() if "memfd:" in os.readlink(fd)]
        self.assertEqual([fd.stat().st_size for fd in fds], [0], "the lengths take no memory once they are read")
        linux = tuple(map(int, os.uname().release.split(".")[:2]))
        self.assertEqual(fds[0].stat().st_mode & 0o111 == 0, linux >= (6, 3))
        batches.close()
        self.assertEqual(children.read_text(), "")


class WorkerCpus(unittest.TestCase):
    """A worker inherits the one CPU of a main thread that OpenMP has bound."""

    def cpus_of_a_worker(self, **variables):
        code = ("import os; cpus = os.sched_getaffinity(0); os.sched_setaffinity(0, {min(cpus)}); import lockstep;"
                "lockstep.use_worker_cpus(0); print(*sorted(os.sched_getaffinity(0)))")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        return subprocess.run([sys.executable, "-c", code], env={**environment, "PYTHONPATH": sys.path[0], **variables},
                              check=True, capture_output=True, text=True).stdout.split()

    def test_a_worker_has_the_worker_cpus_or_all_of_the_ranks(self):
        every = sorted(os.sched_getaffinity(0))
        listed = [str(cpu) for cpu in every]
        self.assertEqual(self.cpus_of_a_worker(LOCKSTEP_CPUS=",".join(listed)), listed)
        self.assertEqual(self.cpus_of_a_worker(LOCKSTEP_CPUS=",".join(listed), LOCKSTEP_WORKER_CPUS=f"{every[-1]}-{every[-1]}"), listed[-1:])
        self.assertEqual(self.cpus_of_a_worker(), listed[:1])


class Wheel(unittest.TestCase):
    def test_pip_installs_the_three_modules(self):
        if subprocess.run([sys.executable, "-c", "import setuptools, pip"], capture_output=True).returncode:
            self.skipTest("needs pip and setuptools")
        with tempfile.TemporaryDirectory() as folder:
            source = shutil.copytree(ROOT / "exporters/python", f"{folder}/source")  # setuptools writes into it
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target"]
            subprocess.run([*command, f"{folder}/site", source], check=True, capture_output=True)
            script = "import lockstep; print(lockstep.Pack, lockstep.BatchSampler)"
            variables = {**os.environ, "PYTHONPATH": f"{folder}/site"}
            done = subprocess.run([sys.executable, "-c", script], env=variables, cwd=folder, capture_output=True, text=True)
            self.assertIn("lockstep_pack.Pack", done.stdout, done.stderr)


class Packs(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def create(self, *options):
        subprocess.run([BIN / "lockstep-pack", "create", self.folder / "data", "--out", self.folder / "pack", *options], check=True,
                       stdout=subprocess.DEVNULL)
        return lockstep.Pack(self.folder / "pack")

    def tokens(self):
        (self.folder / "data").mkdir()
        expected = {}
        for number, length in enumerate(LENGTHS[:50]):
            expected[f"{number:03}"] = numpy.arange(number, number + length, dtype="<u2") * 100
            (self.folder / f"data/{number:03}.tok").write_bytes(expected[f"{number:03}"].tobytes())
        return expected, self.create("--token-bytes", "2", "--shard-size", "4K")

    def test_tokens_of_a_tar_pack(self):
        expected, pack = self.tokens()
        self.assertGreater(len(list((self.folder / "pack").glob("*.tar"))), 1)
        self.assertEqual(len(pack), 50)
        for copy in (pack, pickle.loads(pickle.dumps(pack))):
            for number in range(50):
                tokens = copy[number]
                self.assertEqual((tokens.dtype, tokens.flags.writeable), (numpy.int64, True))
                numpy.testing.assert_array_equal(tokens, expected[copy.key(number)])
                self.assertEqual(copy.lengths[number], len(tokens))
        numpy.testing.assert_array_equal(pack[-1], pack[49])
        self.assertRaises(IndexError, lambda: pack[50])
        sampler = lockstep.BatchSampler(pack, rank=0, world_size=1, **OPTIONS)
        self.assertEqual(sorted(sample for batch in sampler for sample in batch), list(range(50)))

    def test_more_shards_than_descriptors(self):
        expected, pack = self.tokens()
        shards = len(list((self.folder / "pack").glob("*.tar")))
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + shards // 2, before[1]))
        pack = pickle.loads(pickle.dumps(pack))
        for number in [*range(50), 0]:
            numpy.testing.assert_array_equal(pack[number], expected[pack.key(number)])

    def test_files_of_a_tar_pack(self):
        (self.folder / "data").mkdir()
        for name, content in (("a.jpg", b"picture"), ("a.cls", b"7"), ("b.jpg", b""), ("b.cls", b"8")):
            (self.folder / "data" / name).write_bytes(content)
        pack = self.create()
        found = {pack.key(number): pack[number] for number in range(len(pack))}
        self.assertEqual(found, {"a": {"jpg": b"picture", "cls": b"7"}, "b": {"jpg": b"", "cls": b"8"}})
        self.assertRaisesRegex(lockstep.Error, "does not hold tokens", lambda: pack.lengths)

    def test_a_megatron_corpus(self):
        # The vectors that Megatron-Core wrote, and what lockstep-pack reads in them.
        found = sorted((ROOT / "tests/data/formats/megatron").glob("*.idx"))
        self.assertTrue(found)
        for index in found:
            path = index.with_suffix("")
            if path.name.startswith("float"):
                self.assertRaisesRegex(lockstep.Error, "must be integers", lockstep.Pack, path)
                continue
            pack = lockstep.Pack(path)
            tokens = subprocess.run([BIN / "lockstep-pack", "cat", path, "1"], check=True, capture_output=True).stdout
            numpy.testing.assert_array_equal(pack[1], numpy.frombuffer(tokens, pack._pack.type))
            self.assertEqual(pack.lengths.tolist(), [len(pack[number]) for number in range(len(pack))])

    def test_megatron_corpora_of_other_programs(self):
        def pack(pair):
            for ending, content in zip(("idx", "bin"), pair):
                (self.folder / f"x.{ending}").write_bytes(content)
            return lockstep.Pack(self.folder / "x")

        for pair in (other_files.megatron(9, [3, 0, 2]), other_files.megatron(10, [3, 0, 2]), other_files.fairseq(8, [3, 0, 2]),
                     other_files.megatron(8, [3, 0, 2], documents=[0, 1, 3])):
            read = pack(pair)
            tokens = subprocess.run([BIN / "lockstep-pack", "cat", self.folder / "x", "2", "--json"], check=True, capture_output=True).stdout
            self.assertEqual((read.lengths.tolist(), read[1].tolist(), read[2].tolist()), ([3, 0, 2], [], json.loads(tokens)["tokens"]))
        # What lockstep-pack refuses is refused here too: a type that the offsets contradict, and documents that end early.
        for pair in (other_files.megatron(8, [3, 2, 4], size=4), other_files.megatron(8, [3, 2, 4], documents=[0, 1, 2]),
                     (other_files.megatron(8, [3, 2])[0], bytes(12))):
            self.assertRaisesRegex(lockstep.Error, "do not match: lockstep-pack verify", pack, pair)
        self.assertRaisesRegex(lockstep.Error, "must be integers, but have the type 11", pack, other_files.megatron(11, [3], size=2))
        far = (other_files.megatron(10, [1])[0], b"\xff" * 8)
        self.assertRaisesRegex(lockstep.Error, "exceeds", lambda: pack(far)[0])

    def test_damage_is_named(self):
        _, pack = self.tokens()
        index, shard = self.folder / "pack/index.lockstep", next((self.folder / "pack").glob("*.tar"))
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-512])
        self.assertRaisesRegex(lockstep.Error, "bytes, but [0-9]+ in the index", lambda: [pack[number] for number in range(50)])
        content = index.read_bytes()
        for wrong in (content[:40], content[:-1], b"X" + content[1:], content[:300], content.replace(content[64:72], b"\1" + b"\0" * 7, 1)):
            index.write_bytes(wrong)
            self.assertRaisesRegex(lockstep.Error, "index.lockstep is damaged", lockstep.Pack, self.folder / "pack")
        # Whatever is wrong in an index: an error of lockstep, or samples as before.
        shard.write_bytes(whole)
        for at in range(len(content)):
            wrong = (1, 128, content[at])[at % 3]  # one bit, or 0 instead of the byte
            index.write_bytes(content[:at] + bytes([content[at] ^ wrong]) + content[at + 1 :])
            with contextlib.suppress(lockstep.Error):
                pack = lockstep.Pack(self.folder / "pack")
                [(pack.key(number), pack[number]) for number in (0, len(pack) - 1)]
        self.assertRaisesRegex(lockstep.Error, "has no index.lockstep", lockstep.Pack, self.folder)
        for ending in ("idx", "bin"):
            name = f"uint16.{ending}"
            (self.folder / name).write_bytes((ROOT / "tests/data/formats/megatron" / name).read_bytes()[: None if ending == "idx" else -2])
        self.assertRaisesRegex(lockstep.Error, "do not match", lockstep.Pack, self.folder / "uint16")
        for name, content in zip(("far.idx", "far.bin"), other_files.megatron(8, [4, 4])):
            (self.folder / name).write_bytes(content.replace(struct.pack("<2q", 0, 8), struct.pack("<2q", 0, 2**63 - 4)))
        self.assertRaisesRegex(lockstep.Error, "do not match", lockstep.Pack, self.folder / "far")


if __name__ == "__main__":
    unittest.main()
