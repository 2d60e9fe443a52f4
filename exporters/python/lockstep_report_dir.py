"""For lockstep.py: checks $LOCKSTEP_REPORT_DIR at the start, and saves the record there before a signal ends the process.

Threads: make a SignalWatch in the main thread; it may call `save` from a thread of its own.
"""

import ctypes
import os
import signal
import threading


def check(identity, print_line):
    """Better a line at the job's start than at its end."""
    folder = os.environ["LOCKSTEP_REPORT_DIR"]
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"this user may not write to {folder}")
    except OSError as error:
        print_line(f"{identity} will not be able to copy its record to LOCKSTEP_REPORT_DIR: {error}")


class SignalWatch:
    """Calls `save` when a signal ends this process; torchrun ends its ranks with SIGTERM, and Python then calls no atexit.

    A handler that the program has installed runs after `save`. If there is none the signal ends the process, as without
    this class. Python runs handlers between two instructions of the main thread, which may wait in a collective for a
    rank that no longer exists; so a thread learns of each signal too."""

    def __init__(self, save):
        self.save = save
        self.replaced = {}
        self.wakeup = -1
        self.ending = threading.Lock()
        self.mask = threading.local()  # of the signals that a forking thread had blocked
        self.set_handler = ctypes.CDLL(None).signal  # signal.signal() works only in the main thread
        caught = caught_signals()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            handler = signal.getsignal(number)
            if handler is signal.default_int_handler:
                continue  # raises KeyboardInterrupt: atexit follows
            # A handler of C code is unknown to Python, which takes it for the default.
            if callable(handler) or handler is signal.SIG_DFL and not caught >> (number - 1) & 1:
                self.replaced[number] = handler
                signal.signal(number, self.handle)
        if self.replaced:
            self._start_thread()
            os.register_at_fork(before=self.pause, after_in_parent=self.resume, after_in_child=self.forget)

    def _start_thread(self):
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        others = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if others != -1:  # the program has an event loop that waits for signals
            signal.set_wakeup_fd(others)
            os.close(read)
            os.close(write)
            return
        self.wakeup = write
        os.set_blocking(read, True)
        threading.Thread(target=self._wait, args=(read,), name="lockstep-signals", daemon=True).start()

    def _wait(self, fd):
        while numbers := self._read(fd):
            for number in numbers:
                if self.replaced.get(number) is signal.SIG_DFL and signal.getsignal(number) == self.handle:
                    self._end(number)

    @staticmethod
    def _read(fd):
        try:
            return os.read(fd, 64)
        except OSError:  # the program has closed all descriptors
            return b""

    def handle(self, number, frame):
        handler = self.replaced[number]
        if callable(handler):
            self.save()
            handler(number, frame)
        else:
            self._end(number)

    def _end(self, number):
        if self.ending.acquire(blocking=False):  # else the other thread does this
            try:
                self.save()
            finally:
                self.set_handler(int(number), None)
                os.kill(os.getpid(), number)

    def _set_wakeup(self, expected, fd):
        found = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        if found != expected:  # the program's, or none
            signal.set_wakeup_fd(found)

    def pause(self):
        """Before a fork: a signal to the new process must not wake this one's thread. It waits until the new process has its
        own handlers, because Python forgets there what arrived before."""
        self.mask.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, self.replaced)
        if threading.current_thread() is threading.main_thread():
            self._set_wakeup(self.wakeup, -1)

    def resume(self):
        if threading.current_thread() is threading.main_thread():
            self._set_wakeup(-1, self.wakeup)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask.blocked)

    def forget(self):
        """In a forked process, which is not recorded."""
        self._set_wakeup(self.wakeup, -1)
        for number, handler in self.replaced.items():
            if signal.getsignal(number) == self.handle:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask.blocked)


def caught_signals():
    """The signals that have a handler, as bits from that of signal 1 on."""
    with open("/proc/self/status", errors="replace") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
