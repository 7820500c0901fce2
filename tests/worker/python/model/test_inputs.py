"""The arguments of a call tell the batch, and are cut to fewer samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from egeria.model.inputs import GraphError, RootInputs, batch_of

IMAGES = [torch.zeros(3, 8, 9) for _ in range(4)]
BOXES = [{"boxes": torch.zeros(count, 4), "labels": torch.zeros(count)} for count in (2, 4, 4, 4)]
WORDS = torch.zeros(6, 12)


@pytest.mark.parametrize(
    "args, kwargs, batch",
    [
        ((WORDS,), {}, 6),
        ((IMAGES, BOXES), {}, 4),
        ((IMAGES[:1], BOXES[:1]), {}, 1),
        ((torch.zeros(4, 3, 8, 8),), {"labels": BOXES}, 4),
        ((WORDS, (torch.zeros(2, 6, 5), torch.zeros(2, 6, 5))), {}, 6),
        ((WORDS[:1], torch.zeros(2, 1, 5)), {}, 1),
        ((), {"past": tuple((torch.zeros(3, 4), torch.zeros(3, 4)) for _ in range(9)), "ids": WORDS, "mask": WORDS}, 6),
        ((torch.zeros(50, 4), WORDS, torch.zeros(6)), {}, 6),
        (([torch.zeros(6, 2), torch.zeros(6, 3)], torch.zeros(6)), {}, 6),
        (([torch.zeros(5, 2), torch.zeros(7, 2), torch.zeros(2, 2)],), {}, 3),
        (({"ids": WORDS, "mask": WORDS},), {}, 6),
        ((WORDS, [{"scale": torch.zeros(3)}]), {}, 6),
    ],
)
def test_a_batch_is_told_by_lists_with_an_entry_for_each_sample_or_by_most_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], batch: int
):
    assert batch_of(args, kwargs) == batch


def test_a_call_without_a_tensor_tells_no_batch():
    with pytest.raises(GraphError, match="without a tensor that has a batch dimension"):
        batch_of(("text", [3]), {"flag": True})


def test_lists_with_an_entry_for_each_sample_are_cut_and_what_is_in_them_is_not():
    inputs = RootInputs((IMAGES, BOXES), {"weights": torch.arange(4), "sizes": torch.zeros(7)}, 3)
    assert (inputs.batch, inputs.samples) == (4, 3)
    for samples in (3, 2):
        inputs = inputs.narrowed(samples)
        (images, targets), kwargs = inputs.call(lambda *args, **kwargs: (args, kwargs))
        assert [image.shape for image in images] == [(3, 8, 9)] * samples
        assert [len(target["boxes"]) for target in targets] == [2, 4, 4][:samples]
        assert kwargs["weights"].tolist() == list(range(samples)) and len(kwargs["sizes"]) == 7
