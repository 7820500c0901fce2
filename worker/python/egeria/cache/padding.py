"""This file tells texts from their padding, so that one text counts as the same in batches of other lengths."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from egeria.cache.model_call import Call

# The argument that says what is padding.
_MASK = "attention_mask"


@dataclasses.dataclass
class Texts:
    """Holds texts of chosen lengths, made of those of a call.

    Attributes:
      call: they are padded to the call's length.
      lengths: of the texts.
      origins: for those that are samples of the call as they are, their rows there; -1 for others.
    """

    call: Call
    lengths: list[int]
    origins: list[int]


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

    def kind(self, call: Call) -> tuple[Any, ...]:
        """Returns what is equal for calls whose samples differ in the length that they are padded to."""
        return tuple(sorted(self.values.items())), self.padded_to(call, 1).sample_key()

    def padded_to(self, call: Call, length: int) -> Call:
        """Returns the call, or one of some of its samples, padded to another length. Longer texts are cut."""

        def padded(tensor: Tensor, value: float) -> Tensor:
            if length <= self.longest:
                return tensor[:, :length].contiguous()
            return torch.cat([tensor, tensor.new_full((tensor.size(0), length - self.longest), value)], dim=1)

        return call.with_tensors(
            [
                padded(tensor, self.values[number]) if number in self.values else tensor
                for number, tensor in enumerate(call.tensors())
            ]
        )

    def texts(self, call: Call, top: int, turn: int) -> Texts:
        """Makes texts of at most `top` tokens, of which many have as many. In the first turn every other one is a
        sample of the call, in another place."""
        batch = call.batch
        rows = [(place + turn) % batch for place in range(batch)]
        lengths = [top if place % 4 < 3 else 1 + (place * top // batch + turn * 7) % top for place in range(batch)]
        origins = [-1] * batch
        for place in range(0, batch if turn == 0 else 0, 2):
            row = batch - 1 - place
            if self.lengths[row] <= top:
                rows[place] = origins[place] = row
                lengths[place] = self.lengths[row]
        if min(lengths) == self.longest:  # some padding is always there
            lengths[-1], origins[-1] = self.longest - 1, -1
        own = torch.tensor(self.lengths)[rows][:, None]
        places = torch.arange(self.longest) % own
        padded = torch.arange(self.longest) >= torch.tensor(lengths)[:, None]
        made = []
        for number, tensor in enumerate(call.tensors()):
            index = torch.tensor(rows, device=tensor.device)
            if number in self.values:
                taken = tensor[index[:, None], places.to(tensor.device)]
                made.append(taken.masked_fill(padded.to(tensor.device), self.values[number]))
            else:
                made.append(tensor.index_select(0, index) if tensor.shape[:1] == (batch,) else tensor)
        return Texts(call.with_tensors(made), lengths, origins)
