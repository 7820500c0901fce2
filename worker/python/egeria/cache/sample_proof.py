"""Proves that what frozen layers compute for a sample does not depend on the batch that it is in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from egeria.cache.model_call import Call
from egeria.cache.pass_outcome import same
from egeria.cache.prefix_cut import Cut, Refused

# Numbers of elements to compare before a number of samples is taken to make no difference, and of tries for that.
_ENOUGH_ELEMENTS = 4096
_MOST_ROUNDS = 8


def prove_places(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor]) -> None:
    """Raises Refused [BATCH_DEPENDENT]: a sample's result depends on its place or on the other samples."""
    for index in _rearrangements(cut, call):
        if not same_rows(cut.compute(model, call.rows(index)), crossing, index):
            raise Refused(
                "BATCH_DEPENDENT",
                "what the frozen layers compute for a sample depends on its place in the batch or on the other samples",
            )


def _rearrangements(cut: Cut, call: Call) -> Iterable[list[int]]:
    """All samples in another order; and half of them, the others replaced by copies of a single one."""
    last, half = call.batch - 1, call.batch // 2
    yield [last - i for i in range(call.batch)]
    halves = ([copied] * half + [last - i for i in range(half, call.batch)] for copied in range(last, -1, -1))
    yield from itertools.islice((index for index in halves if _in_like_company(cut, call, index)), 1)


def _in_like_company(cut: Cut, call: Call, index: list[int]) -> bool:
    """Whether the model may be expected to compute these samples as in the whole batch."""
    return not cut.decides or call.rows(index).conditions() == call.conditions()


def sub_batches(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor]) -> Iterable[int]:
    """Numbers of samples, ascending, that may be computed alone, as far as that leaves all buffers alone: powers of
    two, so that few have to be proven, and three quarters of the batch."""
    sizes = {2**i for i in range((call.batch - 1).bit_length())} | {3 * call.batch // 4}
    for size in sorted(sizes - {0}):
        choices = _choices(cut, call, size, crossing)
        if choices and all(_computes_alone(model, cut, call, crossing, index) for index in choices):
            yield size


def _choices(cut: Cut, call: Call, size: int, crossing: Sequence[Tensor]) -> list[list[int]]:
    """Which samples to try: with few elements a rounding may be the same by chance."""
    per_sample = sum(tensor[0].numel() for tensor in crossing)
    rounds = min(_MOST_ROUNDS, -(-_ENOUGH_ELEMENTS // max(1, size * per_sample)))
    choices = ([(begin + 7 * i) % call.batch for i in range(size)] for begin in range(call.batch))
    return list(itertools.islice((index for index in choices if _in_like_company(cut, call, index)), rounds))


def _computes_alone(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor], index: list[int]) -> bool:
    buffers = [buffer.detach().clone() for buffer in model.buffers()]
    changed: list[Tensor] = []

    def check() -> None:
        changed.extend(buffer for buffer, before in zip(model.buffers(), buffers) if not same(buffer, before))

    try:
        alike = same_rows(cut.compute(model, call.rows(index), check), crossing, index)
    except Exception:  # pylint: disable=broad-exception-caught  # a model that needs whole batches
        return False
    return alike and not changed


def same_rows(got: Sequence[Tensor], wanted: Sequence[Tensor], index: Sequence[int]) -> bool:
    """Whether the rows of each tensor are those of another with these numbers, to the bit."""
    return len(got) == len(wanted) and all(
        same(mine, theirs.index_select(0, torch.tensor(list(index), device=theirs.device)))
        for mine, theirs in zip(got, wanted)
    )
