"""Processes that are started and killed by tests."""

import os
import signal
import subprocess
import sys
import time
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
    line = process.stdout.readline()
    assert line == "ready\n", process.stderr.read()
    return process


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
        process.wait(seconds)
    finally:
        for left in session_of(process):
            os.kill(left, signal.SIGKILL)
        process.communicate()
