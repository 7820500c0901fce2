"""A CacheLine is a cached network's line to the node's egeria-cache."""

from __future__ import annotations

import atexit
import dataclasses
import os
import uuid
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from egeria import _native
from egeria.cache.gate import CacheGate
from egeria.cache.prefix_store import PrefixStore
from egeria.config import Config
from egeria.training import session as session_module
from egeria.training.job_daemons import JobDaemons

# Shared with the daemon: a third is for what is written. One process may have several cached networks.
_SHARED_BYTES = 64 << 20
# So much waits for a daemon that is not there yet: what is computed first is asked for first in the next epoch.
_MOST_WAITING = 32 << 20
# Namespaces are made of these names.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://egeria/cached")

_open: weakref.WeakSet[CacheLine] = weakref.WeakSet()


class CacheLine:
    """Keeps the results of one network for all runs that have the same one, and starts or adopts the daemon for that.

    Entries stay when the line ends, within the daemon's quota. Owned by the thread of the calls.

    Attributes:
      is_configured: there is to be a cache.
    """

    def __init__(self, config: Config, namespace: str | None):
        """
        Args:
          config: where the cache is, its format and its quota.
          namespace: a name for the entries; None: the network's fingerprint is their name.
        """
        self._config = config
        self._namespace = namespace
        self._address = config.cache_address()
        self.is_configured = self._address is not None
        self._daemons = JobDaemons(config)
        self._pid = os.getpid()
        self._cache: _native.ActivationCache | None = None
        self._store: PrefixStore | None = None
        self._waiting: list[tuple[Sequence[int], Sequence[int], list[Tensor]]] = []
        self._waiting_bytes = 0
        _open.add(self)

    def follow(self, fingerprint: bytes, device: torch.device) -> None:
        """Results are of the network with this fingerprint from now on."""
        self._end_cache()
        if self._store is None:
            self._daemons.want_cache()
        name = uuid.uuid5(_NAMESPACE, fingerprint.hex() if self._namespace is None else f"named {self._namespace}")
        self._cache = _native.ActivationCache(
            self._address,
            str(name),
            device=str(device),
            format=self._config.cache_form(),
            quota_bytes=self._config.cache_job_bytes(),
            shared_bytes=_SHARED_BYTES,
            patience_seconds=CacheGate.longest_patience,
        )
        self._store = PrefixStore(self._cache, fingerprint, self._config.cache_form())

    @property
    def store(self) -> PrefixStore:
        """Only after follow()."""
        assert self._store is not None
        return self._store

    def put(self, ids: Sequence[int], hashes: Sequence[int], rows: Sequence[Tensor]) -> int:
        """Offers the rows of samples, and returns their bytes."""
        assert self._cache is not None
        rows = [row.detach() for row in rows]
        size = sum(row.nbytes for row in rows)
        if not self._cache.attached and self._waiting_bytes + size <= _MOST_WAITING:
            self._waiting.append((ids, hashes, [row.clone() for row in rows]))
            self._waiting_bytes += size
            return size
        self._hand_over()
        self.store.put(ids, hashes, rows)
        return size

    def counters(self) -> dict[str, float]:
        return {} if self._cache is None else self._cache.counters()

    def close(self) -> None:
        """Ends the line; entries stay. Idempotent."""
        if os.getpid() == self._pid:
            self._end_cache()
            self._daemons.close()
        _open.discard(self)

    def _hand_over(self) -> None:
        """Offers what waits. Without a daemon it is dropped."""
        for waiting in self._waiting:
            self.store.put(*waiting)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _end_cache(self) -> None:
        if self._cache is not None:
            self._hand_over()
            self._cache.flush(1.0)
            self._cache.close()
            self._cache = None


def config_of(cache: str | Config | None) -> Config:
    """Returns a configuration that brings no controller, with the cache of `cache`, of an attached session, of the
    environment, or else of the user's folder.

    Raises:
      EgeriaError: [BAD_CONFIG].
    """
    config = cache if isinstance(cache, Config) else Config.from_env(**({} if cache is None else {"cache": cache}))
    named = config.cache or _cache_of_sessions() or os.environ.get("EGERIA_CACHE") or _native.cache_folder()
    return dataclasses.replace(config, controller="none", plans=(), observe=False, cache=named)


def _cache_of_sessions() -> str | None:
    """The cache that a session's configuration names."""
    named = (session._config.cache for session in list(session_module._open.values()))
    return next((cache for cache in named if cache not in (None, "", "none")), None)


def keys_of(digests: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Returns the ids under which samples are kept, and the hashes that prove it: two halves of 16 bytes each."""
    ids = [int.from_bytes(digest[:8], "little", signed=True) for digest in digests]
    return ids, [int.from_bytes(digest[8:], "little") for digest in digests]


@atexit.register
def _close_all() -> None:
    for line in list(_open):
        line.close()
