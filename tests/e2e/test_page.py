"""The controller's page in a real Chromium: what it shows of a run, and that it shows nothing else."""

import http.client
import json
import pathlib
import re
import subprocess

import pytest
from browser import Visit, browser
from harness import Controller, Job, http_get, metric, wait_until

NAME = "digits <script>alert(1)</script>"
ARGUMENTS = (
    "--policy",
    "plasticity",
    "--interval",
    "4",
    "--window",
    "4",
    "--bootstrap",
    "off",
    "--schedule",
    "constant",
)
GATHER = """() => [...document.querySelectorAll("[data-metric][data-value]")].map((each) =>
    ({metric: each.dataset.metric, value: Number(each.dataset.value), module: each.dataset.module}))"""


@pytest.fixture
def visit():
    with browser() as open_page:
        yield open_page


def start(tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller, epochs: int) -> Job:
    return Job(
        tmp_path,
        "job",
        *("--task", "digits", "--data", str(digits), "--epochs", str(epochs), *ARGUMENTS),
        controller=controller.address,
        environment={"EGERIA_TRAINING_JOB": NAME},
    )


def numbers(visit: Visit) -> dict[tuple[str, str | None], float]:
    """The numbers that the page shows, by metric and module."""
    return {(each["metric"], each.get("module")): each["value"] for each in visit.page.evaluate(GATHER)}


def of_metrics(text: str, name: str, module: str | None) -> float | None:
    labels = {"module": module} if module else {}
    return metric(text, name, **labels, **({"state": "applied"} if name == "egeria_frozen_prefix" else {}))


def scalars(folder: pathlib.Path) -> dict[str, list[float]]:
    """The values in event files, by tag."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def open_job(visit: Visit, controller: Controller) -> str:
    """Goes from the list of jobs to the only one, by the keyboard; returns the address of the page."""
    address = f"http://127.0.0.1:{controller.metrics_port}/"
    visit.page.goto(address)
    visit.page.wait_for_selector("#jobs tbody a")
    visit.page.focus("#jobs tbody a")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector("#tiles div")
    return address


def test_a_finished_run_has_the_numbers_of_metrics(tmp_path, digits, controller, visit):
    # Long enough that something freezes on a busy machine, too, where readings come late.
    with start(tmp_path, digits, controller, epochs=120) as job:
        open_job(visit, controller)
        job.wait()
    wait_until(lambda: metric(controller.metrics(), "egeria_connected_ranks") == 0, 60, "the end of all streams")
    visit.page.wait_for_selector("#phase:text('finished')")
    metrics = controller.metrics()
    wait_until(lambda: numbers(visit).get(("egeria_connected_ranks", None)) == 0, 60, "the page to see that")
    shown = numbers(visit)
    expected = {key: of_metrics(metrics, *key) for key in shown}
    assert shown == pytest.approx(expected)
    assert {"egeria_job_step", "egeria_frozen_prefix", "egeria_readings_total", "egeria_plasticity"} <= {
        name for name, _ in shown
    }
    assert visit.complaints == []
    # The same history goes to TensorBoard.
    said = controller.egeria("export", NAME, "--tensorboard", str(tmp_path / "board"))
    assert "tensorboard --logdir" in said
    frozen = [
        int(value) for value in re.findall(r'"frozen_prefix":(\d+)', controller.egeria("export", NAME, "--decisions"))
    ]
    assert scalars(tmp_path / "board")["frozen_prefix"] == frozen
    with pytest.raises(subprocess.CalledProcessError):
        controller.egeria("export", NAME, "--tensorboard", str(tmp_path / "board"))


def test_a_running_job_is_followed_and_its_decisions_are_explained(tmp_path, digits, controller, visit):
    with start(tmp_path, digits, controller, epochs=100_000):
        address = open_job(visit, controller)
        visit.page.wait_for_selector("#decisions tbody tr", timeout=300_000)
        before = metric(controller.metrics(), "egeria_job_step")
        wait_until(lambda: numbers(visit)[("egeria_job_step", None)] > before, 60, "a later step")
        assert numbers(visit)[("egeria_job_step", None)] <= metric(controller.metrics(), "egeria_job_step")

        listed = json.loads(controller.egeria("export", NAME, "--decisions").splitlines()[0])
        oldest = visit.page.locator("#decisions tbody tr").last.inner_text()
        reason = listed["reason"]
        assert reason[0].upper() + reason[1:] in oldest
        assert f"{listed['step']:,}" in oldest
        assert "Freeze module" in oldest
        assert visit.page.locator("#timeline canvas").count() == 3
        assert visit.page.locator("#measures canvas").count() == 2

        # A name is text, wherever it is shown.
        assert visit.page.locator("#name").inner_text() == NAME
        assert visit.page.locator("main script").count() == 0
        assert all(url.startswith(address) for url in visit.asked), "something was asked for elsewhere"

        # A term is explained to whoever reaches it by the keyboard.
        visit.page.focus("#tiles .term")
        assert "Layer modules" in visit.page.locator("#tip").inner_text()

        visit.page.set_viewport_size({"width": 400, "height": 800})
        light = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        visit.page.emulate_media(color_scheme="dark")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        visit.page.wait_for_selector("#timeline figure:nth-of-type(3)")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400
    assert visit.complaints == []


def test_it_says_that_the_controller_is_gone_and_comes_back_with_it(controller, visit):
    visit.page.goto(f"http://127.0.0.1:{controller.metrics_port}/")
    visit.page.wait_for_selector("#no-jobs:visible")
    controller.stop()
    visit.page.wait_for_selector("#trouble:visible", timeout=60_000)
    assert "does not answer" in visit.page.locator("#trouble").inner_text()
    controller.start()
    visit.page.wait_for_selector("#trouble", state="hidden", timeout=60_000)


def test_nobody_can_change_anything_by_it(controller):
    address = f"127.0.0.1:{controller.metrics_port}"
    for method in ("POST", "PUT", "DELETE"):
        connection = http.client.HTTPConnection(address)
        connection.request(method, "/api/jobs")
        assert connection.getresponse().status == 405
    connection = http.client.HTTPConnection(address)
    connection.request("GET", "/")
    headers = connection.getresponse().headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_can_be_switched_off(tmp_path):
    with Controller(tmp_path, "--metrics-page=false") as controller:
        assert "egeria_jobs" in controller.metrics()
        with pytest.raises(OSError, match="404"):
            http_get(f"http://127.0.0.1:{controller.metrics_port}/")
