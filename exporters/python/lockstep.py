"""Records where the time of a Python training job's steps goes, for lockstep-report, Prometheus and Grafana.

    import lockstep

    for batch in lockstep.batches(loader):
        with lockstep.phase("forward"):
            loss = model(batch)
        with lockstep.phase("backward"):
            loss.backward()
        with lockstep.phase("optimizer"):
            optimizer.step()
        lockstep.end_step(tokens=batch.numel())

Each rank writes its record into $LOCKSTEP_RECORD, which `sbatch --metrics=on` sets, and copies it to
$LOCKSTEP_REPORT_DIR when it ends, also by a signal (lockstep_report_dir.py). Where neither is set, rank 0 prints one line
and nothing is recorded. Errors never end the job: they print one line. The file is that of exporters/record/record.h.

The rank comes from the environment of torchrun (RANK, WORLD_SIZE, LOCAL_RANK), else of mpirun, else of srun. Needs Python
3.9 on Linux and no packages. Threads: call it from one thread, the one that trains. Processes that this one forks, such
as the workers of a DataLoader, record nothing.

lockstep.BatchSampler and lockstep.Pack are in lockstep_batches.py and lockstep_pack.py beside this file; they need numpy.
"""

import array
import atexit
import bisect
import contextlib
import fcntl
import importlib
import mmap
import os
import resource
import struct
import sys
import tempfile
import threading
import time
import zlib

__version__ = "0.1.0"
__all__ = ["PHASES", "batches", "begin_step", "end_step", "phase"]


def __getattr__(name):
    if name in ("BatchSampler", "Error", "Pack", "use_worker_cpus"):  # imported when they are used: recording needs no numpy
        return getattr(importlib.import_module("lockstep_pack" if name in ("Error", "Pack") else "lockstep_batches"), name)
    raise AttributeError(f"module 'lockstep' has no attribute '{name}'")


PHASES = ("data_wait", "host_to_device", "forward", "backward", "comm_exposed", "optimizer", "checkpoint", "other")

# record.h. All offsets and sizes below are in words of 8 bytes, except those of the header.
_VERSION = 3
_HEADER = struct.Struct("=8sIIQQIiiiqqQ64s64s")
_BOUNDS = tuple(bound * 10**decade for decade in range(7) for bound in (100000, 150000, 200000, 300000, 500000, 700000))[:37]
_BUCKETS = len(_BOUNDS) + 1
_PUBLICATIONS, _FINISHED, _PHASE, _PHASE_SINCE = 64, 65, 66, 67
# Resources: the fields of record.h that this module knows; the others stay 0.
_SAMPLED, _USER, _SYSTEM, _MEMORY, _PEAK, _FILES, _SHARED, _FAULTS, _READ, _READS, _STORAGE, _WAITED, _SWITCHED, _FIRST_STEP = (
    128 + word for word in (0, 1, 2, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20))
_SAMPLE_NS = 10**9
_COUNTERS, _RING, _RING_STEPS, _STEP_WORDS = 512, 1536, 512, 17
_FILE_WORDS = _RING + _RING_STEPS * _STEP_WORDS
# In Counters.
_STEPS, _STEP_NS, _PHASE_NS, _TOKENS, _SAMPLES, _PADDING, _FROM_PYTHON, _LAST_END, _STEP_HISTOGRAM = 0, 1, 2, 12, 13, 14, 17, 19, 20
_PHASE_HISTOGRAM = _STEP_HISTOGRAM + _BUCKETS
_COUNTERS_WORDS = _PHASE_HISTOGRAM + len(PHASES) * _BUCKETS + 1  # the last is of C++ only
_NO_RANK = 2**64 - 1
_OTHER = PHASES.index("other")
_MAX_PROGRAMS = 1024

# Slurm's last: a rank that mpirun starts in a job also has Slurm's variables, those of mpirun's daemon.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # Hydra: MPICH, Intel MPI; srun --mpi=pmi2 lacks the third
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def _number(name, limit=2**31):
    text = (os.environ.get(name) or "0").strip()
    if not text.isdecimal() or len(text) > 20 or int(text) >= limit:
        raise ValueError(f"the environment variable {name} is not an integer in 0..{limit - 1}: {text[:80]!r}")
    return int(text)


def _job_of_launcher():
    """Without Slurm: a number that all ranks share. Their parent processes may differ."""
    of_job = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE")]
    return zlib.crc32(" ".join(of_job).encode()) or 1 if any(of_job) else os.getppid()


class _Identity:
    """The rank, from the environment. Raises ValueError if a variable is not an integer."""

    def __init__(self):
        # Programs that set RANK and WORLD_SIZE themselves may not set LOCAL_RANK.
        found = next((names for names in _LAUNCHERS
                      if all(os.environ.get(name) or name == "LOCAL_RANK" for name in names)), None)
        self.rank, self.size, self.local_rank = [_number(name) for name in found] if found else (0, 1, 0)
        self.job = _number("SLURM_JOB_ID", 2**63) or _job_of_launcher()
        step = os.environ.get("SLURM_STEP_ID", "")
        self.step = int(step) if step.isdecimal() and int(step) < 2**32 else 0
        self.node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        self.program = os.path.basename(sys.argv[0]) if sys.argv else ""

    def __str__(self):
        return f"rank {self.rank} on {self.node}"

    def file(self):
        return f"rank-{self.rank:06}.record"

    def header(self):
        return _HEADER.pack(
            b"LOCKSTEP", _VERSION, _HEADER.size, _FILE_WORDS * 8, self.job, self.step, self.rank, self.size, self.local_rank,
            os.getpid(), time.time_ns(), time.monotonic_ns(), _name(self.node), _name(self.program))


def _name(text):
    """The longest beginning of whole characters that fits the record."""
    return text.encode(errors="replace")[:63].decode(errors="ignore").encode()  # bytes that are not UTF-8 become "?"


def _write_new(path, fill, publish=os.rename):
    """Makes a file under a temporary name, lets fill(fd) write it, and renames it. Returns what fill returned."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        os.fchmod(fd, 0o640)  # for the folder's group, whatever the umask
        result = fill(fd)
        publish(temporary, path)
        return result
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)


def _lock(fd):  # Python of conda lacks the name F_OFD_SETLK
    fcntl.fcntl(fd, getattr(fcntl, "F_OFD_SETLK", 37), struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def _mapped(fd):
    # Reserves the space, so that a full file system is an error here and not a SIGBUS later. The lock says that this
    # process lives. The mapping keeps a duplicate of the descriptor, and with it the lock.
    os.posix_fallocate(fd, 0, _FILE_WORDS * 8)
    _lock(fd)
    return mmap.mmap(fd, _FILE_WORDS * 8)


def _replace_unless_live(temporary, path):
    """Like os.rename, but raises BlockingIOError if a living process has the lock on the record at path."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _lock(fd)  # also against another process that finds the same dead record now
            os.rename(temporary, path)
        finally:
            os.close(fd)
    except OSError:  # a file system without links
        os.rename(temporary, path)
    else:
        os.unlink(temporary)


class _Record:
    """The rank's file, as exporters/record/record.h writes it; without a folder only memory, for the copy at the end."""

    def __init__(self, identity, folder, report):
        self.identity = identity
        self.folder, self.report = (os.path.abspath(path) if path else None for path in (folder, report))  # chdir may follow
        # Stores through a view of 8-byte words are single stores; struct.pack_into would write byte by byte.
        self.memory = self._make_file() if folder else self._fill(None)
        self.words = memoryview(self.memory).cast("Q")
        self.totals = array.array("Q", bytes(_COUNTERS_WORDS * 8))
        self.totals[_FROM_PYTHON] = 1
        self.sampled_ns = self.copy_due_ns = 0
        self.io_before = _proc("io")  # imports are not the training's reads
        self.fence_lock = threading.Lock()

    def _make_file(self):
        # Independent programs in one step may each be rank 0 of 1: then each takes the next free rank.
        first = self.identity.rank
        for _ in range(_MAX_PROGRAMS):
            try:
                memory = _write_new(os.path.join(self.folder, self.identity.file()), self._fill, _replace_unless_live)
            except BlockingIOError:
                self.identity.rank += 1
                continue
            if self.identity.rank != first:
                _print(f"another program records as rank {first} in {self.folder}; this one's record is that of rank "
                       f"{self.identity.rank}")
            return memory
        raise FileExistsError(f"{_MAX_PROGRAMS} other programs record there, from rank {first} on")

    def _fill(self, fd):
        memory = bytearray(_FILE_WORDS * 8) if fd is None else _mapped(fd)
        memory[: _HEADER.size] = self.identity.header()
        memory[_PHASE * 8 : _PHASE * 8 + 8] = struct.pack("=Q", len(PHASES))
        return memory

    def set_doing(self, phase, now):
        self.words[_PHASE_SINCE] = now
        self.words[_PHASE] = phase

    def end_step(self, step_ns, phase_ns, end_ns, tokens, samples, padding):
        totals = self.totals
        index = totals[_STEPS]
        if index == 0:
            self.words[_FIRST_STEP] = max(0, end_ns - step_ns)
        if end_ns - self.sampled_ns >= _SAMPLE_NS:
            self._sample(end_ns)
        step = array.array("Q", (index, end_ns, step_ns, *phase_ns, 0, 0, _NO_RANK, tokens, padding, 0))
        totals[_STEPS] += 1
        totals[_STEP_NS] += step_ns
        totals[_STEP_HISTOGRAM + bisect.bisect_left(_BOUNDS, step_ns)] += 1
        for phase, ns in enumerate(phase_ns):
            totals[_PHASE_NS + phase] += ns
            totals[_PHASE_HISTOGRAM + phase * _BUCKETS + bisect.bisect_left(_BOUNDS, ns)] += 1
        totals[_TOKENS] += tokens
        totals[_SAMPLES] += samples
        totals[_PADDING] += padding
        totals[_LAST_END] = end_ns
        slot = _RING + index % _RING_STEPS * _STEP_WORDS
        self.words[slot : slot + _STEP_WORDS] = step
        self._publish()
        if not self.folder and end_ns >= self.copy_due_ns:  # SIGKILL and os._exit would lose what is only in memory
            self.copy_due_ns = end_ns + 30 * _SAMPLE_NS
            self.save()

    def _sample(self, now):
        self.sampled_ns = now
        used = resource.getrusage(resource.RUSAGE_SELF)
        status, io = _proc("status"), _proc("io")
        self.words[_USER], self.words[_SYSTEM] = int(used.ru_utime * 1e9), int(used.ru_stime * 1e9)
        self.words[_FAULTS], self.words[_WAITED], self.words[_SWITCHED] = used.ru_majflt, used.ru_nvcsw, used.ru_nivcsw
        self.words[_MEMORY], self.words[_PEAK] = status.get("VmRSS", 0) * 1024, status.get("VmHWM", 0) * 1024
        self.words[_FILES], self.words[_SHARED] = status.get("RssFile", 0) * 1024, status.get("RssShmem", 0) * 1024
        self.words[_READ], self.words[_READS], self.words[_STORAGE] = (
            max(0, io.get(name, 0) - self.io_before.get(name, 0)) for name in ("rchar", "syscr", "read_bytes"))
        self.words[_SAMPLED] = now

    def _publish(self):
        # Fills the copy that readers do not use, then says that it is the latest.
        number = self.words[_PUBLICATIONS] + 1
        slot = _COUNTERS + number % 2 * _COUNTERS_WORDS
        self.words[slot : slot + _COUNTERS_WORDS] = self.totals
        self._fence()
        self.words[_PUBLICATIONS] = number
        self._fence()  # the next copy must not become visible before this number, which readers check last

    def _fence(self):
        # Stores stay before a release and after an acquire. A signal's handler may have raised an exception between the two.
        if self.fence_lock.locked():
            self.fence_lock.release()
        self.fence_lock.acquire(blocking=False)

    def finish(self):
        self.words[_PHASE] = len(PHASES)
        self._sample(time.monotonic_ns())
        self._publish()
        self.words[_FINISHED] = time.time_ns()

    def save(self):
        """Copies what is recorded so far to $LOCKSTEP_REPORT_DIR; from any thread."""
        try:
            if self.report and self.words is not None:
                self._copy_to(self.report)
        except OSError as error:
            _print_once(f"{self.identity} cannot copy its record to LOCKSTEP_REPORT_DIR: {error.strerror}: check that {self.report} "
                        "is a folder that this user may write to, with space")

    def _copy_to(self, folder):
        content = bytes(self.memory)  # at once: no step ends meanwhile
        _write_new(os.path.join(folder, self.identity.file()), lambda fd: _write_all(fd, content))
        staging = os.path.join(self.folder, "staging.json") if self.folder else ""
        if self.identity.local_rank == 0 and os.path.exists(staging):
            with open(staging, "rb") as file:
                content = file.read()
            _write_new(os.path.join(folder, f"staging-{self.identity.node}.json"), lambda fd: _write_all(fd, content))

    def close(self):
        self.words = self.words.release()
        if isinstance(self.memory, mmap.mmap):
            self.memory.close()


def _proc(name):
    """The numbers of a file in /proc/self; empty if it cannot be read."""
    try:
        with open(f"/proc/self/{name}", errors="replace") as file:  # a process may have any name
            lines = (line.split(":", 1) for line in file)
            return {key: int(text.split()[0]) for key, text in lines if text.split()[:1] and text.split()[0].isdigit()}
    except OSError:
        return {}


def _write_all(fd, content):
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)


def _print(line):
    try:
        print(f"lockstep: {line}", file=sys.stderr or sys.__stderr__, flush=True)
    except Exception:  # a closed or full standard error, or one that the program has replaced
        pass


_printed = set()


def _print_once(line):
    if line not in _printed and len(_printed) < 8:  # values in it may be different in each step
        _printed.add(line)
        _print(line)


def _make_record():
    """The rank's record, or None after a line that says why there is none and what to do."""
    wanted = os.environ.get("LOCKSTEP_METRICS") or "on"
    worker = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", lambda: None)  # also one that is not forked
    if wanted == "off" or worker():
        return None
    folder, report = os.environ.get("LOCKSTEP_RECORD"), os.environ.get("LOCKSTEP_REPORT_DIR")
    identity = None
    try:
        identity = _Identity()
        if wanted != "on":
            raise ValueError(f"LOCKSTEP_METRICS='{wanted}' must be on or off")
        if report and identity.local_rank == 0:
            with contextlib.suppress(ImportError):
                importlib.import_module("lockstep_report_dir").check(identity, _print)
        if folder or report:
            return _Record(identity, folder, report)
        if identity.rank == 0:
            _print("step times are not recorded, because LOCKSTEP_RECORD is not set: submit the job with --metrics=on, or set "
                   "LOCKSTEP_REPORT_DIR to a folder for the report")
    except (OSError, ValueError) as error:
        where = identity or f"a rank on {os.uname().nodename}"
        if isinstance(error, ValueError):
            _print(f"{where} cannot record its step times: {error}")
        else:
            _print(f"{where} cannot record its step times in {folder or report}: {error}: check "
                   "that the folder exists, is this user's, and has space")
    return None


class _Timer:
    """Phases and steps of this process. A phase inside another one does not count for the outer one."""

    def __init__(self, record):
        self.record = record
        self.outer, self.current = [], _OTHER  # outer: of the open phases
        self.begun = False  # the first phase, or begin_step(), begins the first step
        self.phase_ns = [0] * len(PHASES)
        self.step_begin = self.mark = time.monotonic_ns()

    def begin_step(self):
        self.phase_ns = [0] * len(PHASES)
        self.step_begin = self.mark = time.monotonic_ns()
        self.begun = True

    def enter(self, phase):
        now = time.monotonic_ns()
        if self.begun:
            self.phase_ns[self.current] += now - self.mark
        else:
            self.begun = True
            self.step_begin = now
        self.mark = now
        self.current = phase
        if self.record:
            self.record.set_doing(phase, now)

    def end_step(self, tokens, samples, padding):
        if not self.begun:
            self.begin_step()
            return
        self.enter(self.current)
        if self.record:
            self.record.end_step(self.mark - self.step_begin, self.phase_ns, self.mark, tokens, samples, padding)
        self.step_begin = self.mark
        self.phase_ns = [0] * len(PHASES)

    def finish(self):
        record, self.record = self.record, None
        if not record:
            return
        error = sys.exc_info()[1]  # of a process of multiprocessing; of other programs the last_type
        if not hasattr(sys, "last_type") and not getattr(error, "code", error):  # else this rank has not finished
            record.finish()
        record.save()
        record.close()

    def forget(self):
        """In a forked process: the record is the parent's, and must not look alive when only this process is left."""
        record, self.record = self.record, None
        if record:
            record.close()


_timer = None


def _this_timer():
    global _timer
    if _timer is None:
        _timer = _Timer(_make_record())
        atexit.register(_timer.finish)
        if processes := sys.modules.get("multiprocessing.util"):  # those that it starts call no atexit
            processes.Finalize(None, _timer.finish, exitpriority=0)
        os.register_at_fork(after_in_child=_timer.forget)
        if _timer.record and _timer.record.report:
            with contextlib.suppress(ImportError, OSError, ValueError):  # this file alone; not the main thread
                importlib.import_module("lockstep_report_dir").SignalWatch(_timer.record.save)
    return _timer


class _Scope:
    def __init__(self, phase):
        self.phase = phase

    def __enter__(self):
        timer = _this_timer()
        timer.outer.append(timer.current)
        timer.enter(self.phase)

    def __exit__(self, *_):
        _timer.enter(_timer.outer.pop())


_SCOPES = {name: _Scope(number) for number, name in enumerate(PHASES)}


def phase(name):
    """A context manager: the time inside, except that of inner phases, belongs to this phase of the step.

    If name is not one of PHASES, it prints a line, and the time belongs to `other`. On a GPU an operation only starts there:
    without torch.cuda.synchronize() its time appears in the phase that waits for it.
    """
    if name not in _SCOPES:
        _print_once(f"phase('{name}') counts as 'other': use one of {', '.join(PHASES)}")
        return _SCOPES["other"]
    return _SCOPES[name]


class _Batches:
    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        with phase("data_wait"):  # starts the workers of a DataLoader
            iterator = iter(self.loader)
        while True:
            with phase("data_wait"):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch


def batches(loader):
    """Yields what the loader yields, and has its len(). The time until each batch arrives is the phase data_wait."""
    return _Batches(loader)


def begin_step():
    """Begins the step now: the time since the end of the last step, an evaluation for example, belongs to no step."""
    _this_timer().begin_step()


def end_step(tokens=0, samples=0, padding=0):
    """Ends the step and begins the next one. Time outside all phases counts as `other`.

    If neither a phase nor begin_step() has begun the first step, the first call begins it and records nothing: nobody knows
    when the work before it began.

    The arguments are this rank's amounts of work in the step: integers, or anything that int() takes; padding tokens do
    not count as tokens. For one that is not a number from 0 on it prints a line, and counts 0.
    """
    _this_timer().end_step(_count("tokens", tokens), _count("samples", samples), _count("padding", padding))


def _count(name, value):
    with contextlib.suppress(Exception):  # a tensor has its own
        count = int(value)
        if 0 <= count < 2**63:
            return count
    _print_once(f"end_step({name}={' '.join(repr(value).split())[:80]}) counts as 0: {name} must be a whole number from 0 on")
    return 0
