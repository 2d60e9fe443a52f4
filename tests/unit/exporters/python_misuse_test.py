#!/usr/bin/env python3
"""Programs that use lockstep.BatchSampler wrongly: each is an error or a line, and right ones print nothing. Without PyTorch.

  python_misuse_test.py build/release/bin
"""

import os
import sys
import types
import unittest
from unittest import mock

from python_batches_test import LENGTHS, OPTIONS, Case, Loader, lockstep, run, samplers


class FakeTorch:
    """torch.distributed of a process whose peers give what peers(mine) returns."""

    def __init__(self, processes, peers=lambda mine: [], grad=True):
        self.gathered, self.grad, self.peers = 0, grad, peers
        self.distributed = types.SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: processes, get_rank=lambda: 0,
            all_gather_object=self.gather)

    def gather(self, of_ranks, mine):
        self.gathered += 1
        of_ranks[:] = [mine, *self.peers(mine)]

    def is_grad_enabled(self):
        return self.grad

    def __enter__(self):
        self.patch = mock.patch.dict(sys.modules, torch=self)
        self.patch.__enter__()
        return self

    def __exit__(self, *error):
        self.patch.__exit__(*error)


class Ranks(Case):
    """Agreement of the ranks. batches_test runs real ones."""

    def setUp(self):
        for name in ("RANK", "WORLD_SIZE"):
            if name in os.environ:
                self.addCleanup(os.environ.__setitem__, name, os.environ.pop(name))

    def sampler(self, **options):
        return lockstep.BatchSampler(LENGTHS, **{**OPTIONS, **options})

    def test_explicit_ranks_are_compared(self):
        def peer(rank, **change):
            return lambda mine: [(rank, {**mine[1], **change})]

        with FakeTorch(2, peer(1)) as torch:
            self.sampler(rank=0, world_size=2)
            self.assertEqual(torch.gathered, 1)
            self.refused(lambda: self.sampler(rank=0, world_size=4), "world_size is 4", "2 processes", "init_process_group()")
        with FakeTorch(2, peer(0)):
            self.refused(lambda: self.sampler(rank=0, world_size=2), "no process gave BatchSampler the rank 1")
        with FakeTorch(2, peer(1, seed=6)):
            self.refused(lambda: self.sampler(rank=0, world_size=2), "seed of rank 1 is 6, but 5 on rank 0")
            self.refused(self.sampler, "seed of rank 1")

    def test_groups_of_model_parallelism_and_a_rank_that_validates_compare_nothing(self):
        with FakeTorch(4) as torch:
            for size in (1, 2):
                sampler = self.sampler(rank=0, world_size=size)
                sampler.load_state_dict(sampler.state_dict())
                run(sampler)
            self.assertEqual(torch.gathered, 0)

    def test_a_sampler_that_is_older_than_the_process_group(self):
        alone = self.sampler()
        with mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="2"):
            of_launcher = self.sampler()
        with FakeTorch(2, lambda mine: [(1, mine[1])]) as torch:
            self.refused(lambda: run(alone), "world_size is 1", "2 processes", "init_process_group()")
            run(of_launcher)
            run(of_launcher, 2)
            self.assertEqual(torch.gathered, 1)
        with mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="2"):
            of_launcher = self.sampler()
        with FakeTorch(2, lambda mine: [(1, {**mine[1], "lengths": "other"})]):
            self.refused(lambda: run(of_launcher), "lengths of rank 1 is other")

    def test_states_are_compared(self):
        with FakeTorch(2, lambda mine: [(1, mine[1])]):
            sampler = self.sampler()
            run(sampler, 2)
            self.sampler().load_state_dict(sampler.state_dict())
        with FakeTorch(2, lambda mine: [(1, {**mine[1], "state": "[0, null]"})]):
            resumed = self.sampler()
            self.refused(lambda: resumed.load_state_dict(sampler.state_dict()), "state of rank 1 is [0, null]")


class Misuse(Case):
    """Loops that would train wrongly without a word."""

    def loop(self, sampler, *reads, ahead=0):
        for _, micro in sampler.micro_batches(Loader(sampler, ahead)):
            for name in reads:
                getattr(micro, name)

    def test_a_data_set_of_another_size(self):
        (sampler,) = samplers(1)
        loader = Loader(sampler)
        for samples in (48, 1000):
            loader.dataset = range(samples)
            self.refused(lambda: sampler.micro_batches(loader), f"has {samples} samples, but BatchSampler has 900 lengths")
        for right in (LENGTHS, object(), None):
            loader.dataset = right
            sampler.micro_batches(loader)

    def test_a_loop_that_leaves_out_what_it_needs(self):
        first, second = samplers(2, accumulate=3)
        (line,) = self.printed(lambda: self.loop(first, "last_of_step"))
        self.assertIn("micro.scale", line)
        first.set_epoch(1)
        (line,) = self.printed(lambda: self.loop(samplers(2, accumulate=3)[0], "scale"))
        self.assertIn("no_sync_unless_last", line)
        self.assertIn("last_of_step", line)
        self.assertEqual(self.printed(lambda: self.loop(samplers(2, accumulate=3)[0], "scale", "last_of_step")), [])
        self.assertEqual(self.printed(lambda: self.loop(samplers(2, equal_micro_batches=True, accumulate=3)[0], "scale")), [])
        self.assertEqual(self.printed(lambda: self.loop(second)), [], "rank 0 says it")
        (sampler, _) = samplers(2, accumulate=3)
        with FakeTorch(2, lambda mine: [(1, mine[1])], grad=False):
            self.assertEqual(self.printed(lambda: self.loop(sampler)), [], "it does not train")

    def test_a_loop_over_the_loader_itself(self):
        first, second = samplers(2)
        for sampler in (first, second):
            (line,) = self.printed(lambda: list(Loader(sampler)))
            self.assertIn("sampler.micro_batches(loader)", line)
        self.assertEqual(self.printed(lambda: (next(iter(first)), list(samplers(1)[0]), list(samplers(9)[8]))), [])
        with FakeTorch(2, lambda mine: [(1, mine[1])], grad=False):
            self.assertEqual(self.printed(lambda: list(first)), [], "it does not train")

    def test_a_forgotten_set_epoch(self):
        (sampler,) = samplers(1)
        reads = ("scale", "last_of_step")
        self.assertEqual(self.printed(lambda: (run(sampler, 2), self.loop(sampler, *reads))), [])
        with FakeTorch(1, grad=False):
            self.assertEqual(self.printed(lambda: self.loop(sampler)), [], "it does not train")
        (line,) = self.printed(lambda: self.loop(sampler, *reads))
        self.assertIn("epoch 0 begins again", line)
        self.assertIn("set_epoch(epoch)", line)
        sampler.set_epoch(1)
        self.assertEqual(self.printed(lambda: (run(sampler, 2), sampler.load_state_dict(sampler.state_dict()), run(sampler))), [])

    def test_truncate_and_split_are_refused(self):
        for wrong in ("truncate", "split", "drop"):
            self.refused(lambda: samplers(1, too_long=wrong), "must be 'refuse' or 'skip'", repr(wrong), "data set")

    def test_loss_tokens_that_are_all_0(self):
        self.refused(lambda: samplers(1, loss_tokens=[0] * len(LENGTHS)), "loss_tokens are all 0")

    def test_resuming_with_another_accumulate(self):
        first, second = samplers(2, accumulate=2)
        run(first, 2)
        state = first.state_dict()
        (line,) = self.printed(lambda: samplers(2, accumulate=3)[0].load_state_dict(state))
        self.assertIn("steps keep the saved 3040 tokens; give step_tokens", line)
        self.assertEqual(self.printed(lambda: second.load_state_dict(state)), [])
        self.assertEqual(self.printed(lambda: samplers(2, accumulate=3)[1].load_state_dict(state)), [], "rank 0 says it")
        self.assertEqual(self.printed(lambda: samplers(2, accumulate=3, step_tokens=100)[0].load_state_dict(state)), [])

    def test_resuming_with_other_loss_tokens(self):
        (sampler,) = samplers(1, loss_tokens=LENGTHS[::-1])
        run(sampler, 2)
        state = sampler.state_dict()
        samplers(1, loss_tokens=LENGTHS[::-1])[0].load_state_dict(state)
        for wrong in (None, LENGTHS):
            self.refused(lambda: samplers(1, loss_tokens=wrong)[0].load_state_dict(state), "state has loss_tokens")

    def test_a_look_at_a_batch_keeps_the_position(self):
        (sampler,) = samplers(1)
        run(sampler, 3)
        state = sampler.state_dict()
        for look in (lambda: next(iter(Loader(sampler))), lambda: len(sampler), lambda: next(iter(Loader(sampler, 9)))):
            look()
            self.assertEqual(sampler.state_dict(), state)

    def test_a_loader_that_is_iterated_elsewhere(self):
        (sampler,) = samplers(1)
        started = iter(Loader(sampler, 3))
        first = next(started)
        self.refused(lambda: list(sampler.micro_batches(started)), "iterated elsewhere", "DataLoader itself")
        loop = iter(sampler.micro_batches(Loader(sampler)))
        self.assertEqual(next(loop)[0], first)
        next(iter(Loader(sampler)))
        self.refused(lambda: next(loop), "iterated elsewhere")


if __name__ == "__main__":
    unittest.main()
