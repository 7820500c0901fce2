"""Loops around a frozen trunk, as strangers write them. Weights are the plain script's, to the bit."""

from __future__ import annotations

import contextlib
import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frozen_trunk import EPOCHS, IMAGES, Network, Run, Script, Trunk, begun, freeze, optimizer_of, step
from torch import Tensor, nn

# Freezing and thawing.


def test_frozen_after_attach(run: Run):
    def script(run_: Script) -> Any:
        model = nn.Sequential(Trunk(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        run_.attach(model, optimizer)
        freeze(model[0])
        run_.train(model, optimizer, each_epoch=lambda epoch: model[0].eval())
        return [model]

    assert run(script).served >= 15


@pytest.mark.parametrize("to_none", [True, False])
def test_frozen_in_mid_run_while_momentum_goes_on(to_none: bool, run: Run):
    """Where gradients stay there as zeros, momentum and decay go on moving what does not train."""

    def script(run_: Script) -> Any:
        model = nn.Sequential(Trunk(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
        run_.attach(model, optimizer)
        loader = run_.loader()
        for epoch in range(EPOCHS + 2):
            if epoch == 2:
                freeze(model[0])
            for images, labels in loader:
                optimizer.zero_grad(set_to_none=to_none)
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                run_.note(loss)
            run_.end_epoch()
        return [model]

    outcome = run(script)
    assert outcome.served >= 10 if to_none else "WEIGHTS_CHANGED" in outcome.names, outcome.text


def test_thawed_from_the_top_in_each_epoch(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        layers = [model.trunk.second, model.trunk.first]

        def thaw(epoch: int) -> None:
            if epoch in (3, 6):
                parameters = list(layers.pop(0).requires_grad_(True).parameters())
                optimizer.add_param_group({"params": parameters, "lr": 0.01})

        run_.train(model, optimizer, each_epoch=thaw, epochs=7)
        return [model]

    assert run(script).served >= 15


def test_frozen_by_name_in_each_epoch(run: Run):
    def script(run_: Script) -> Any:
        model = Network()
        model.requires_grad_(True)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        run_.attach(model, optimizer)
        names = ["first", "second"]

        def follow(epoch: int) -> None:
            optimizer.zero_grad()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(not any(part in name for part in names[:epoch]))

        run_.train(model, optimizer, each_epoch=follow, epochs=6)
        return [model]

    assert run(script).served >= 10


def test_frozen_and_thawed_in_alternation(run: Run):
    """Every other step trains the trunk, too."""

    def script(run_: Script) -> Any:
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        run_.attach(model, optimizer)
        run_.train(model, optimizer, before=lambda number: model.trunk.requires_grad_(number % 2 == 0) and None)
        return [model]

    run(script)


def test_a_rate_of_zero_is_no_freeze(run: Run):
    def script(run_: Script) -> Any:
        model = Network()
        model.requires_grad_(True)
        optimizer = torch.optim.Adam(
            [{"params": model.trunk.parameters(), "lr": 0.0}, {"params": model.head.parameters()}], 0.01
        )
        run_.attach(model, optimizer)
        run_.train(model, optimizer)
        return [model]

    run(script)


def test_gradients_that_a_hook_sets_to_zero(run: Run):
    def script(run_: Script) -> Any:
        model = Network()
        model.requires_grad_(True)
        for parameter in model.trunk.parameters():
            parameter.register_hook(torch.zeros_like)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, weight_decay=0.1)
        run_.attach(model, optimizer)
        run_.train(model, optimizer)
        return [model]

    run(script)


# Steps.


def test_accumulated_gradients(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader(batch_size=5, drop_last=True)
        for _ in range(EPOCHS):
            for number, (images, labels) in enumerate(loader):
                loss = F.cross_entropy(model(images), labels) / 3
                loss.backward()
                run_.note(loss)
                if number % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            run_.end_epoch()
        return [model]

    assert run(script).served >= 10


def test_two_optimizers(run: Run):
    def script(run_: Script) -> Any:
        model = Network(head=nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))
        optimizers = [
            torch.optim.SGD(model.head[2].parameters(), 0.05, momentum=0.9),
            torch.optim.Adam(model.head[0].parameters(), 0.01),
        ]
        run_.attach(model, optimizers)
        loader = run_.loader()
        for _ in range(EPOCHS):
            for images, labels in loader:
                loss = F.cross_entropy(model(images), labels)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in reversed(optimizers):
                    optimizer.step()
                run_.note(loss)
            run_.end_epoch()
        return [model]

    assert run(script).served >= 15


def test_a_closure_that_is_called_several_times(run: Run):
    def script(run_: Script) -> Any:
        model = Network()
        optimizer = torch.optim.LBFGS(model.head.parameters(), 0.1, max_iter=3)
        run_.attach(model, optimizer)
        loader = run_.loader()
        for _ in range(EPOCHS):
            for images, labels in loader:

                def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(images), labels)
                    loss.backward()
                    return loss

                run_.note(optimizer.step(closure))
            run_.end_epoch()
        return [model]

    run(script)


def test_two_views_in_two_calls(run: Run):
    """As contrastive trainings do: one backward pass for both."""

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader()
        for _ in range(EPOCHS):
            for images, _ in loader:
                one, other = model(images), model(images.flip(3))
                loss = (one - other).square().mean() + one.square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run_.note(loss)
            run_.end_epoch()
        return [model]

    run(script)


def test_the_trunk_called_twice_in_a_step_beside_the_model(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader()
        for _ in range(EPOCHS):
            for images, labels in loader:
                with torch.no_grad():
                    target = model.trunk(images.flip(2))
                loss = F.cross_entropy(model(images), labels) + (model.head(target)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run_.note(loss)
            run_.end_epoch()
        return [model]

    run(script)


def test_trunk_and_head_called_apart(run: Run):
    """Nobody calls the model as a whole."""

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        run_.train(model, optimizer, call=lambda images: model.head(model.trunk(images)))
        return [model]

    run(script)


def test_the_forward_method_called_by_itself(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        run_.train(model, optimizer, call=model.forward)
        return [model]

    run(script)


def test_called_by_torch_func(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        other = {name: value * 1.5 for name, value in model.trunk.state_dict(prefix="trunk.").items()}

        def call(images: Tensor) -> Tensor:
            return torch.func.functional_call(model, other, (images,))

        run_.train(model, optimizer, call=call)
        return [model]

    run(script)


def test_gradients_of_the_input(run: Run):
    """An adversarial training: the gradient passes the frozen trunk."""

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader()
        for epoch in range(EPOCHS):
            for images, labels in loader:
                if epoch % 2:
                    images = images.clone().requires_grad_(True)
                    (gradient,) = torch.autograd.grad(F.cross_entropy(model(images), labels), images)
                    images = (images + 0.01 * gradient.sign()).detach()
                step(run_, model, optimizer, images, labels)
            run_.end_epoch()
        return [model]

    run(script)


def test_a_backward_pass_twice_through_one_graph(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader()
        for _ in range(EPOCHS):
            for images, labels in loader:
                output = model(images)
                loss = F.cross_entropy(output, labels)
                optimizer.zero_grad()
                loss.backward(retain_graph=True)
                output.square().mean().backward()
                optimizer.step()
                run_.note(loss)
            run_.end_epoch()
        return [model]

    assert run(script).served >= 15


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool, run: Run):
    class Casting(Network):
        def forward(self, images: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16) if inside else contextlib.nullcontext():
                features = self.trunk(images)
            return self.head(features.to(self.head.weight.dtype))

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_, Casting())

        def call(images: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
                return model(images).float()

        run_.train(model, optimizer, call=call)
        return [model]

    assert run(script).served >= 15


def test_autocast_in_some_epochs_only(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        epochs = iter(range(1000))

        def call(images: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=next(epochs) // 6 % 2 == 1):
                return model(images).float()

        run_.train(model, optimizer, call=call, epochs=6)
        return [model]

    assert run(script).served >= 10


def test_a_scaler_of_gradients_and_clipping(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        scaler = torch.amp.GradScaler("cpu")
        loader = run_.loader()
        for _ in range(EPOCHS):
            for images, labels in loader:
                loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
                run_.note(loss)
            run_.end_epoch()
        return [model]

    assert run(script).served >= 15


@pytest.mark.parametrize("when", ["model and images", "images", "model", "some batches"])
def test_channels_last(when: str, run: Run):
    def script(run_: Script) -> Any:
        model = Network()
        if "model" in when:
            model = model.to(memory_format=torch.channels_last)
        model, optimizer = begun(run_, model)
        numbers = itertools.count()

        def call(images: Tensor) -> Tensor:
            turns = when == "some batches" and next(numbers) % 5 > 2
            return model(images.contiguous(memory_format=torch.channels_last) if "images" in when or turns else images)

        run_.train(model, optimizer, call=call)
        return [model]

    assert run(script).served >= 8


def test_other_numbers_of_threads_and_algorithms(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)

        def switch(epoch: int) -> None:
            torch.use_deterministic_algorithms(epoch == 2)
            torch.backends.mkldnn.enabled = epoch != 3

        run_.train(model, optimizer, each_epoch=switch)
        switch(0)
        return [model]

    run(script)


def test_double_precision_from_the_middle_on(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        run_.train(model, optimizer, epochs=3)
        model.double()
        run_.train(model, optimizer, call=lambda images: model(images.double()), epochs=3)
        return [model]

    run(script)


# Validation, copies and errors between steps.


def test_validation_in_the_middle_of_an_epoch(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        seen = []

        def validate(number: int) -> None:
            if number % 4 == 3:
                model.eval()
                with torch.no_grad():
                    seen.append(model(IMAGES))
                model.train()

        run_.train(model, optimizer, before=validate)
        return [model, *seen]

    assert run(script).served >= 15


def test_copies_and_checkpoints_in_mid_run(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        copies = []

        def keep(epoch: int) -> None:
            copies.append(copy.deepcopy(model))
            if epoch == 3:
                model.load_state_dict(copies[1].state_dict())
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

        run_.train(model, optimizer, each_epoch=keep)
        return [model, *copies]

    assert run(script).served >= 10


def test_an_error_that_the_script_catches(run: Run):
    """As scripts go on after running out of memory; some raise inside the model, some after it."""

    class Failing(Network):
        def forward(self, images: Tensor) -> Tensor:
            features = self.trunk(images)
            if len(images) == 4:
                raise RuntimeError("out of memory")
            return self.head(features)

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_, Failing())
        loader = run_.loader(batch_size=5)
        numbers = itertools.count()
        for _ in range(EPOCHS):
            for images, labels in loader:
                try:
                    loss = F.cross_entropy(model(images), labels)
                    if next(numbers) % 7 == 6:
                        raise RuntimeError("out of memory")
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    run_.note(loss)
                except RuntimeError:
                    optimizer.zero_grad()
            run_.end_epoch()
        return [model]

    assert run(script).served >= 8


def test_two_models_in_one_loop(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        other = Network()
        other_optimizer = optimizer_of(other)
        loader = run_.loader()
        for _ in range(EPOCHS):
            for images, labels in loader:
                step(run_, other, other_optimizer, images.flip(3), labels)
                step(run_, model, optimizer, images, labels)
            run_.end_epoch()
        return [model, other]

    assert run(script).served >= 15
