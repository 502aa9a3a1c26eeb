"""Processes that are started and killed by tests."""

import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(folder, result, *, n_jobs=1, n_steps=10, seconds=0.0):
    """Start a run, and return it when it is about to ask for uncertainties."""
    arguments = (folder, result, n_jobs, n_steps, seconds)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.survival.run", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    line = line_of(process)
    if line != "ready\n":
        finish(process, 0)
    assert line == "ready\n"
    return process


def line_of(process, seconds=120):
    """Return the next line that a run writes, or nothing where none comes in time."""
    if select.select([process.stdout], [], [], seconds)[0]:
        return process.stdout.readline()
    return None


def apart(function, *arguments):
    """Call a function in a process of its own, and once more where it does not come back.

    Workers that are killed may take a lock of the pool with them, which is nothing that those who
    use the pool can mend; it is rare.
    """
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        process = spawn.Process(target=_alone, args=(function, *arguments))
        process.start()
        process.join(400)
        came_back = process.exitcode is not None
        # Its workers, and itself if it is still there.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        if came_back:
            assert process.exitcode == 0
            return
    raise AssertionError("It hangs, twice.")


def _alone(function, *arguments):
    os.setsid()
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # At once: whoever started processes would wait for them.
    os._exit(0)


def session_of(process):
    """Return the processes of the session that a run has started, itself among them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_until_gone(process, seconds):
    """Return what is left of a session after some time, at the most."""
    end = time.monotonic() + seconds
    while (left := session_of(process)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def finish(process, seconds=120):
    """Wait for a run; whatever is left of it is killed."""
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    finally:
        for left in session_of(process):
            os.kill(left, signal.SIGKILL)
        process.communicate()
