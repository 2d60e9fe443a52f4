"""Cases of bench_stage with a slow or busy node, or without a network between the nodes. Each copies the same data to all nodes
without the fault and with it, in turn."""

import contextlib
import os
import subprocess
import threading
import time

from ranks import Failure

SLOW_SYNC_MS = 200
HOLDER_RATE = 100e6  # bytes per second
AWAY_SECONDS = 20


def wait_for(condition, what, seconds=60, ended=threading.Event()):
    until = time.monotonic() + seconds
    while not condition() and not ended.is_set():
        if time.monotonic() > until:
            raise Failure(f"{what} did not happen within {seconds} s")
        time.sleep(0.005)


def together(world, mounts, meter, **more):
    """Returns the seconds, the nodes' outputs and the bytes that all nodes have read from the source."""
    before = meter()
    seconds, said = world.put_together(mounts, **more)
    return seconds, said, meter() - before


@contextlib.contextmanager
def at_half(world, meter, act):
    """While the block runs, calls `act` as soon as half of the data has been read from the source."""
    failed, ended = [], threading.Event()

    def watch():
        try:
            wait_for(lambda: meter() >= world.size // 2, "half of the copy", ended=ended)
            act()
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            failed.append(failure)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise Failure(str(failed[0]))


def slow_disk(world, **settings):
    """The environment of a process with a slow disk: tests/bench/slow_disk.cpp."""
    preload = {"LD_PRELOAD": str(world.programs / "libslow_disk.so")}
    return preload | {name.upper(): str(value) for name, value in settings.items()}


def at_least(seconds, found):
    if found[0] < seconds:
        raise Failure(f"the copy took {found[0]:.3f} s: the disk was not slow")
    return found


def slow_fsync(world, mounts, meter, wrong):
    """Each fsync of each node takes 200 ms longer."""
    if not wrong:
        return together(world, mounts, meter)
    return at_least(5 * SLOW_SYNC_MS / 1e3, together(world, mounts, meter, environment=slow_disk(world, slow_sync_ms=SLOW_SYNC_MS)))


def slow_holder(world, mounts, meter, wrong):
    """The first node has the data, and reads it at 100 MB/s."""
    world.put(mounts[0] / "data", 0)
    slow = slow_disk(world, slow_read_under=world.cache(0), slow_read_rate=HOLDER_RATE)
    if not wrong:
        return together(world, mounts, meter)
    return at_least(world.size / HOLDER_RATE, together(world, mounts, meter, first_environment=slow))


def busy_node(world, mounts, meter, wrong):
    """Another process copies the same data to the last node, at 1 MB/s."""
    if not wrong:
        return together(world, mounts, meter)
    last = len(mounts) - 1
    with world.start_put(mounts[last] / "data", last, "--bandwidth", "1M") as other:
        wait_for(lambda: list(world.cache(last).glob("objects/.incoming-*")), "the other copy")
        found = together(world, mounts, meter)
        if other.poll() is not None:
            raise Failure("the other copy ended before the nodes had theirs")
        other.kill()
    return found


@contextlib.contextmanager
def network():
    """Yields the words that run a command in a network of its own, and a function that sets that network "up" or "down"."""
    name = f"lockstep-bench-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]

    def link(state):
        subprocess.run([*inside, "ip", "link", "set", "lo", state], check=True)

    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        link("up")
        yield inside, link
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


def network_away(world, mounts, meter, wrong):
    """From half of the copy on, no byte passes between the nodes for 20 s."""
    with network() as (inside, link):

        def away():
            link("down")
            time.sleep(AWAY_SECONDS)
            link("up")

        if not wrong:
            return together(world, mounts, meter, before=inside)
        with at_half(world, meter, away):
            found = together(world, mounts, meter, before=inside)
        if found[0] < AWAY_SECONDS:
            raise Failure("the copy ended before the network was away")
        return found


FAULTS = {case.__name__: case for case in (slow_fsync, slow_holder, busy_node, network_away)}
