"""The node's cache from Python: tensors through a real daemon, its faults, and what tells prefixes apart."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys

import pytest
import torch
from cache_daemon import Daemon
from harness import wait_until
from layered_models import Layered
from torch import Tensor, nn

from egeria import EgeriaError, _native
from egeria.activation_cache import PrefixStore, fingerprint
from egeria.modules import partition

JOB = "0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11"


def connect(cache_daemon: Daemon) -> _native.ActivationCache:
    cache = _native.ActivationCache(cache_daemon.address, JOB, shared_bytes=4 << 20, patience_seconds=2.0)
    wait_until(lambda: cache.attached, 20, "the cache")
    return cache


def rows(count: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, 6, 5, generator=generator).transpose(1, 2),
            torch.randint(0, 9, (count, 3), generator=generator), torch.randn(count, generator=generator).bfloat16(),
            torch.rand(count, 2, generator=generator) > 0.5)


def test_tensors_come_back_to_the_bit_whatever_their_types_and_strides(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    store = PrefixStore(cache, bytes(16))
    tensors = rows(40)
    assert store.get(range(40), range(40)) == [None] * 40
    store.put(range(40), range(40), tensors)
    assert cache.flush(20)
    found = store.get(list(range(50)), list(range(50)))
    assert found[40:] == [None] * 10
    for sample, row in enumerate(found[:40]):
        assert [part.dtype for part in row] == [tensor.dtype for tensor in tensors]
        assert all(torch.equal(part, tensor[sample]) for part, tensor in zip(row, tensors))
    assert store.get([3], [4]) == [None], "another input"
    assert PrefixStore(cache, bytes([1] * 16)).get([3], [3]) == [None], "another prefix"
    # Another process of the job, which has stored nothing itself.
    assert torch.equal(PrefixStore(connect(cache_daemon), bytes(16)).get([7], [7])[0][0], tensors[0][7])
    store.forget()
    assert cache.flush(20) and store.get([3], [3]) == [None]
    counters = cache.counters()
    assert counters["hits"] >= 40 and counters["other_input"] == 1 and counters["corrupt"] == 0


def test_a_cache_that_is_killed_gives_misses_and_takes_up_when_it_is_back(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    store = PrefixStore(cache, bytes(16))
    store.put(range(8), range(8), rows(8))
    assert cache.flush(20) and None not in store.get(range(8), range(8))
    cache_daemon.end(signal.SIGKILL)
    assert store.get(range(8), range(8)) == [None] * 8
    store.put(range(8), range(8), rows(8))
    cache_daemon.start()
    wait_until(lambda: cache.counters()["attached"] == 2, 20, "the cache to come back")
    store.put(range(8), range(8), rows(8))
    assert cache.flush(20)
    assert all(torch.equal(row[0], tensor) for row, tensor in zip(store.get(range(8), range(8)), rows(8)[0]))


def test_what_cannot_be_stored_is_said(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    with pytest.raises(EgeriaError, match="BAD_SHAPE.*3 samples, and a tensor of 2 rows"):
        cache.put(bytes(16), [1, 2, 3], [1, 2, 3], [torch.zeros(2, 2)])
    with pytest.raises(EgeriaError, match="BAD_SHAPE.*ComplexFloat"):
        cache.put(bytes(16), [1], [1], [torch.zeros(1, dtype=torch.complex64)])
    with pytest.raises(EgeriaError, match="BAD_CONFIG.*UUID"):
        _native.ActivationCache(cache_daemon.address, "job 7")
    with pytest.raises(EgeriaError, match="unix:/"):
        _native.ActivationCache("nowhere", JOB)
    with pytest.raises(ValueError, match="16 bytes"):
        cache.get(b"short", [1], [1], 10)


def test_the_fingerprint_tells_every_change_of_a_prefix():
    torch.manual_seed(0)
    model = Layered(norm=nn.BatchNorm1d)

    def of(changed: nn.Module, count: int = 2) -> bytes:
        return fingerprint(partition(changed)[:count])

    before = of(model)
    assert before == of(copy.deepcopy(model)) and len(before) == 16
    seen = {before, of(model, 1), of(model, 3)}
    for change in (
            lambda m: m.get_parameter(next(iter(dict(m.named_parameters())))).data.view(-1)[0].add_(1e-7),
            lambda m: next(buffer for buffer in m.buffers() if buffer.is_floating_point()).view(-1)[0].add_(1e-7),
            lambda m: m.eval(),
            lambda m: m.double(),
            lambda m: setattr(next(x for x in m.modules() if isinstance(x, nn.BatchNorm1d)), "eps", 1e-3)):
        other = copy.deepcopy(model)
        with torch.no_grad():
            change(other)
        seen.add(of(other))
    assert len(seen) == 8
    last = copy.deepcopy(model)
    with torch.no_grad():
        last.head.weight.add_(1)
    assert of(last) == before, "what is active does not matter"


@pytest.mark.parametrize("close", [True, False])
def test_a_process_ends_promptly_with_a_line_open(cache_daemon: Daemon, close: bool):
    script = ("import sys, torch\nfrom egeria import _native\n"
              f"cache = _native.ActivationCache({cache_daemon.address!r}, {JOB!r})\n"
              "cache.put(bytes(16), [1], [1], [torch.zeros(1, 10)])\n"
              f"if {close}: cache.close(); assert not cache.attached\n"
              "print('end')\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout == "end\n", done.stderr
