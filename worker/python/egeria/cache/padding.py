"""This file tells texts from their padding, so that one text counts as the same in batches of other lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from egeria.cache.model_call import Call

# The argument that says what is padding.
_MASK = "attention_mask"


class Text(NamedTuple):
    """Names a text that is made of a sample's tokens.

    Attributes:
      tokens: it has so many.
      turn: texts with as many tokens differ in it.
    """

    tokens: int
    turn: int


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

    def texts(self, call: Call, texts: Sequence[Text], length: int) -> Call:
        """Makes a call of these texts from the samples of a call, padded to this length. A text consists of the tokens
        of a sample, which are repeated where they are too few."""
        samples = [(text.tokens + text.turn) % call.batch for text in texts]
        made = call.rows(samples)
        own = torch.tensor([self.lengths[sample] for sample in samples])[:, None]
        begins = torch.tensor([text.turn // call.batch for text in texts])[:, None]
        tokens = torch.tensor([text.tokens for text in texts])[:, None]
        places = (torch.arange(length) + begins) % own
        padded = torch.arange(length) >= tokens
        tensors = made.tensors()
        for number, value in self.values.items():
            rows = tensors[number]
            tensors[number] = rows.gather(1, places.to(rows.device)).masked_fill(padded.to(rows.device), value)
        return made.with_tensors(tensors)
