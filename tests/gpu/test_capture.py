"""CUDA graphs of the user's own, with a session attached."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from cache_daemon import Daemon, wait_until_kept
from gpu_training import Options, Training, same, tensors_of
from harness import Controller
from test_cache import BATCH, Images
from torch import Tensor
from torch.utils.data import DataLoader

import egeria
from egeria import data

pytestmark = pytest.mark.only_cuda


class Captured:
    """A training whose whole step is one CUDA graph, as torch's documentation of CUDA graphs shows it."""

    def __init__(self, **config: object):
        self.training = Training(Options(optimizer="adamw-capturable"))
        self.session = self.training.attach(**config) if config else None
        self.images, self.labels = self.training.images(), self.training.labels()
        self.warm_up()
        self.graph = torch.cuda.CUDAGraph()
        self.training.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self.loss = self.take_step()

    def warm_up(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.training.optimizer.zero_grad(set_to_none=True)
                self.take_step()
        torch.cuda.current_stream().wait_stream(side)

    def take_step(self) -> Tensor:
        loss = F.cross_entropy(self.training.model(self.images), self.labels)
        loss.backward()
        self.training.optimizer.step()
        if self.session is not None:
            self.session.step(loss)
        return loss

    def replay(self, steps: int) -> list[Tensor]:
        losses = []
        for _ in range(steps):
            self.training.step += 1
            self.images.copy_(self.training.images())
            self.labels.copy_(self.training.labels())
            self.graph.replay()
            losses.append(self.loss.detach().clone())
        return losses


@pytest.mark.parametrize("policy", ["none", "plasticity", "gradnorm"])
def test_a_captured_step_is_left_alone(policy: str, controller: Controller, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    plain = Captured()
    losses = plain.replay(10)
    torch.manual_seed(0)
    watched = Captured(controller=controller.address, policy=policy, total_steps=100, observe=True)
    assert same(watched.replay(10), losses)
    assert same(watched.training.state(), plain.training.state())
    assert "[CUDA_GRAPH]" in caplog.text
    watched.session.close()


def test_frozen_layers_inside_a_captured_model_are_refused() -> None:
    training = Training(Options())
    example = training.images()
    state = training.state()
    torch.cuda.make_graphed_callables(training.network, (example,))
    training.restore(state)
    with pytest.raises(egeria.EgeriaError, match="CUDA_GRAPH"):
        training.attach(plans=[(2, 2)])


def test_layers_that_are_captured_one_by_one_freeze() -> None:
    training = Training(Options(graphed=("stem", "blocks.0", "blocks.1")))
    session = training.attach(plans=[(3, 2)])
    training.train(3, session)
    frozen = tensors_of([unit for module in session.modules[:2] for unit in module.units])
    training.train(5, session)
    assert session.prefix == 2
    assert same(tensors_of([unit for module in session.modules[:2] for unit in module.units]), frozen)


def test_threads_of_the_cache_do_not_break_a_capture(patient_cache: Daemon) -> None:
    """A capture in torch's default mode fails where another thread of the process allocates or asks for an event."""
    training = Training(Options())
    session = training.attach(plans=[(2, 2)], cache=patient_cache.address, cache_use="always")
    loader = data.wrap(DataLoader(Images(), BATCH, shuffle=True))
    for _ in range(3):
        for images, labels in loader:
            training.step += 1
            training.take_step(images.cuda(), labels.cuda(), session)
            if training.step == 2:
                wait_until_kept(session)
        wait_until_kept(session)
    assert session.cache_counters()["passes_skipped"] > 0
    cache = session._training.caching._cache
    tensor = torch.randn(64, 64, device="cuda")
    ahead = session.cache_counters()["cache_batches_ahead"]
    torch.cuda.synchronize()
    for size in range(8, 14):  # other sizes than before, so that memory is taken
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            cache.expect([list(range(size)), list(range(size, 2 * size))])
            for _ in range(20):
                tensor = tensor * 1.001
                time.sleep(0.01)
        assert cache.take(list(range(size)), [0] * size, 5.0)[1] == ["other_input"] * size
    assert session.cache_counters()["cache_batches_ahead"] > ahead
