"""This file says of which calls a cut is proven, and what a sample in them is known by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from egeria import _native
from egeria.cache.model_call import Call
from egeria.cache.padded_lengths import Alike, row_keys, rows_by_alike
from egeria.cache.padding import Padding
from egeria.cache.prefix_cut import Cut
from egeria.cache.row_independence import Alone


class Computed(NamedTuple):
    """Holds what a pass on the side has computed for samples of a call.

    Attributes:
      rows: the samples' in their call.
      tensors: with a row for each.
    """

    rows: Sequence[int]
    tensors: Sequence[Tensor]

    def is_in(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether it is what these have, in which each sample of the call has a row."""
        return _native.same_rows(self.tensors, tensors, self.rows)


@dataclasses.dataclass
class Proven:
    """Holds a cut that is proven for calls of one shape.

    Attributes:
      batch: how many samples such a call has.
      circumstances: what a sample's activation depends on besides its input and the number of samples.
      computed: for the call that it was proven on; None once the training's own pass is known to compute the same, or
        another one is to be compared.
      confirmed: a pass of the training itself has computed what one on the side does.
      like: a number of samples of a call in which they have the same activations, to the bit.
      form: what Cut.form is in that call.
      salt: a salt for Call.hashes(), which differs where a sample's activation may differ though its input does not.
      alone: whether so many samples may be computed alone.
      kind: what calls have in common that differ in the length that they are padded to; None where they have no
        padding.
      mark: where it is not 0, samples are kept under other ids, by this number: there are others that look otherwise.
      alike: texts that have what they have at another length; None: no other length is known.
      by_token: which of the tensors have a row for each token, those of the padding of such texts being of no use.
    """

    cut: Cut
    batch: int
    circumstances: Any
    computed: Computed | None
    confirmed: bool = False
    like: int = 0
    form: bytes = b""
    salt: bytes = b""
    alone: Alone = dataclasses.field(default_factory=Alone)
    kind: Any = None
    mark: int = 0
    alike: list[Alike] | None = None
    by_token: Sequence[bool] = ()

    def _padding_of(self, call: Call) -> Padding | None:
        """Returns the padding of a call whose texts may be the same elsewhere; None where it is not what it was in the
        proof, or samples would have to be loaded to know that."""
        if not self.alike or call.source is not None or (padding := Padding.of(call)) is None:
            return None
        return padding if padding.kind(call) == self.kind[-1] else None

    def kept(self, call: Call) -> list[int] | None:
        """Returns of how many tokens of each sample something is kept; None where nothing is kept by tokens."""
        if not any(self.by_token) or (padding := self._padding_of(call)) is None:
            return None
        return [
            length if any(one.least <= length <= one.most for one in self.alike) else padding.longest
            for length in padding.lengths
        ]

    def by_length(self, call: Call, rows: Sequence[int]) -> list[tuple[list[int], Call, int | None]]:
        """Splits samples of a call by where they may be computed alone.

        Returns:
          For each part its rows; the call, padded to another length at which these are the same; and that length, None
          where it is the call's own.
        """
        padding = self._padding_of(call)
        if padding is None:
            return [(list(rows), call, None)]
        alike = [one for one in self.alike or () if one.size == call.batch]
        return [
            (part, call, None) if one is None else (part, padding.padded_to(call, one.length), one.length)
            for one, part in rows_by_alike(alike, padding.lengths, rows).items()
        ]

    def keys(self, call: Call, keys_of: Callable[[Call, bytes], list[Any]]) -> tuple[list[Any], list[int]]:
        """Returns a key for each sample, and a number, by which its id becomes another one."""
        padding = self._padding_of(call)
        if self.cut.unread:
            call = call.ignoring(self.cut.unread)
        if padding is None:
            return keys_of(call, self.salt), [self.mark] * call.batch
        keys, lengths = row_keys(padding, call, self.alike or (), self.salt, keys_of)
        return keys, [length or self.mark for length in lengths]

    def take_computed(self, call: Call, compute: Callable[[], Sequence[Tensor]], whole: bool = False) -> Computed:
        """Returns what a pass on the side computes for this call, on which it was proven, or which is the next one.

        Args:
          compute: takes such a pass.
          whole: all samples are asked for, and not some of them.
        """
        computed, self.computed = self.computed, None  # once: the next call has other samples
        if computed is None or (whole and len(computed.rows) < call.batch):
            computed = Computed(range(call.batch), compute())
        return computed

    def counts_as(self, size: int, form: bytes) -> None:
        """Notes that samples have the activations that they have in a call with this number of samples, computed in
        this form."""
        self.like, self.form = size, form
        self.salt = _native.fingerprint(
            repr((self.circumstances, size, form) if form else (self.circumstances, size)), []
        )
