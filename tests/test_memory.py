"""Memory limits, from what users write to bytes."""

import math
import os

import numpy as np
import pytest
import torch

from sklearn_quam import _memory
from sklearn_quam._network.limits import memory_in_bytes

CPU = torch.device("cpu")


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


def test_default_is_a_quarter_of_the_free_memory(monkeypatch):
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
def test_default_where_the_system_does_not_tell(monkeypatch, error):
    def sysconf(name):
        raise error(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert memory_in_bytes(None, CPU) == _memory._FALLBACK


def test_default_on_this_machine_is_plausible():
    assert 2**20 < memory_in_bytes(None, CPU) < 2**50
