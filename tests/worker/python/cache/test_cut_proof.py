"""prove() refuses by name, and sees what a single batch does not show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from skipped_models import (
    VECTORS,
    Counting,
    KeepingInside,
    Late,
    Normalising,
    Objects,
    Packing,
    Picking,
    Picky,
    Remembering,
    Repeated,
    SecretlyNoisy,
    Selecting,
    Shy,
    ThreeLayers,
    Tied,
    Whispering,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import egeria.cache.forward_patches
from egeria.cache.cut_proof import prove, try_alone
from egeria.cache.model_call import Call, UnusualCall
from egeria.cache.prefix_cut import Cut
from egeria.cache.refused import Refused
from egeria.cache.row_independence import Alone
from egeria.cache.skip_checks import check_skippable, check_wrappers
from egeria.freeze.freezer import Freezer
from egeria.model.modules import LayerModule, each_once


def freeze(model: nn.Module, prefix: int, names: str = "abc") -> list[LayerModule]:
    layers = [LayerModule(name, (getattr(model, name),), (name,)) for name in names]
    Freezer(layers, []).apply(prefix)
    return layers[:prefix]


def proof(model: nn.Module, prefix: int = 2, rows: Tensor = VECTORS[:8]) -> Cut:
    return prove(model, freeze(model.train(), prefix), Call((rows,), {}, len(rows))).cut


def alone(model: nn.Module, size: int, rows: Tensor = VECTORS[:8]) -> bool:
    tried = Alone()
    try_alone(tried, model, proof(model, 1, rows), Call((rows,), {}, len(rows)), [size])
    return tried.found[size]


def refusal(model: nn.Module, prefix: int = 2, **options: Any) -> str:
    with pytest.raises(Refused) as caught:
        proof(model, prefix, **options)
    return caught.value.name


@pytest.mark.parametrize(
    "kind,prefix,name",
    [
        (Repeated, 1, "CALLED_SEVERAL_TIMES"),
        (SecretlyNoisy, 2, "RANDOM"),
        (Normalising, 2, "BATCH_DEPENDENT"),
        (KeepingInside, 2, "KEEPS_STATE"),
        (Objects, 1, "NOT_A_TENSOR"),
        (Late, 2, "NEEDS_GRADIENT"),
        (Shy, 1, "NOT_CALLED"),
        (Whispering, 1, "KEEPS_STATE"),
        (Selecting, 1, "BATCH_DEPENDENT"),
    ],
)
def test_refused(kind: type[nn.Module], prefix: int, name: str) -> None:
    torch.manual_seed(0)
    assert refusal(kind(), prefix) == name


class OfSome(ThreeLayers):
    """Only some samples' outputs depend on the others."""

    class Inner(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return torch.where(x[:, :1] > 0.5, y - y.mean(0), y)

    def __init__(self) -> None:
        super().__init__()
        self.a = OfSome.Inner(8, 8)


class OfAWholeBatch(ThreeLayers):
    """Asks whether any sample of the batch is far out, as if that were a setting."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x / 255 if x.amax() > 1.5 else x)))


@pytest.mark.parametrize("rows", [VECTORS[:8], VECTORS[:7], VECTORS[:8].round(), torch.zeros(22, 8)])
def test_what_depends_on_the_others_for_some_samples_only_is_refused(rows: Tensor) -> None:
    torch.manual_seed(0)
    assert refusal(OfSome(), 1, rows=rows) == "BATCH_DEPENDENT"


def test_what_is_asked_of_a_whole_batch_of_numbers_is_refused_where_the_answer_differs() -> None:
    torch.manual_seed(0)
    assert refusal(OfAWholeBatch(), 1, rows=VECTORS[:8].clamp(-1, 1)) == "BATCH_DEPENDENT"


class Counted(ThreeLayers):
    """The count is used behind the first layer, and the labels behind the second one."""

    def forward(self, x: Tensor, labels: Tensor, count: Tensor) -> Tensor:
        hidden = torch.relu(self.a(x)) / count
        return (self.c(torch.relu(self.b(hidden))) - labels[:, None]) ** 2


@pytest.mark.parametrize(("prefix", "unread"), [(1, {1, 2}), (2, {1})])
def test_a_proof_tells_which_arguments_the_frozen_layers_do_not_read(prefix: int, unread: set[int]) -> None:
    model = Counted().train()
    call = Call((VECTORS[:8], torch.ones(8), torch.tensor(2.0)), {}, 8)
    assert prove(model, freeze(model, prefix), call).cut.unread == unread


def test_a_proof_computes_the_frozen_layers_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    class Noted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            computed.append(len(x))
            return super().forward(x)

    monkeypatch.setattr("egeria.model.shadow.check_code", lambda *_: [])  # the list is none of the model's
    torch.manual_seed(0)
    model = ThreeLayers()
    model.a = Noted(8, 8)
    proof(model)
    assert computed == [8] * 4  # with few elements, which are compared; in a real model once less
    computed.clear()
    model.a = Noted(8, 2048)
    model.b = nn.Linear(2048, 8)
    proof(model, 1)
    assert computed == [8] * 3


@pytest.mark.parametrize("trains", [True, False])
def test_a_tied_weight_speaks_against_skipping_only_where_it_trains(trains: bool) -> None:
    torch.manual_seed(0)
    model = Tied()
    first, _ = each_once([LayerModule("a", (model.a,), ("a",)), LayerModule("b", (model.b, model.c), ("b", "c"))])
    model.a.requires_grad_(False)
    model.c.weight.requires_grad_(trains)
    if not trains:
        check_skippable(model, [first])
        return
    with pytest.raises(Refused) as caught:
        check_skippable(model, [first])
    assert caught.value.name == "TIED_PARAMETER" and "'a.weight' trains on" in str(caught.value)


@pytest.mark.parametrize("kind", [Picking, Packing])
def test_what_a_rare_value_would_let_through_counts_as_crossing(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    cut = proof(kind())
    assert [cut.names[index] for index in cut.live] == ["a", "b"]


def test_what_stays_in_an_attribute_counts_as_crossing() -> None:
    torch.manual_seed(0)
    cut = proof(Remembering())
    assert [cut.names[index] for index in cut.live] == ["a", "b"]


def test_what_decides_in_python_counts_as_crossing() -> None:
    torch.manual_seed(0)
    cut = proof(Picky())
    assert [cut.names[index] for index in cut.live] == ["a", "b"]


def test_what_a_model_counts_by_is_left_alone() -> None:
    torch.manual_seed(0)
    model = Counting()
    proof(model)
    assert next(model.state) == 1


def test_stand_ins_are_not_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the dataflow is not seen, not-a-number shows; zeros would not, in a model that is nearly blind."""

    class Blind(ThreeLayers):
        def forward(self, x: Tensor) -> Tensor:
            early = self.a(x)
            unseen = torch.from_numpy(early.detach().numpy().copy())  # no operator tells of it
            return self.c(self.b(early) + unseen * 0)

    torch.manual_seed(0)
    assert refusal(Blind()) in ("OUTPUT_DIFFERS", "GRADIENT_DIFFERS")
    stand_in = egeria.cache.stand_in_outputs.TensorSpec.stand_in
    monkeypatch.setattr(
        egeria.cache.stand_in_outputs.TensorSpec, "stand_in", lambda self, dense: stand_in(self, True).zero_()
    )
    proof(Blind())  # with zeros it would pass


def test_a_checkpoint_across_the_cut_is_refused() -> None:
    class Spanning(ThreeLayers):
        def forward(self, x: Tensor) -> Tensor:
            return self.c(checkpoint(lambda y: self.b(torch.relu(self.a(y))), x, use_reentrant=False))

    torch.manual_seed(0)
    assert refusal(Spanning(), 1) == "CHECKPOINTED"


def test_hooks_of_others_are_refused() -> None:
    torch.manual_seed(0)
    model = ThreeLayers()
    features = []
    model.a.register_forward_hook(lambda module, args, output: features.append(output))
    assert refusal(model) == "HOOKED"


def test_compiled_layers_are_refused() -> None:
    torch.manual_seed(0)
    for compile_ in (
        lambda model: model.a.compile(backend="eager"),
        lambda model: setattr(model, "a", torch.compile(model.a, backend="eager")),
        lambda model: model.compile(backend="eager"),
    ):
        model = ThreeLayers()
        compile_(model)
        assert refusal(model) == "COMPILED"
    model = ThreeLayers()
    whole = torch.compile(model, backend="eager")
    with pytest.raises(Refused, match="COMPILED"):
        check_wrappers(model)
    assert whole is not None


def test_layers_that_talk_to_other_ranks_are_refused_before_they_do(tmp_path: Any) -> None:
    import torch.distributed as dist

    class Talking(ThreeLayers):
        def forward(self, x: Tensor) -> Tensor:
            x = self.c(self.b(self.a(x)))
            everything = x.detach().clone()
            dist.all_reduce(everything)
            self.talked = True
            return x - everything.mean()

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = Talking()
        assert refusal(model) == "COLLECTIVE"
        assert not hasattr(model, "talked")
        model = ThreeLayers()
        model.norm = nn.SyncBatchNorm(2)
        assert refusal(model) == "COLLECTIVE"
    finally:
        dist.destroy_process_group()


def test_a_model_that_raises_is_refused() -> None:
    class Raising(ThreeLayers):
        def forward(self, x: Tensor) -> Tensor:
            if x[0, 0] != VECTORS[0, 0]:
                raise ValueError("another sample")
            return super().forward(x)

    torch.manual_seed(0)
    assert refusal(Raising()) == "RAISES"


def test_a_model_without_gradients_is_refused() -> None:
    class Detached(ThreeLayers):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    torch.manual_seed(0)
    assert refusal(Detached()) == "NOT_A_TENSOR"


def test_glue_that_writes_in_place_gets_memory() -> None:
    class InPlace(ThreeLayers):
        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            x += 1
            return self.c(self.b(x))

    torch.manual_seed(0)
    cut = proof(InPlace())
    assert cut.dense and [cut.names[index] for index in cut.live] == ["b"]


def test_another_number_of_samples_needs_no_whole_batch_again() -> None:
    computed: list[int] = []

    def compute(call: Call) -> list[Tensor]:
        computed.append(call.batch)
        return [2 * call.tensors()[0]]

    tried = Alone()
    for size in (1, 2):
        tried.try_sizes(compute, Call((VECTORS[:8],), {}, 8), [size], decides=False)
    assert tried.found == {1: True, 2: True}
    assert computed.count(8) == 1, computed


def test_numbers_of_samples_that_round_otherwise_are_not_computed_alone() -> None:
    torch.manual_seed(0)
    model = ThreeLayers(width=64)
    rows, others = torch.randn(32, 8), torch.randn(32, 8)
    for size in (1, 2, 4, 8, 16):
        same = torch.equal(model.a(others)[:size], model.a(others[:size].clone()))
        assert same or not alone(model, size, rows), size
    assert any(alone(model, size, rows) for size in (8, 16, 24))


def test_an_interrupt_in_a_proof_is_none_of_the_model() -> None:
    """A sample that cannot be computed alone is computed with its batch; an interrupt of the training still ends it."""

    class Interrupted(ThreeLayers):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                raise error
            return super().forward(x)

    torch.manual_seed(0)
    error: BaseException = ValueError("a whole batch, please")
    assert not alone(Interrupted(), 1)
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        alone(Interrupted(), 1)


# Calls.


def input_hashes(args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> list[int]:
    return Call(args, kwargs, batch).hashes()


def test_input_hashes_see_everything() -> None:
    rows = torch.arange(12.0).view(4, 3)
    table = torch.arange(5)
    base = input_hashes((rows,), {"table": table, "scale": 2}, 4)
    assert len(set(base)) == 4
    changed = rows.clone()
    changed[2, 1] += 1e-6
    other = input_hashes((changed,), {"table": table, "scale": 2}, 4)
    assert [a == b for a, b in zip(base, other)] == [True, True, False, True]
    assert input_hashes((rows[[3, 0]],), {"table": table, "scale": 2}, 2) == [base[3], base[0]]
    rest = {"table": table, "scale": 2}
    for args, kwargs in (
        ((rows,), rest | {"table": table + 1}),
        ((rows,), rest | {"scale": 3}),
        ((rows,), rest | {"scale": 2.0}),
        ((rows,), rest | {"scale": None}),
        ((rows.double(),), rest),
        ((rows, None), rest),
        ((rows.view(4, 3, 1),), rest),
        (([rows],), rest),
    ):
        assert not set(base) & set(input_hashes(args, kwargs, 4))
    assert input_hashes((rows,), {"scale": 2, "table": table}, 4) == base


def test_ignored_arguments_change_no_hash_but_the_rest_does() -> None:
    rows, table, labels = torch.arange(12.0).view(4, 3), torch.arange(5), torch.arange(4)
    call = Call((rows, table, labels), {}, 4)
    base = call.ignoring([1, 2]).hashes()
    others = Call((rows, table + 1, labels + 1), {}, 4)
    assert others.ignoring([1, 2]).hashes() == base and others.ignoring([1, 2]).digests() != others.digests()
    assert others.ignoring([1]).hashes() != call.ignoring([1]).hashes()
    assert Call((rows + 1, table, labels), {}, 4).ignoring([1, 2]).hashes() != base
    assert Call((rows, table.double(), labels), {}, 4).ignoring([1, 2]).hashes() != base
    assert call.rows([2, 0]).ignoring([1, 2]).hashes() == [base[2], base[0]]
    assert call.hashes() == Call((rows, table, labels), {}, 4).hashes() and call.of_no_sample() == [1]


@pytest.mark.parametrize(
    "args,batch",
    [
        ((object(), torch.ones(3)), 3),
        ((torch.ones(3),), 2),
        ((5,), 1),
        ((torch.ones(2, requires_grad=True),), 2),
        ((torch.eye(2).to_sparse(),), 2),
    ],
)
def test_unusual_calls(args: Any, batch: int) -> None:
    with pytest.raises(UnusualCall):
        Call(args, {}, batch)
