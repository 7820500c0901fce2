"""Both /metrics endpoints pass promtool, and a real Prometheus scrapes a run."""

import json
import pathlib
import shutil
import subprocess
import urllib.parse

import pytest
from harness import Controller, Job, free_port, http_get, metric, wait_until


@pytest.fixture
def run(tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller):
    """A job that serves its own metrics; yields the ports of (controller, worker)."""
    port = free_port()
    with Job(
        tmp_path,
        "job",
        "--task",
        "digits",
        "--data",
        str(digits),
        "--epochs",
        "100000",
        "--policy",
        "plasticity",
        "--interval",
        "5",
        "--window",
        "4",
        "--bootstrap",
        "off",
        "--schedule",
        "constant",
        "--metrics-port",
        str(port),
        controller=controller.address,
        ranks=1,
    ):
        wait_until(lambda: (metric(controller.metrics(), "egeria_readings_total") or 0) >= 4, 300, "readings")
        yield controller.metrics_port, port


def test_promtool_finds_nothing_to_say(run: tuple[int, int]):
    for port in run:
        text = http_get(f"http://127.0.0.1:{port}/metrics")
        ours = "\n".join(line for line in text.splitlines() if "egeria" in line)
        assert ours, f"no metric of ours on port {port}"
        verdict = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr
        assert 'rank="' not in text


def test_prometheus_scrapes_a_run(tmp_path: pathlib.Path, run: tuple[int, int]):
    port = free_port()
    config = tmp_path / "prometheus.yml"
    targets = ", ".join(f'"127.0.0.1:{each}"' for each in run)
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n"
        f"  - {{job_name: egeria, static_configs: [{{targets: [{targets}]}}]}}\n"
    )
    server = subprocess.Popen(
        [
            shutil.which("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def query(expression: str) -> list:
        try:
            answer = http_get(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(expression)}")
        except OSError:
            return []
        return json.loads(answer)["data"]["result"]

    try:
        wait_until(lambda: len(query('up{job="egeria"} == 1')) == 2, 300, "both targets up")
        wait_until(lambda: query("egeria_readings_total > 0"), 300, "readings in Prometheus")
        wait_until(lambda: query("egeria_worker_steps_total > 0"), 300, "steps in Prometheus")
    finally:
        server.terminate()
        server.wait(timeout=300)
