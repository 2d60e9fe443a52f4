#!/usr/bin/env python3
"""lockstep.BatchSampler under PyTorch's DistributedDataParallel gives the gradients of one process, and every sample once over
resumes on other numbers of ranks.

  batches_test.py build/release/bin        PYTHONPATH chooses another PyTorch than the interpreter's own
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
HERE = pathlib.Path(__file__).resolve().parent
try:
    import numpy
    import torch.distributed as dist

    if not dist.is_gloo_available():
        raise ImportError("this PyTorch does not have Gloo")
except (ImportError, OSError, AttributeError) as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANDOM = random.Random(2)
LENGTHS = [RANDOM.choice((2, 3, 5, 8, 13, 40, 90)) for _ in range(400)]
OPTIONS = {"cap": 100, "cost": [100, 1], "seed": 4, "step_tokens": 320}


class Batches(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.starts = 0

    def start(self, ranks, code=0, **chosen):
        self.starts += 1
        out = self.folder / f"start{self.starts}"
        paths = [str(HERE.parents[1] / "exporters/python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1",
                     "OPENBLAS_NUM_THREADS": "1", "LOCKSTEP_METRICS": "off"}
        processes = []
        for rank in range(ranks):
            words = {"rank": rank, "ranks": ranks, "store": f"{out}.store", "lengths": LENGTHS, "options": OPTIONS, "state": "",
                     "workers": 0, "steps": 0, "out": str(out), **chosen}
            for name, values in chosen.get("of_rank", {}).get(rank, {}).items():
                words[name] = values
            processes.append(subprocess.Popen([sys.executable, HERE / "batches_rank.py", json.dumps(words)], env=variables, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        answers = []
        for process in processes:
            printed, said = process.communicate()
            self.assertEqual(process.returncode, code, said)
            answers.append(json.loads(printed) if code == 0 else said)
        return out, answers

    def test_gradients_are_those_of_one_process(self):
        alone, (whole,) = self.start(1, steps=20)
        expected = numpy.load(f"{alone}.0.npy")
        self.assertEqual(len(expected), 20)
        out, answers = self.start(2, steps=20, workers=2)
        self.assertEqual(sorted(answers[0]["seen"] + answers[1]["seen"]), sorted(whole["seen"]))
        for rank in range(2):
            gradients = numpy.load(f"{out}.{rank}.npy")
            self.assertLess(numpy.abs(gradients - expected).max() / numpy.abs(expected).max(), 1e-6)

    def test_a_rank_without_samples_takes_part(self):
        few = {"lengths": [20, 30], "options": {**OPTIONS, "step_tokens": 100}}
        alone, _ = self.start(1, **few)
        out, answers = self.start(3, **few)
        self.assertEqual(sorted(answer["empty"] for answer in answers), [0, 0, 1])
        numpy.testing.assert_allclose(numpy.load(f"{out}.2.npy"), numpy.load(f"{alone}.0.npy"), rtol=1e-6, atol=1e-12)

    def test_every_sample_once_over_three_resumes(self):
        alone, _ = self.start(1)
        seen, state, gradients = [], "", []
        for ranks, steps, workers in ((2, 4, 2), (3, 5, 0), (4, 3, 2), (2, 0, 0)):
            out, answers = self.start(ranks, steps=steps, workers=workers, state=state)
            seen += sum((answer["seen"] for answer in answers), [])
            gradients += list(numpy.load(f"{out}.0.npy"))
            state = f"{out}.state"
        self.assertEqual(sorted(seen), list(range(len(LENGTHS))))
        numpy.testing.assert_allclose(gradients, numpy.load(f"{alone}.0.npy"), rtol=1e-6, atol=1e-9)

    def test_ranks_with_other_lengths_are_refused(self):
        _, said = self.start(2, code=1, of_rank={1: {"lengths": LENGTHS[:-1]}})
        for message in said:
            self.assertIn("BatchSampler's lengths of rank 1 is ", message)

    def test_explicit_ranks_that_do_not_fit_are_refused(self):
        for explicit, message in (({"rank": 0, "world_size": 2}, "no process gave BatchSampler the rank 1"),
                                  ({"rank": 1, "world_size": 4}, "world_size is 4, but torch.distributed has 2 processes")):
            for said in self.start(2, code=1, options={**OPTIONS, **explicit})[1]:
                self.assertIn(message, said)


if __name__ == "__main__":
    unittest.main()
