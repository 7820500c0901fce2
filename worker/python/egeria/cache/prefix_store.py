"""A PrefixStore keeps the activations of one frozen prefix in the node's egeria-cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from egeria import _native
from egeria.cache.module_fingerprint import ModuleFingerprint

# The cache rounds float32 to these, by its format.
_ROUNDED = {"fp16": torch.float16, "bf16": torch.bfloat16}
ROUNDING = ("int8", *_ROUNDED)


def fingerprint(prefix: ModuleFingerprint, form: bytes = b"") -> bytes:
    """Returns 16 bytes that tell this frozen prefix from every other, over its weights and attributes, the code of what
    has those, torch's version and the processor's capability, and the form in which it is computed (Cut.form). The
    device's number does not count."""
    text = [torch.__version__, torch.backends.cpu.get_cpu_capability(), prefix.text, *([form.hex()] if form else [])]
    return _native.fingerprint("\n".join(text), [])


class PrefixStore:
    """A store keeps the activations of one frozen prefix in the node's cache. Where one cache has several
    stores, the last one counts; those of several caches work side by side. A sample that it does not have in time is a
    miss.

    Owned by the training thread.

    Attributes:
      ragged: rows may differ in their first dimension, as those of texts do.
    """

    def __init__(self, cache: _native.ActivationCache, prefix: bytes, format: str = "exact", ragged: bool = False):
        """
        Args:
          format: the cache's, which may round: see Config.cache_form().
          ragged: whether rows may differ in length so far.
        """
        self._cache = cache
        self._prefix = prefix
        self._format = format
        self.ragged = ragged
        cache.use(prefix, ragged)

    def shorten(self) -> None:
        """Rows may differ in their first dimension from here on, as those of texts do."""
        if not self.ragged:
            self.ragged = True
            self._cache.use(self._prefix, True)

    def get(
        self, ids: Sequence[int], input_hashes: Sequence[int], patience: float, widths: Sequence[int] = ()
    ) -> tuple[Sequence[Tensor], Sequence[str]]:
        """Returns what put() was given for these samples with the same input hashes.

        Args:
          patience: seconds to wait for it.
          widths: for each tensor of a ragged store how long its rows are to be. Zeros stand behind what was kept.

        Returns:
          b x ... tensors on the cache's device, which the caller may write to; none where nothing was found. The rows
          of misses hold anything. And for each sample why it is a miss, in a word; "" for a hit.
        """
        tensors, reasons = self._cache.take(ids, input_hashes, patience)
        if not widths:
            return tensors, reasons
        return [_widened(tensor, width) for tensor, width in zip(tensors, widths)], reasons

    def put(
        self,
        ids: Sequence[int],
        input_hashes: Sequence[int],
        tensors: Sequence[Tensor],
        lengths: Sequence[Sequence[int]] = (),
    ) -> None:
        """Offers b x ... tensors, a row for each sample; they are written when there is time, or dropped.

        Args:
          lengths: for each tensor of a ragged store, how much of each row is kept in its first dimension; [] where
            rows are kept whole, and none where all are.
        """
        if len(ids) > 0:
            self._cache.put(ids, input_hashes, tensors, lengths)

    def as_kept(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns what get() gives for these, where put() was given them; the same twice as once. Values beyond the
        range of fp16 and bf16 are kept as they are; here they become infinite, in whatever is compared."""
        if not self.rounds:
            return tensors
        if self._format == "int8":
            return [_native.as_int8(tensor).to(tensor.device) for tensor in tensors]
        rounded = _ROUNDED[self._format]
        return [tensor.to(rounded).to(tensor.dtype) if tensor.dtype == torch.float32 else tensor for tensor in tensors]

    @property
    def may_shorten(self) -> bool:
        """Whether what is kept of a row does not depend on how much of it is."""
        return self._format != "int8"

    @property
    def rounds(self) -> bool:
        """Whether get() may give other values than put() was given."""
        return self._format in ROUNDING

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Reads the samples of the next batches ahead: a hint."""
        self._cache.expect(batches)

    @property
    def seconds_behind(self) -> float:
        """Other threads and the daemon have spent so much processor time on writing for this cache."""
        counters = self._cache.counters()
        return counters["write_seconds"] + counters["daemon_seconds"]

    def forget(self) -> None:
        """Forgets what is stored of this prefix, which is not needed any more, or wrong."""
        self._cache.drop(self._prefix)


def _widened(tensor: Tensor, width: int) -> Tensor:
    if tensor.dim() < 2 or tensor.size(1) >= width:
        return tensor
    wide = tensor.new_zeros(tensor.size(0), width, *tensor.shape[2:])
    wide[:, : tensor.size(1)] = tensor
    return wide
