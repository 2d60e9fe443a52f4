"""Batches of equal work for PyTorch's DataLoader: lockstep.BatchSampler.

    sampler = lockstep.BatchSampler(lengths, cap=16384, cost=(10 * width, 1))
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=2)
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        for batch, micro in sampler.micro_batches(loader):
            with micro.no_sync_unless_last(ddp):
                (loss_sum(ddp(batch)) * micro.scale).backward()
            if micro.last_of_step:
                optimizer.step()
                optimizer.zero_grad()

It runs lockstep-plan, which sends this rank's part through a pipe. Needs numpy. Threads: the one that trains.
"""

import array
import collections
import contextlib
import hashlib
import itertools
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile

import numpy

import lockstep
from lockstep_pack import Error

_STATE_VERSION = 2
_MFD_NOEXEC_SEAL = 8  # since Linux 6.3, where vm.memfd_noexec=2 demands it
_OWN_CHOICES = "choose to truncate, skip or split such samples (too_long)", "leave out such samples with too_long='skip'"
_FILE_OPTIONS = {"lengths": "--lengths-u32", "loss_tokens": "--loss-tokens"}


class MicroBatch:
    """What the plan says of a batch.

    last_of_step: the optimizer steps after it. scale: the factor for the sum of the batch's losses with which DDP's average
    over the ranks is the mean over all tokens of the step; 0 for a batch that only takes part. samples: their numbers; empty
    if it only takes part. step, index, count: the step in the epoch, and which of this rank's micro-batches in it. tokens,
    rank_tokens, rank_padding: of the step, on all ranks and on this one.
    """

    def __init__(self, line, index, batches, sampler):
        self.step, self.index, self.count = line["step"], index, len(batches)
        self.samples = batches[index]
        self._last = index + 1 == self.count
        self.tokens, self.rank_tokens, self.rank_padding = line["tokens"], line["rank_tokens"], line["rank_padding"]
        self._scale = sampler.world_size / line["loss_tokens"] if self.samples and line["loss_tokens"] else 0.0
        self._equal, self._state, self._read = sampler.equal_micro_batches, line["state"], sampler._read

    @property
    def scale(self):
        self._read.add("scale")
        return self._scale

    @property
    def last_of_step(self):
        self._read.add("last_of_step")
        return self._last

    def no_sync_unless_last(self, ddp):
        """For `with`, around forward and backward: ranks communicate in the last micro-batch of a step only."""
        if getattr(ddp, "static_graph", False) and not self._equal:
            raise Error("DistributedDataParallel(static_graph=True) needs equally many micro-batches on all ranks: leave it out, or "
                        "use BatchSampler(equal_micro_batches=True)")
        return contextlib.nullcontext() if self._last else ddp.no_sync()


class BatchSampler:
    """Batches of this rank for DataLoader(batch_sampler=…): every sample once in an epoch, equal cost on all ranks.

    lengths: of all samples, in tokens (list, array, tensor); or a lockstep.Pack. cap: maximum tokens of a micro-batch.
    cost=(a, b): a sample of L tokens costs a*L + b*L*L. step_tokens: of an optimizer step, all ranks together; default: 0.95 *
    world_size * accumulate * cap. loss_tokens: of each sample, the tokens that count in the loss, if these are not its length.
    padded: a micro-batch is rows * its longest sample. equal_micro_batches: for FSDP and other models that communicate in
    forward. too_long="skip" leaves out samples over the cap, which are an error otherwise. rank, world_size: default: those of
    torch.distributed, else of torchrun, mpirun or srun.

    If torch.distributed is initialised, all ranks must construct it and load states together: they compare both, unless
    world_size is smaller than that of torch.distributed, as with model parallelism.
    """

    def __init__(self, lengths, *, cap, cost=(1, 0), step_tokens=None, accumulate=1, stretch=None, seed=0, rank=None,
                 world_size=None, loss_tokens=None, padded=False, equal_micro_batches=False, too_long="refuse"):
        self.rank, self.world_size, self._explicit = _ranks(rank, world_size)
        self.epoch, self.equal_micro_batches, self._padded = 0, equal_micro_batches, padded
        given = {"lengths": getattr(lengths, "lengths", lengths), "loss_tokens": loss_tokens}
        self._numbers = {name: _as_u32(values, name) for name, values in given.items() if values is not None or name == "lengths"}
        self._lengths = self._numbers["lengths"]
        self._digests = {name: hashlib.sha1(numbers).hexdigest() for name, numbers in self._numbers.items()}
        cost = ",".join(map(str, cost)) if numpy.ndim(cost) else cost
        cap, step_tokens = (round(value) if isinstance(value, float) else value for value in (cap, step_tokens))
        self._options = {"cap": cap, "cost": cost, "accumulate": accumulate, "seed": seed, "too-long": too_long}
        self._fixed = {"version": _STATE_VERSION, "seed": seed, "samples": len(self._lengths),
                       "loss_tokens": self._digests.get("loss_tokens")}
        self._flags = [flag for flag, on in (("--padded", padded), ("--equal-micro-batches", equal_micro_batches)) if on]
        self._size = {"step-tokens": step_tokens, "stretch": stretch}  # given here or by a state
        self._planned_size = self._size  # with the defaults
        self._start = None  # where iteration begins, if a state was loaded
        self._position = None  # after the last step that the loop has had
        self._expected = self._ahead = None  # what the DataLoader takes before a loop has it: of the next iteration, and of this one
        self._trained = None  # the epoch that a loop has finished
        self._read = set()  # what loops have read of their MicroBatches
        self._counted, self._compared = (None, None), False
        if too_long not in ("refuse", "skip"):
            raise Error(f"too_long must be 'refuse' or 'skip', not {too_long!r}: to cut samples, cut the data set's and their lengths")
        if not self._numbers.get("loss_tokens", self._lengths).any():
            raise Error("BatchSampler's loss_tokens are all 0: give how many tokens of each sample count in the loss")
        self._compare()
        next(self._lines(), None)  # finds what lockstep-plan refuses

    def set_epoch(self, epoch):
        """Before each epoch. The epoch of a loaded state continues from there."""
        if epoch != self.epoch:
            if self._start is not None and self._position == self._start and self.steps:
                self._print(f"set_epoch({epoch}) leaves out the rest of epoch {self.epoch}, where the loaded state continues: begin the "
                            "loop with range(sampler.epoch, …)")
            self.epoch, self._start, self._position = epoch, None, None

    def micro_batches(self, loader):
        """Yields each batch of the loader with its MicroBatch, and counts for state_dict() what the loop has had."""
        return _Loop(self, loader)

    def state_dict(self):
        """The position after the last step whose batches micro_batches() has yielded: save it after optimizer.step(). It is the
        same on all ranks, and valid for any number of ranks."""
        return {**self._fixed, "accumulate": self._options["accumulate"], "epoch": self.epoch, "size": self._planned_size,
                "plan": self._position}

    def load_state_dict(self, state):
        """Continues from a state. Steps keep the size that they had there, unless step_tokens was given here."""
        for name, value in self._fixed.items():
            if state.get(name) != value:
                raise Error(f"the sampler's state has {name} {state.get(name)}, but this sampler has {name} {value}: continue with the "
                            f"{name} of the state")
        self.epoch, self._start, self._position, self._trained = state["epoch"], state["plan"], state["plan"], None
        if not self._size["step-tokens"]:
            self._size = self._planned_size = dict(state["size"])
            if state["accumulate"] != self._options["accumulate"]:
                self._print(f"steps keep the saved {state['size']['step-tokens']} tokens; give step_tokens to change that")
        self._compare()
        next(self._lines(), None)

    def __iter__(self):
        ahead, self._expected = self._expected, None
        self._ahead = ahead
        for line in self._lines():
            batches = line["batches"] or [[]]
            rows = [len(batch) * int(self._lengths[batch].max()) for batch in batches if batch and self._padded]
            line["rank_padding"] = sum(rows, -line["rank_tokens"]) if rows else 0
            for index, batch in enumerate(batches):
                if ahead is not None:
                    ahead.append(MicroBatch(line, index, batches, self))
                # Without samples of its own a rank takes part with another one, times 0.
                yield batch or [line["shortest"]]
        if ahead is None and self.world_size > 1 and self.rank < 8 and _training():  # rank 0 may have failed before its last batch
            lockstep._print_once("ranks have different numbers of batches: loop over sampler.micro_batches(loader), not over the loader")

    def __len__(self):
        """Micro-batches of this rank in the rest of the epoch. The first call in an epoch plans it."""
        return self._count()[1]

    @property
    def steps(self):
        """Optimizer steps in the rest of the epoch, the same on all ranks."""
        return self._count()[0]

    def _count(self):
        key = json.dumps([self.epoch, self._start, self._size])
        if key != self._counted[0]:
            counts = [max(1, len(line["batches"])) for line in self._lines()]
            self._counted = key, (len(counts), sum(counts))
        return self._counted[1]

    def _lines(self):
        """Of each step what lockstep-plan prints (runtime/data/plan/tool/rank_part.h)."""
        options = {**self._options, **self._size, "ranks": self.world_size, "rank": self.rank, "epoch": self.epoch,
                   "from": json.dumps(self._start) if self._start else None}
        command = [_find_tool(), "make", *self._flags, *(f"--{key}={value}" for key, value in options.items() if value is not None)]
        files = {_memory_file(numbers): name for name, numbers in self._numbers.items()}
        try:
            command += [f"{_FILE_OPTIONS[name]}=/proc/self/fd/{fd}" for fd, name in files.items()]
            tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=files)
            header = tool.stdout.readline()  # it has read the files
        finally:
            for fd in files:
                os.ftruncate(fd, 0)  # the tool holds it for the whole epoch
                os.close(fd)
        try:
            if header.endswith(b"\n"):  # else it was killed
                header = json.loads(header)
                self._planned_size = {"step-tokens": header["step_tokens"], "stretch": header["step_stretch"]}
            for line in tool.stdout:
                if line.endswith(b"\n"):
                    yield json.loads(line)
            said = tool.stderr.read().decode(errors="replace").strip()
            if tool.wait() != 0:
                for fd, name in files.items():
                    said = said.replace(f"/proc/self/fd/{fd}", name)
                said = said.split("; see lockstep-plan")[0].replace("--ranks", "world_size").replace(*_OWN_CHOICES)
                said = re.sub("--([a-z-]+)", lambda option: option[1].replace("-", "_"), said)
                raise Error(said.splitlines()[-1] if said else f"lockstep-plan ended with {tool.returncode}")
        finally:  # also when the loop leaves early
            tool.kill()
            tool.communicate()

    def _compare(self):
        """Ranks that plan differently would train on wrong samples, or wait for ever."""
        if not (distributed := _distributed()):
            return
        self._compared, processes = True, distributed.get_world_size()
        if self.world_size > processes or self.world_size < processes and not self._explicit:
            raise Error(f"BatchSampler's world_size is {self.world_size}, but torch.distributed has {processes} processes: construct it "
                        "after init_process_group(), without rank and world_size")
        if self.world_size < processes or processes == 1:
            return
        mine = {**self._options, **self._size, "flags": self._flags, **self._digests, "state": json.dumps([self.epoch, self._start])}
        of_ranks = [None] * processes
        distributed.all_gather_object(of_ranks, (self.rank, mine))
        if missing := set(range(processes)) - {rank for rank, _ in of_ranks}:
            raise Error(f"no process gave BatchSampler the rank {min(missing)}: each process must give another one")
        of_ranks = dict(of_ranks)
        for rank, name in itertools.product(of_ranks, mine | of_ranks[0]):
            if of_ranks[rank].get(name) != of_ranks[0].get(name):
                raise Error(f"BatchSampler's {name} of rank {rank} is {of_ranks[rank].get(name)}, but {of_ranks[0].get(name)} on rank 0: "
                            "give all ranks the same")

    def _print(self, line):
        if self.rank == 0:
            lockstep._print_once(line)


class _Loop:
    def __init__(self, sampler, loader):
        if getattr(loader, "batch_sampler", sampler) is not sampler or not getattr(loader, "in_order", True):
            raise Error("this loader changes the batches or their order: make it with DataLoader(…, batch_sampler=sampler), "
                        "without in_order=False, and do not let another library wrap it")
        lengths = len(sampler._lengths)
        if (samples := operator.length_hint(getattr(loader, "dataset", None), lengths)) != lengths:
            raise Error(f"the loader's data set has {samples} samples, but BatchSampler has {lengths} lengths: give one for each sample")
        self.sampler, self.loader = sampler, loader

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        sampler = self.sampler
        if not sampler._compared:
            sampler._compare()
        if sampler._start is None and sampler._trained == sampler.epoch and _training():
            sampler._print(f"epoch {sampler.epoch} begins again in the same order: call sampler.set_epoch(epoch) before each epoch")
        sampler._position = sampler._start
        ahead = sampler._expected = collections.deque()
        for batch in self.loader:
            if sampler._ahead is not ahead or not ahead:
                raise Error("the loader was iterated elsewhere: give micro_batches() the DataLoader itself, and end this loop first")
            micro = ahead.popleft()
            if micro._last:
                sampler._position = micro._state
            yield batch, micro
            if micro._last and _training():
                if "scale" not in micro._read:
                    sampler._print("no loss was multiplied by micro.scale: (loss * micro.scale).backward(), with a sum and not a mean")
                if micro.count > 1 and not micro._equal and "last_of_step" not in micro._read:
                    sampler._print("ranks may hang, or their weights differ: put forward and backward into "
                                   "`with micro.no_sync_unless_last(ddp):`, and the optimizer's step after `if micro.last_of_step:`")
        sampler._start = None
        if _training():
            sampler._trained = sampler.epoch


def _distributed():
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None


def _training():
    return getattr(sys.modules.get("torch"), "is_grad_enabled", lambda: True)()


def _ranks(rank, world_size):
    """Rank, number of ranks, and whether these may be fewer than torch.distributed has."""
    if (rank is None) != (world_size is None):
        raise Error("give BatchSampler both rank and world_size, or neither")
    if rank is not None:
        return rank, world_size, True
    if distributed := _distributed():
        return distributed.get_rank(), distributed.get_world_size(), False
    launched = lockstep._Identity()
    return launched.rank, launched.size, False


def _as_u32(values, name):
    is_list = isinstance(values, (list, tuple, range, array.array)) or getattr(values, "ndim", 0) > 0  # of numpy, PyTorch, pandas
    if not is_list or len(values) == 0:
        raise Error(f"BatchSampler's {name} must be a list with a whole number for each sample, and not empty, but is of the type "
                    f"{type(values).__name__}")
    numbers = numpy.asarray(values) if numpy.ndim(next(iter(values))) == 0 else numpy.empty((0, 0))
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise Error(f"BatchSampler's {name} must have a whole number for each sample, not its data: [len(sample) for sample in data]")
    if (wrong := ~((numbers >= 0) & (numbers < 2**32) & (numbers % 1 == 0))).any():
        raise Error(f"BatchSampler's {name} must be whole numbers in 0..2^32-1, but sample {wrong.argmax()} has {numbers[wrong.argmax()]}")
    return numpy.ascontiguousarray(numbers, dtype="<u4")


def _memory_file(numbers):
    try:
        fd = os.memfd_create("lockstep", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:
        fd = os.memfd_create("lockstep")
    except AttributeError:  # Python of conda, made for an older glibc
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(numbers)
    return fd


def use_worker_cpus(_=None):
    """For DataLoader(worker_init_fn=lockstep.use_worker_cpus): the calling process runs on the rank's worker CPUs
    (--pin=auto,workers=N), without them on all of the rank's CPUs. OpenMP binds the main thread to one, which a worker inherits.
    """
    text = os.environ.get("LOCKSTEP_WORKER_CPUS") or os.environ.get("LOCKSTEP_CPUS")
    if text:  # such as 0-3,8
        ranges = [[int(number) for number in part.split("-")] for part in text.split(",")]
        os.sched_setaffinity(0, {cpu for part in ranges for cpu in range(part[0], part[-1] + 1)})


def _find_tool():
    installed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../bin/lockstep-plan")
    if found := shutil.which("lockstep-plan") or shutil.which(installed):
        return found
    raise Error("lockstep-plan was not found: add the folder of Lockstep's programs to PATH")
