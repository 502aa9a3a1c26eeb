"""Memory limits, rows at once, and what is set for the time of a computation only."""

import math
import os

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import HMCClassifier, PenaltySearch, QUAMClassifier, SWAGClassifier
from sklearn_quam._network import limits
from sklearn_quam._network.limits import _flushes, computing, memory_in_bytes

CPU = torch.device("cpu")
X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, 1),
        (1000, 1000),
        (2.5e9, 2_500_000_000),
        (np.int64(4096), 4096),
        (np.float32(2.0), 2),
        ("7", 7),
        ("10 B", 10),
        ("1GB", 10**9),
        ("1 gb", 10**9),
        (" 1G ", 10**9),
        ("512mb", 512 * 10**6),
        ("512MiB", 512 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("1.5GB", 1_500_000_000),
        (".5k", 500),
        ("3KiB", 3072),
        ("3Ki", 3072),
        ("2tb", 2 * 10**12),
        ("2TiB", 2**41),
    ],
)
def test_limits_in_bytes(limit, expected):
    result = memory_in_bytes(limit, CPU)
    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize(
    "limit",
    ["", "GB", "much", "1XB", "1GBB", "1 2GB", "1,5GB", "1..5GB", ".", "5iB", "-1GB", "1e9GB"],
)
def test_nonsense_is_refused_by_name(limit):
    with pytest.raises(ValueError, match=r"memory_limit=.*'1GB'"):
        memory_in_bytes(limit, CPU)


@pytest.mark.parametrize("limit", [0, -1, -2.5, 0.0, math.nan, "0", "0GB", "0.0 MiB"])
def test_limits_that_are_not_positive_are_refused(limit):
    with pytest.raises(ValueError, match=r"memory_limit=.*positive"):
        memory_in_bytes(limit, CPU)


@pytest.mark.parametrize("limit", [0.5, "0.5", "0.0001 kB"])
def test_less_than_a_byte_is_refused(limit):
    with pytest.raises(ValueError, match="memory_limit="):
        memory_in_bytes(limit, CPU)


def test_infinite_limit_is_refused_by_name():
    with pytest.raises(ValueError, match="memory_limit=inf"):
        memory_in_bytes(math.inf, CPU)


@pytest.fixture
def no_files(monkeypatch):
    """A system that tells nothing in files."""
    monkeypatch.setattr(limits, "_lines", lambda _: [])


def test_default_is_a_quarter_of_the_free_memory(no_files, monkeypatch):
    sizes = {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert memory_in_bytes(None, CPU) == 1000 * 1024


def test_default_on_an_accelerator_is_a_quarter_of_its_own(monkeypatch):
    asked = []

    def free_and_total(device):
        asked.append(device)
        return 8 * 10**9, 16 * 10**9

    monkeypatch.setattr(torch.cuda, "mem_get_info", free_and_total)
    assert memory_in_bytes(None, torch.device("cuda", 1)) == 2 * 10**9
    assert asked == [torch.device("cuda", 1)]


@pytest.mark.parametrize("error", [ValueError, OSError, AttributeError])
def test_default_where_the_system_does_not_tell(no_files, monkeypatch, error):
    def sysconf(name):
        raise error(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert memory_in_bytes(None, CPU) == limits._FALLBACK


def test_default_on_this_machine_is_plausible():
    assert 2**20 < memory_in_bytes(None, CPU) < 2**50


# -- gradients, and numbers too small to be normal ----------------------------------------------


@pytest.fixture(params=[True, False])
def flushing(request):
    torch.set_flush_denormal(request.param)
    yield request.param
    torch.set_flush_denormal(False)


def test_what_the_caller_has_set_is_put_back(flushing):
    assert _flushes() == flushing
    with computing():
        assert _flushes()
        with computing():
            assert _flushes()
        assert _flushes()
    assert _flushes() == flushing


def test_it_is_put_back_after_an_error(flushing):
    with pytest.raises(KeyboardInterrupt), computing():
        raise KeyboardInterrupt
    assert _flushes() == flushing


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_allowed(mode):
    with mode(), computing():
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    "method",
    [
        lambda net: QUAMClassifier(net, search=PenaltySearch(n_steps=3)),
        lambda net: SWAGClassifier(net, n_epochs=2),
        lambda net: HMCClassifier(net, n_samples=4, n_warmup=1, n_leapfrog=2),
    ],
)
def test_estimators_leave_the_setting_alone(method, flushing):
    torch.manual_seed(0)
    est = method(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))).fit(X, Y)
    est.predict_uncertainty(X)
    assert _flushes() == flushing


# -- free memory -----------------------------------------------------------------------------


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_pages_of_files_count_as_free(tmp_path):
    write(tmp_path / "meminfo", "MemTotal: 8000 kB\nMemFree: 100 kB\nMemAvailable: 6000 kB\n")
    assert limits._available(tmp_path) == 6000 * 1024
    assert limits._available(tmp_path / "not there") != 6000 * 1024


def test_limits_of_containers_of_the_second_version(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    write(proc / "self" / "cgroup", "0::/outer/inner\n")
    write(groups / "outer" / "memory.max", "1000000\n")
    write(groups / "outer" / "memory.current", "700000\n")
    write(groups / "outer" / "memory.stat", "anon 5\ninactive_file 100000\n")
    write(groups / "outer" / "inner" / "memory.max", "max\n")
    write(groups / "outer" / "inner" / "memory.current", "5\n")
    assert list(limits._left_to_groups(proc, groups)) == [400_000]
    # A container sees its own group as the root.
    write(proc / "self" / "cgroup", "0::/docker/f00\n")
    write(groups / "memory.max", "500000\n")
    write(groups / "memory.current", "100000\n")
    assert list(limits._left_to_groups(proc, groups)) == [400_000]


def test_limits_of_containers_of_the_first_version(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    write(proc / "self" / "cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    write(groups / "memory" / "a" / "memory.limit_in_bytes", "2000\n")
    write(groups / "memory" / "a" / "memory.usage_in_bytes", "1500\n")
    write(groups / "memory" / "a" / "memory.stat", "inactive_file 1\ntotal_inactive_file 300\n")
    write(groups / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    write(groups / "memory" / "memory.usage_in_bytes", "1\n")
    assert min(limits._left_to_groups(proc, groups)) == 800


def test_the_tightest_limit_counts(monkeypatch):
    monkeypatch.setattr(limits, "_available", lambda _: 4000)
    monkeypatch.setattr(limits, "_left_to_groups", lambda *_: iter([900, 5000]))
    assert limits.memory_in_bytes(None, torch.device("cpu")) == 225
    monkeypatch.setattr(limits, "_left_to_groups", lambda *_: iter([-5]))
    assert limits._free_bytes(torch.device("cpu")) == 1
    monkeypatch.setattr(limits, "_available", lambda _: None)
    monkeypatch.setattr(limits, "_left_to_groups", lambda *_: iter([]))
    assert limits._free_bytes(torch.device("cpu")) > 10**9
