"""The node's cache from Python: tensors through a real daemon, its faults, and what tells prefixes apart."""

from __future__ import annotations

import copy
import pathlib
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from cache_daemon import Daemon
from harness import wait_until
from layered_models import Layered
from torch import Tensor, nn

from egeria import EgeriaError, _native
from egeria.cache.model_call import Call
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.prefix_store import PrefixStore, fingerprint
from egeria.model.modules import partition

JOB = "0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11"
PATIENCE = 300.0  # seconds with whatever is waited for


def connect(cache_daemon: Daemon, **options: Any) -> _native.ActivationCache:
    options = {"shared_bytes": 4 << 20, "patience_seconds": PATIENCE, **options}
    cache = _native.ActivationCache(cache_daemon.address, JOB, **options)
    wait_until(lambda: cache.attached, PATIENCE, "the cache")
    return cache


@pytest.fixture
def small_daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """Its quota is a fourth of 1,000 samples of 10,000 bytes, and its memory a part of that."""
    daemon = Daemon(tmp_path, options=["--quota", "2500KiB", "--write-buffer", "1MiB", "--memory", "1MiB"])
    daemon.start()
    yield daemon
    daemon.end(signal.SIGKILL)


def flip_bits(folder: pathlib.Path, count: int, generator: random.Random) -> None:
    """Flips bits in the files that hold entries."""
    for file in folder.glob("*.blob"):
        content = bytearray(file.read_bytes())
        for _ in range(min(count, len(content))):
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        file.write_bytes(content)


def rows(count: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 6, 5, generator=generator).transpose(1, 2),
        torch.randint(0, 9, (count, 3), generator=generator),
        torch.randn(count, generator=generator).bfloat16(),
        torch.rand(count, 2, generator=generator) > 0.5,
    )


def missing(store: PrefixStore, ids: Sequence[int], hashes: Sequence[int] | None = None) -> list[str]:
    """Why samples are not found."""
    return list(store.get(ids, ids if hashes is None else hashes, PATIENCE)[1])


def test_tensors_come_back_to_the_bit_whatever_their_types_and_strides(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    store = PrefixStore(cache, bytes(16))
    tensors = rows(40)
    assert missing(store, range(40)) == ["absent"] * 40
    store.put(range(40), range(40), tensors)
    assert cache.flush(PATIENCE)
    found, reasons = store.get(range(50), range(50), PATIENCE)
    assert list(reasons) == [""] * 40 + ["absent"] * 10
    assert [part.dtype for part in found] == [tensor.dtype for tensor in tensors]
    assert all(torch.equal(part[:40], tensor) for part, tensor in zip(found, tensors))
    assert missing(store, [3], [4]) == ["other_input"]
    assert missing(PrefixStore(cache, bytes([1] * 16)), [3]) == ["absent"], "another prefix"
    # Another process of the job, which has stored nothing itself.
    other = PrefixStore(connect(cache_daemon), bytes(16))
    assert torch.equal(other.get([7], [7], PATIENCE)[0][0][0], tensors[0][7])
    store = PrefixStore(cache, bytes(16))
    store.forget()
    assert cache.flush(PATIENCE) and missing(store, [3]) == ["absent"]
    counters = cache.counters()
    assert counters["hits"] >= 40 and counters["other_input"] == 1 and counters["corrupt"] == 0


@pytest.mark.parametrize("format", ["lz4", "zstd"])
def test_compressed_activations_come_back_to_the_bit_also_to_one_with_another_format(cache_daemon: Daemon, format: str):
    cache = connect(cache_daemon, format=format)
    store = PrefixStore(cache, bytes(16), format)
    tensors = (*rows(120), torch.randn(120, 4, 500).relu())
    store.put(range(120), range(120), tensors)
    assert cache.flush(PATIENCE)
    for reader in (cache, connect(cache_daemon)):
        found, reasons = PrefixStore(reader, bytes(16)).get(range(120), range(120), PATIENCE)
        assert list(reasons) == [""] * 120
        assert all(torch.equal(part, tensor) for part, tensor in zip(found, tensors))
    counters = cache.counters()
    assert 0.4 < counters["format_bytes"] / counters["exact_bytes"] < 0.97 and counters["rounding"] == 0
    assert store.as_kept(tensors) is tensors


@pytest.mark.parametrize("format", ["fp16", "bf16", "int8"])
def test_rounded_activations_are_what_torch_rounds_and_nobody_else_gets_them(cache_daemon: Daemon, format: str):
    cache = connect(cache_daemon, format=format)
    store = PrefixStore(cache, bytes(16), format)
    scales = torch.logspace(-9, 4, 600) if format != "int8" else torch.tensor(1.0)
    wide = torch.cat([torch.randn(150, 600) * scales, torch.tensor([[0.0, -0.0]] * 150)], 1)
    tensors = (*rows(150), wide)
    store.put(range(150), range(150), tensors)
    assert cache.flush(PATIENCE)
    found, reasons = store.get(range(150), range(150), PATIENCE)
    assert list(reasons) == [""] * 150
    expected = store.as_kept(tensors)
    assert all(torch.equal(part, tensor) for part, tensor in zip(found, expected))
    assert format == "int8" or torch.equal(found[4].signbit(), wide.signbit())
    assert not torch.equal(expected[4], wide) and torch.equal(store.as_kept(expected)[4], expected[4])
    counters = cache.counters()
    assert 0 < counters["rounding"] < counters["largest_rounding"] < 0.1
    assert counters["format_bytes"] < 0.6 * counters["exact_bytes"]
    other = {"fp16": "bf16", "bf16": "int8", "int8": "fp16"}[format]
    for reader in (connect(cache_daemon), connect(cache_daemon, format=other)):
        assert missing(PrefixStore(reader, bytes(16)), range(150)) == ["absent"] * 150
    store = PrefixStore(cache, bytes(16), format)
    store.forget()
    assert cache.flush(PATIENCE) and missing(store, [3]) == ["absent"]


@pytest.mark.parametrize("format", ["exact", "auto", "zstd", "fp16", "int8"])
def test_a_quota_of_a_fourth_of_the_data_gives_hits_as_far_as_it_goes_and_nothing_wrong(
    small_daemon: Daemon, format: str
):
    size = 4 * 2500  # a sample takes so much, and all take 10 MB
    cache = connect(small_daemon, format=format)
    store = PrefixStore(cache, bytes(16), format)
    activations = torch.randn(1000, size // 4).relu()
    batches = [range(first, first + 50) for first in range(0, 1000, 50)]
    for batch in batches:
        for _ in range(3):  # the disk may be behind
            store.put(batch, batch, [activations[list(batch)]])
            assert cache.flush(PATIENCE)
    hits = 0
    for batch in batches:
        found, reasons = store.get(batch, batch, PATIENCE)
        expected = store.as_kept([activations[list(batch)]])[0]
        for row, reason in enumerate(reasons):
            assert reason in ("", "absent")
            assert reason or torch.equal(found[0][row], expected[row])
            hits += not reason
    least = {"exact": 200, "auto": 260, "zstd": 320, "fp16": 420, "int8": 800}[format]
    assert least <= hits < 1000, hits


@pytest.mark.parametrize("format", ["exact", "zstd", "int8"])
def test_whatever_befalls_the_daemon_in_an_epoch_nothing_wrong_is_served(cache_daemon: Daemon, format: str):
    cache = connect(cache_daemon, format=format, patience_seconds=0.25)
    store = PrefixStore(cache, bytes(16), format)
    activations = torch.randn(640, 16, 64).relu()
    expected = store.as_kept([activations])[0]
    generator = random.Random(1)
    hits = after_faults = 0
    for step in range(120):
        batch = generator.sample(range(640), 32)
        store.expect([batch])
        found, reasons = store.get(batch, batch, 1.0)
        for row, (sample, reason) in enumerate(zip(batch, reasons)):
            assert reason or torch.equal(found[0][row], expected[sample]), (step, sample)
        hits += reasons.count("")
        after_faults += step >= 100 and reasons.count("")
        missed = [sample for sample, reason in zip(batch, reasons) if reason]
        store.put(missed, missed, [activations[missed]])
        if step in (30, 60, 90):
            cache.flush(PATIENCE)
            cache_daemon.end(signal.SIGKILL if step == 30 else signal.SIGTERM)
            flip_bits(cache_daemon.folder, 300 if step == 90 else 0, generator)
            cache_daemon.start()
        if step == 45:
            cache_daemon.process.send_signal(signal.SIGSTOP)
        if step == 50:
            cache_daemon.process.send_signal(signal.SIGCONT)
        if not 45 <= step < 50:  # a training waits for nothing, but this test wants hits
            wait_until(lambda: cache.attached, PATIENCE, "the cache")
            cache.flush(PATIENCE)
    assert hits > 1000 and after_faults > 300 and cache.counters()["corrupt"] > 0


def test_batches_that_are_expected_are_read_ahead(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    store = PrefixStore(cache, bytes(16))
    store.put(range(40), range(40), rows(40))
    assert cache.flush(PATIENCE)
    store.expect([range(0, 20), range(20, 40)])
    wait_until(lambda: cache.counters()["bytes_read"] > 0, PATIENCE, "the first batch")
    assert missing(store, range(0, 20)) == missing(store, range(20, 40)) == [""] * 20
    counters = cache.counters()
    assert counters["batches_ahead"] + counters["batches_waited_for"] == 2 and counters["batches_late"] == 0


def test_several_caches_of_a_process_work_side_by_side(cache_daemon: Daemon):
    caches = [connect(cache_daemon) for _ in range(3)]
    stores = [PrefixStore(cache, bytes([place] * 16)) for place, cache in enumerate(caches)]
    tensors = [rows(40, seed) for seed in range(3)]
    for store, mine in zip(stores, tensors):
        store.put(range(40), range(40), mine)
    assert all(cache.flush(PATIENCE) for cache in caches)
    batches = [range(at, at + 10) for at in range(0, 40, 10)]
    for batch in [batches[-1], *batches[:-1]] * 5:  # each expects what the next turn asks for
        for store, mine in zip(stores, tensors):
            found, reasons = store.get(batch, batch, PATIENCE)
            assert list(reasons) == [""] * 10
            assert all(torch.equal(part, tensor[list(batch)]) for part, tensor in zip(found, mine))
        for store in stores:
            store.expect(batches)
    stores[1].forget()
    assert caches[1].flush(PATIENCE) and missing(stores[1], [3]) == ["absent"]
    caches[1].close()
    assert missing(stores[0], [3]) == missing(stores[2], [3]) == [""]
    assert all(cache.counters()["batches_ahead"] > 0 for cache in caches)


def test_rows_of_different_lengths_are_kept_without_their_padding(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    store = PrefixStore(cache, bytes(16), ragged=True)
    lengths = [1 + 7 * sample % 13 for sample in range(40)]
    hidden, pooled, loss = torch.randn(40, 16, 5), torch.randn(40, 3), torch.randn(40)
    store.put(range(40), range(40), (hidden, pooled, loss), (lengths, [], []))
    assert cache.flush(PATIENCE) and cache.counters()["stored"] == 40
    other = connect(cache_daemon)
    PrefixStore(other, bytes(16), ragged=True)
    for reader in (cache, other):
        for batch in ([3, 9, 3], list(range(39, -1, -1)), [12, 77, 5]):
            found, reasons, kept = reader.take_ragged(batch, batch, PATIENCE)
            assert list(reasons) == ["absent" if sample == 77 else "" for sample in batch]
            known = [sample for sample in batch if sample < 40]
            assert found[0].shape == (len(batch), max(lengths[sample] for sample in known), 5)
            assert [list(of) for of in kept] == [
                [lengths[sample] if sample < 40 else 0 for sample in batch],
                [3 if sample < 40 else 0 for sample in batch],
                [],
            ]
            for at, sample in enumerate(batch):
                if sample < 40:
                    assert torch.equal(found[0][at, : lengths[sample]], hidden[sample, : lengths[sample]])
                    assert not found[0][at, lengths[sample] :].any()
                    assert torch.equal(found[1][at], pooled[sample]) and torch.equal(found[2][at], loss[sample])
    # A store that is not ragged finds those alone that are as long as the first one.
    reasons = missing(PrefixStore(cache, bytes(16)), range(40))
    assert [sample for sample in range(40) if not reasons[sample]] == [
        sample for sample in range(40) if lengths[sample] == lengths[0]
    ]


def test_what_a_write_costs_is_counted_on_each_of_its_threads(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    store = PrefixStore(cache, bytes(16))
    for first in range(0, 512, 64):
        store.put(range(first, first + 64), range(64), [torch.randn(64, 2048)])
    assert cache.flush(PATIENCE)
    counters = cache.counters()
    assert counters["stored"] == 512
    for thread in ("offer_seconds", "write_seconds", "daemon_seconds"):
        assert 0 < counters[thread] < 5, thread


def test_a_cache_that_is_killed_gives_misses_and_takes_up_when_it_is_back(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    store = PrefixStore(cache, bytes(16))
    store.put(range(8), range(8), rows(8))
    assert cache.flush(PATIENCE) and missing(store, range(8)) == [""] * 8
    cache_daemon.end(signal.SIGKILL)
    assert set(missing(store, range(8))) <= {"late", "absent"}
    store.put(range(8), range(8), rows(8))
    cache_daemon.start()
    wait_until(lambda: cache.counters()["attached"] == 2, PATIENCE, "the cache to come back")
    store.put(range(8), range(8), rows(8))
    assert cache.flush(PATIENCE)
    found, _ = store.get(range(8), range(8), PATIENCE)
    assert all(torch.equal(part, tensor) for part, tensor in zip(found, rows(8)))


def test_rows_are_hashed_over_salt_type_shape_and_bytes_each_for_itself():
    a, b = torch.randn(6, 4, 3), torch.arange(6)
    hashes = _native.hash_rows([a, b], b"salt")
    assert len(set(hashes)) == 6 and hashes == _native.hash_rows([a.clone(), b], b"salt")
    assert hashes[2:4] == _native.hash_rows([a[2:4], b[2:4]], b"salt"), "the other rows do not matter"
    changed = a.clone()
    changed[3, 1, 1] += 1e-6
    assert [one == other for one, other in zip(hashes, _native.hash_rows([changed, b], b"salt"))] == [True] * 3 + [
        False
    ] + [True] * 2
    others = [
        _native.hash_rows([a, b], b"other"),
        _native.hash_rows([a.view(6, 3, 4), b], b"salt"),
        _native.hash_rows([a.view(torch.int32), b], b"salt"),
        _native.hash_rows([b, a], b"salt"),
        _native.hash_rows([a], b"salt"),
    ]
    assert len({tuple(other) for other in [hashes, *others]}) == 6
    rotated = torch.randn(6, 2, dtype=torch.complex64)
    call, conjugate = (Call((value,), {}, 6) for value in (rotated, rotated.conj()))
    assert set(call.hashes()).isdisjoint(conjugate.hashes()), "a lazy conjugate is another input"


def test_what_cannot_be_stored_is_said(cache_daemon: Daemon):
    cache = connect(cache_daemon)
    with pytest.raises(EgeriaError, match="BAD_SHAPE.*3 samples, and a tensor of 2 rows"):
        cache.put([1, 2, 3], [1, 2, 3], [torch.zeros(2, 2)])
    with pytest.raises(EgeriaError, match="BAD_SHAPE.*ComplexFloat"):
        cache.put([1], [1], [torch.zeros(1, dtype=torch.complex64)])
    with pytest.raises(EgeriaError, match="BAD_SHAPE.*a row of 2 .* length of 3"):
        cache.put([1], [1], [torch.zeros(1, 2)], [[3]])
    with pytest.raises(EgeriaError, match="BAD_SHAPE.*length for each row"):
        cache.put([1, 2], [1, 2], [torch.zeros(2, 2)], [[1]])
    with pytest.raises(EgeriaError, match="BAD_SHAPE.*input hashes"):
        cache.put([1, 2], [1], [torch.zeros(2, 2)])
    with pytest.raises(EgeriaError, match="BAD_CONFIG.*UUID"):
        _native.ActivationCache(cache_daemon.address, "job 7")
    with pytest.raises(EgeriaError, match="BAD_CONFIG.*bf16 or int8"):
        _native.ActivationCache(cache_daemon.address, JOB, format="float16")
    with pytest.raises(EgeriaError, match="unix:/"):
        _native.ActivationCache("nowhere", JOB)
    with pytest.raises(ValueError, match="16 bytes"):
        cache.use(b"short")


def test_the_fingerprint_tells_every_change_of_a_prefix():
    torch.manual_seed(0)
    model = Layered(norm=nn.BatchNorm1d)

    def of(changed: nn.Module, count: int = 2) -> bytes:
        modules = partition(changed)
        return fingerprint(ModuleFingerprint(changed, modules, count))

    before = of(model)
    assert before == of(copy.deepcopy(model)) and len(before) == 16
    seen = {before, of(model, 1), of(model, 3)}
    for change in (
        lambda m: m.get_parameter(next(iter(dict(m.named_parameters())))).data.view(-1)[0].add_(1e-7),
        lambda m: next(buffer for buffer in m.buffers() if buffer.is_floating_point()).view(-1)[0].add_(1e-7),
        lambda m: m.eval(),
        lambda m: m.double(),
        lambda m: setattr(next(x for x in m.modules() if isinstance(x, nn.BatchNorm1d)), "eps", 1e-3),
        lambda m: setattr(next(x for x in m.modules() if isinstance(x, nn.BatchNorm1d)), "scale", 2.0),
    ):
        other = copy.deepcopy(model)
        with torch.no_grad():
            change(other)
        seen.add(of(other))
    assert len(seen) == 9
    last = copy.deepcopy(model)
    with torch.no_grad():
        last.head.weight.add_(1)
    assert of(last) == before, "what is active does not matter"


@pytest.mark.parametrize("close", [True, False])
def test_a_process_ends_promptly_with_a_line_open(cache_daemon: Daemon, close: bool):
    script = (
        "import sys, torch\nfrom egeria import _native\n"
        f"cache = _native.ActivationCache({cache_daemon.address!r}, {JOB!r})\n"
        "cache.put([1], [1], [torch.zeros(1, 10)])\n"
        f"if {close}: cache.close(); assert not cache.attached\n"
        "print('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0 and done.stdout == "end\n", done.stderr
