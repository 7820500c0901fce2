"""egeria.cached() lets the calls of a network be served from the cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from egeria.cache.forward_patches import ForwardPatch
from egeria.cached_calls.cache_line import CacheLine, config_of
from egeria.cached_calls.server import CallServer
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.model.plain_copies import Ours, copies_may_differ, keep_copies_plain
from egeria.model.wrappers import unwrap

_Network = TypeVar("_Network", bound=nn.Module)

_served: weakref.WeakKeyDictionary[nn.Module, weakref.ref[ServedForward]] = weakref.WeakKeyDictionary()


class ServedForward(ForwardPatch, Ours):
    """Stands in the place of a network's forward method. Copies and pickles of the network are without it."""

    def __init__(self, network: nn.Module, server: CallServer):
        keep_copies_plain(network)
        super().__init__(network, server.call)
        self.server = server
        self.__wrapped__ = self.original  # by this the signature is found

        vars(network)["_replicate_for_data_parallel"] = _Replicate(network, server.kept)

    def replaced(self) -> Any:
        return self.own

    def release(self) -> None:
        super().release()
        vars(self.module).pop("_replicate_for_data_parallel", None)
        copies_may_differ(self.module)


class _Replicate(Ours):
    """Stands in the place of the method by which DataParallel copies a network to each device. The copies compute."""

    def __init__(self, network: nn.Module, kept: Callable[[Any], Any]):
        self._network = network
        self._kept = kept

    def __call__(self) -> nn.Module:
        replica = type(self._network)._replicate_for_data_parallel(self._network)
        for name, value in [entry for entry in vars(replica).items() if isinstance(entry[1], Ours)]:
            del vars(replica)[name]
            if (own := value.replaced()) is not None:
                vars(replica)[name] = own
        forward = replica.forward
        vars(replica)["forward"] = lambda *args, **kwargs: self._kept(forward(*args, **kwargs))
        return replica


def cached(
    network: _Network,
    *,
    keep: Callable[[Any], Any] | None = None,
    namespace: str | None = None,
    cache: str | Config | None = None,
    use: str = "auto",
) -> _Network:
    """Lets calls of a network that nothing trains be served from the node's egeria-cache where their inputs come again.

        teacher = egeria.cached(teacher.eval().requires_grad_(False))

    Returns the network itself, whose calls are served from then on: a teacher, a text encoder, the encoder of a VAE,
    whether it is a part of a model that trains or not. uncached() undoes it. Copies and pickles are plain.

    A call returns to the bit what the network would compute. The first calls are computed, and what one gives
    is kept by a hash of its inputs. So it is for all runs with the same network, until the cache needs the room.

    Args:
      network: in evaluation mode. Where something of it trains, or draws random numbers, it is computed as without
        this, and a sentence of the log says what it is.
      keep: a function of what the network returns. Calls then return what it returns, whether they are served or not,
        and only that is kept: logits without hidden states, the largest of them, two layers of many. It has to
        compute each sample's part by itself.
      namespace: a name for what is kept; None: the network's fingerprint, over weights, code and attributes.
      cache: address of an egeria-cache ("unix:/path"), or its folder, where one is started or adopted, or a Config.
        None: EGERIA_CACHE, or else the user's folder.
      use: "auto": calls are served as long as that saves time by measurement; "always".

    Raises:
      EgeriaError: [BAD_MODEL] it is no module; [BAD_CONFIG] an option does not fit.
    """
    if not isinstance(network, nn.Module):
        raise EgeriaError(
            "BAD_MODEL",
            f"cached() takes a torch.nn.Module, not a {type(network).__name__}; give it the one that is called",
        )
    if use not in ("auto", "always"):
        raise EgeriaError("BAD_CONFIG", f"use is {use!r}; it is one of 'auto', 'always'")
    if keep is not None and not callable(keep):
        raise EgeriaError("BAD_CONFIG", f"keep is a {type(keep).__name__}; give a function of what the network returns")
    config = config_of(cache)
    uncached(network)
    inner = _inside_wrapper(network)
    line = CacheLine(config, namespace)
    server = CallServer(inner, keep, line, always="always" in (use, config.cache_use))
    _served[inner] = weakref.ref(ServedForward(inner, server))
    weakref.finalize(inner, line.close)
    return network


def uncached(network: _Network) -> _Network:
    """Leaves the network as it was before cached(), and returns it. The cache keeps its results for other runs."""
    if (forward := _forward_of(network)) is not None:
        del _served[_inside_wrapper(network)]
        forward.release()
        forward.server.line.close()
    return network


def cache_summary(network: nn.Module) -> dict[str, Any]:
    """Returns what cached() has come to: "calls"; "served", those that needed nothing of the network; "hits" and
    "misses" in samples, misses by reason ("miss_absent" and so on); "proofs"; "audits", calls that were computed though
    they might have been served; "saved_seconds", less what was spent; "spent_seconds" of all calls; "state" ("trying",
    "on", "off", "refused") and "reason"; and, with "cache_" before them, the counts of the line to the daemon.

    Raises:
      EgeriaError: [NOT_CACHED].
    """
    if (forward := _forward_of(network)) is None:
        raise EgeriaError(
            "NOT_CACHED", "this network is not cached; give cache_summary() what egeria.cached() returned"
        )
    return forward.server.state()


def _forward_of(network: nn.Module) -> ServedForward | None:
    found = _served.get(_inside_wrapper(network))
    return None if found is None else found()


def _inside_wrapper(network: nn.Module) -> nn.Module:
    """DistributedDataParallel talks to other ranks in each call, whether what is inside it is served or not; compiled
    code is served around."""
    return network if hasattr(network, "_orig_mod") else unwrap(network)
