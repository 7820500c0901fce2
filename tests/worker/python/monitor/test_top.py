"""`egeria top`, driven by textual's pilot against a server that answers as a controller does."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading

import pytest

from egeria.monitor import words
from egeria.monitor.controller_api import ControllerApi, NoAnswer

pytest.importorskip("textual", reason="there is no textual")
from textual.widgets import DataTable, Static  # noqa: E402

from egeria.monitor.top import Top, main  # noqa: E402


def job_of(number: int, **changes) -> dict:
    job = {
        "id": f"0000000{number}-0000-4000-8000-000000000000",
        "label": f"[b]job {number}[/b]",
        "name": f"[b]job {number}[/b]",
        "phase": "running",
        "blocked": "",
        "words": ["Nothing is in the way."],
        "cache_words": ["The cache is asked."],
        "paused": False,
        "observing": False,
        "bootstrapping": False,
        "step": 1000 * number,
        "total_steps": 9000,
        "ranks": 2,
        "connected_ranks": 2,
        "modules": 2,
        "applied_prefix": 1,
        "frozen_parameters_ratio": 0.25,
        "saved_seconds": 150.0,
        "spent_seconds": 30.0,
        "module_states": [
            {"name": "stem", "plasticity": 1e-5, "slope": -2e-7, "threshold": 1e-6},
            {"name": "head", "snr": 0.1, "snr_lower": 0.05, "snr_upper": 0.2, "snr_threshold": 0.06},
        ],
        "cache": {
            "state": "on",
            "reason": "",
            "hits": 900,
            "computed": 100,
            "bytes_read": 3 << 20,
            "saved_seconds": 12.0,
        },
        "rank_states": [
            {
                "rank": rank,
                "connected": rank == 0,
                "step": 1000,
                "frozen_prefix": 1,
                "samples_sent": 50,
                "samples_dropped": 0,
                "reconnects": 2,
            }
            for rank in range(2)
        ],
    }
    return job | changes


HISTORY = {
    "decisions": [
        {"step": 400, "action": "freeze", "frozen_prefix": 1, "origin": "policy", "reason": "module 0: flat"},
        {"step": 900, "action": "unfreeze", "frozen_prefix": 0, "origin": "operator", "reason": "by hand"},
    ]
}


class Controller:
    """Serves `jobs`, and counts what it is asked."""

    def __init__(self):
        self.jobs = [
            job_of(1),
            job_of(2, blocked="the loss is NaN", words=["Nothing more can freeze. The loss is NaN."]),
        ]
        self.trouble = ""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = outer.answer(self.path)
                self.send_response(200 if body is not None else 404)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.api = ControllerApi(f"127.0.0.1:{self.server.server_port}")

    def answer(self, path: str):
        if path == "/api/jobs":
            phases = {"running": len(self.jobs), "silent": 0, "finished": 0}
            return {"version": "1.2.3", "trouble": self.trouble, "phases": phases, "jobs": self.jobs}
        for job in self.jobs:
            if path == f"/api/jobs/{job['id']}":
                return job
            if path == f"/api/jobs/{job['id']}/history":
                return HISTORY
        return None

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def controller():
    served = Controller()
    yield served
    served.stop()


def cells(app: Top, name: str) -> list[list[str]]:
    table = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def text(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


async def until(pilot, condition) -> None:
    for _ in range(200):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not come")


def test_it_shows_the_jobs_and_the_one_under_the_cursor(controller: Controller):
    async def look():
        app = Top(controller.api, every=0.2)
        async with app.run_test(size=(140, 50)) as pilot:
            await until(pilot, lambda: len(cells(app, "decisions")) == 2)
            assert cells(app, "jobs")[0] == [
                "[b]job 1[/b]",
                "running",
                "1,000 of 9,000",
                "2 of 2",
                "1 of 2 (25.0 %)",
                "2.0 min",
            ]
            assert cells(app, "jobs")[1][1] == "running, blocked"
            assert text(app, "sentences") == "[b]job 1[/b]: Nothing is in the way."
            assert cells(app, "modules")[0] == ["0", "* stem", "1e-05", "-2e-07", "1e-06", "–", "–"]
            assert cells(app, "modules")[1][5:] == ["0.1 (0.05..0.2)", "0.06"]
            assert cells(app, "ranks") == [
                ["0", "yes", "1,000", "1", "50", "0", "2"],
                ["1", "no", "1,000", "1", "50", "0", "2"],
            ]
            assert "900 of 1,000 samples were skipped, 3 MiB read, and 12.0 s saved" in text(app, "cache")
            assert cells(app, "decisions")[0] == ["900", "unfreeze", "0", "operator", "by hand"]
            await pilot.press("down")
            await until(pilot, lambda: "The loss is NaN" in text(app, "sentences"))
            controller.jobs[1]["step"] = 2500
            await until(pilot, lambda: cells(app, "jobs")[1][2] == "2,500 of 9,000")
            assert app.query_one("#jobs", DataTable).cursor_row == 1
            controller.jobs.insert(0, job_of(3))
            await until(pilot, lambda: len(cells(app, "jobs")) == 3)
            assert app.query_one("#jobs", DataTable).cursor_row == 2, "the cursor stays on its job"

    asyncio.run(look())


def test_it_goes_on_asking_while_the_controller_is_in_trouble_or_gone(controller: Controller):
    async def look():
        app = Top(controller.api, every=0.2)
        async with app.run_test() as pilot:
            await until(pilot, lambda: len(cells(app, "jobs")) == 2)
            controller.trouble = "journal: the disk is full"
            await until(pilot, lambda: "the disk is full" in text(app, "trouble"))
            controller.stop()
            await until(pilot, lambda: "no controller answers" in text(app, "trouble"))
            await pilot.press("q")

    asyncio.run(look())


def test_nobody_answers(capsys):
    assert main(["127.0.0.1:1"]) == 2
    assert "egeria top: no controller answers at http://127.0.0.1:1/api/jobs" in capsys.readouterr().err
    with pytest.raises(NoAnswer):
        ControllerApi("127.0.0.1:1").job("x")


def test_a_line_says_what_the_cache_does():
    told = ["The cache does not pay, so it is not asked."]
    assert words.cache({"cache_words": told}) == f"Cache: {told[0]}"
    nothing = {"hits": 0, "computed": 0}
    assert words.cache({"cache_words": told, "cache": nothing}) == f"Cache: {told[0]}"
    assert [words.size(value) for value in (12, 2048, 5 << 40)] == ["12 bytes", "2 KiB", "5 TiB"]
