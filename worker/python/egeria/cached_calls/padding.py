"""This file tells texts from their padding, so that one text counts as the same in batches of other lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from egeria import _native
from egeria.cache.model_call import Call

# The argument that says what is padding.
_MASK = "attention_mask"
# Results are compared with those of a call that is padded to the next multiple of this.
_STEP = 64
# So many samples are compared, in so many batches at most; with smaller ones nothing is proven.
_COMPARED = 128
_MOST_TURNS = 16


@dataclasses.dataclass
class Padding:
    """Describes a call whose samples are followed by padding.

    Attributes:
      lengths: of the samples, without padding.
      longest: the length that they are padded to.
      values: by the number of an argument with a row of tokens for each sample, what its padding is.
    """

    lengths: list[int]
    longest: int
    values: dict[int, int | float | bool]

    @classmethod
    def of(cls, call: Call) -> Padding | None:
        """Returns the padding of a call whose attention mask says what it is; None where there is none, or where
        something else than one value stands there."""
        mask = call.argument_named(_MASK)
        if mask is None or mask.dim() != 2 or mask.size(0) != call.batch or mask.is_floating_point():
            return None
        longest, kept = mask.size(1), mask != 0
        lengths = kept.sum(1)
        if bool(kept.all()) or not bool(kept.any(1).all()):
            return None
        if not torch.equal(mask, (torch.arange(longest, device=mask.device) < lengths[:, None]).to(mask.dtype)):
            return None
        values: dict[int, int | float | bool] = {}
        for number, tensor in enumerate(call.tensors()):
            if longest not in tensor.shape[1:] and (tensor.dim() == 0 or tensor.size(0) != longest):
                continue
            if tensor.shape != mask.shape or not tensor.is_contiguous():
                return None
            padding = tensor[~kept]
            if not bool((padding == padding[0]).all()):
                return None
            values[number] = padding[0].item()
        return cls(lengths.tolist(), longest, values)

    def longer(self, call: Call) -> Call:
        """Returns the call with more padding, the same for calls of almost the same length."""
        more = self.longest // _STEP * _STEP + _STEP - self.longest
        return call.with_tensors(
            [
                tensor
                if number not in self.values
                else torch.cat([tensor, tensor.new_full((tensor.size(0), more), self.values[number])], dim=1)
                for number, tensor in enumerate(call.tensors())
            ]
        )

    def others(self, call: Call, turn: int) -> Call:
        """Returns a call of the same kind with texts of all lengths, made of those of the call."""
        batch = torch.arange(call.batch)
        lengths = 1 + (batch * self.longest // call.batch + turn * 7) % self.longest
        lengths[0] = min(int(lengths[0]), self.longest - 1)  # some padding is always there
        rows = (batch + turn) % call.batch
        places = (torch.arange(self.longest) + turn) % torch.tensor(self.lengths)[rows][:, None]
        padded = torch.arange(self.longest) >= lengths[:, None]
        return call.with_tensors(
            [
                tensor
                if number not in self.values
                else tensor[rows[:, None].to(tensor.device), places.to(tensor.device)].masked_fill(
                    padded.to(tensor.device), self.values[number]
                )
                for number, tensor in enumerate(call.tensors())
            ]
        )

    def digests(self, call: Call, salt: bytes) -> list[bytes]:
        """Returns what Call.digests() does, over samples without their padding."""
        salt = _native.fingerprint(repr((salt, sorted(self.values.items()))), [])
        return call.digests(salt, {number: self.lengths for number in self.values})


def same_without(
    padding: Padding, call: Call, compute: Callable[[Call], Sequence[Tensor]], whole: Sequence[Tensor]
) -> bool:
    """Returns whether samples come out the same, to the bit, with more padding behind them: those of the call, and many
    others of all lengths. In a small network a rounding shows in one of ten only.

    Args:
      compute: computes the tensors of a call.
      whole: what it computes of this one.
    """
    longer = padding.longer(call)
    if longer.conditions() != call.conditions() or not _same(compute(longer), whole):
        return False
    turns = -(-_COMPARED // call.batch)
    for turn in range(min(turns, _MOST_TURNS)):
        other = padding.others(call, turn)
        longer = padding.longer(other)
        if not other.conditions() == longer.conditions() == call.conditions():
            return False
        if not _same(compute(longer), compute(other)):
            return False
    return turns <= _MOST_TURNS


def _same(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return len(mine) == len(theirs) and all(map(_native.same_bits, mine, theirs))
