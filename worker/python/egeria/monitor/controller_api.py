"""Asks a controller at its metrics address what its page shows (docs/guides/monitoring.md)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

DEFAULT_ADDRESS = "127.0.0.1:9464"


class NoAnswer(Exception):
    """Nobody answers there, or it is no controller that has a page; the text says what to do."""


class ControllerApi:
    """Asks a controller at `address`, "host:port", or a URL that leads to it. Thread-safe."""

    def __init__(self, address: str = DEFAULT_ADDRESS, patience: float = 5.0) -> None:
        self._base = (address if "://" in address else f"http://{address}").rstrip("/")
        self._patience = patience
        # The controller is on this machine or on a known one; a proxy would not know it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def jobs(self) -> dict[str, Any]:
        return self._ask("jobs")

    def job(self, job_id: str) -> dict[str, Any]:
        return self._ask(f"jobs/{job_id}")

    def history(self, job_id: str) -> dict[str, Any]:
        return self._ask(f"jobs/{job_id}/history")

    def _ask(self, path: str) -> dict[str, Any]:
        url = f"{self._base}/api/{path}"
        try:
            with self._opener.open(url, timeout=self._patience) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            advice = "the job has gone, or the controller's option metrics.page is false"
            raise NoAnswer(f"{url} answers {error.code}: {advice}") from error
        except (OSError, ValueError) as error:
            advice = "give the controller's metrics address, such as egeria top 127.0.0.1:9464"
            raise NoAnswer(f"no controller answers at {url} ({error}); {advice}") from error
