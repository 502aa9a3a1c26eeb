"""Memory limits, rows at once, and what is set for the time of a computation only."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam._network import limits
from sklearn_quam._network.inputs.sources import StoredArrays
from sklearn_quam._network.limits import _flushes, computing, memory_in_bytes, peak_bytes
from sklearn_quam._network.reference import build_reference

CPU = torch.device("cpu")


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, 1),
        (2.5e9, 2_500_000_000),
        (np.int64(4096), 4096),
        (np.float32(2.0), 2),
        ("7", 7),
        ("10 B", 10),
        (" 1G ", 10**9),
        ("512mb", 512 * 10**6),
        ("1.5 GiB", 3 * 2**29),
        (".5k", 500),
        ("3Ki", 3072),
        ("2TiB", 2**41),
    ],
)
def test_limits_in_bytes(limit, expected):
    result = memory_in_bytes(limit, CPU)
    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize("limit", ["", "GB", "much", "1GBB", "1 2GB", "1..5GB", "5iB", "-1GB"])
def test_nonsense_is_refused_by_name(limit):
    with pytest.raises(ValueError, match=r"memory_limit=.*'1GB'"):
        memory_in_bytes(limit, CPU)


@pytest.mark.parametrize("limit", [0, -2.5, math.nan, math.inf, "0.0 MiB", 0.5, "0.0001 kB"])
def test_limits_are_positive_and_finite(limit):
    with pytest.raises(ValueError, match=r"memory_limit=.*positive and finite"):
        memory_in_bytes(limit, CPU)


def test_default_on_an_accelerator_is_a_quarter_of_its_own(monkeypatch):
    asked = []

    def free_and_total(device):
        asked.append(device)
        return 8 * 10**9, 16 * 10**9

    monkeypatch.setattr(torch.cuda, "mem_get_info", free_and_total)
    assert memory_in_bytes(None, torch.device("cuda", 1)) == 2 * 10**9
    assert asked == [torch.device("cuda", 1)]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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


def test_tightest_limit_counts(monkeypatch):
    monkeypatch.setattr(limits, "_numbers", lambda _: {"MemAvailable:": 4})
    monkeypatch.setattr(limits, "_left_to_groups", lambda *_: iter([900, 5000]))
    assert memory_in_bytes(None, CPU) == 225
    monkeypatch.setattr(limits, "_left_to_groups", lambda *_: iter([5000]))
    assert memory_in_bytes(None, CPU) == 1024
    monkeypatch.setattr(limits, "_left_to_groups", lambda *_: iter([-5]))
    assert limits._free_bytes(CPU) == 1


def test_peak_counts_what_exists_at_the_same_time():
    given = torch.zeros(1000)

    def run():
        first = given + 1  # 4,000 bytes
        second = torch.cat([first, given[:10]])  # 4,040 more, views nothing
        del first
        return second.view(-1)[:5] + 1

    assert peak_bytes(run) == 8040


# -- gradients, and numbers too small to be normal ----------------------------------------------


@pytest.mark.parametrize("flushing", [True, False])
def test_what_the_caller_has_set_is_put_back(flushing):
    torch.set_flush_denormal(flushing)
    try:
        with computing():
            with computing():
                assert _flushes()
            assert _flushes()
        assert _flushes() == flushing
        with pytest.raises(KeyboardInterrupt), computing():
            raise KeyboardInterrupt
        assert _flushes() == flushing
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_allowed(mode):
    with mode(), computing():
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_memory_of_a_large_row_is_measured_with_as_many_rows_as_that_of_a_small_one():
    module = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool1d(2))
    source = StoredArrays((np.ones((16, 2**18), dtype=np.float32),))
    reference, _, _ = build_reference(module, source, task="classifier")
    assert reference.bytes_per_row >= 4 * 2**18
