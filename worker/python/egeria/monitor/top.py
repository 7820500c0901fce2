"""This is the command `egeria top`, which shows a controller's jobs in a terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from egeria.monitor import words
from egeria.monitor.controller_api import DEFAULT_ADDRESS, ControllerApi, NoAnswer

try:
    from rich.text import Text
    from textual import work
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.containers import VerticalScroll
    from textual.widgets import DataTable, Footer, Header, Static
except ImportError as missing:
    raise SystemExit("egeria top: it needs the package textual; run pip install 'egeria[top]'") from missing

_JOB_COLUMNS = ("Job", "State", "Step", "Ranks", "Frozen", "Net saved")
_MODULE_COLUMNS = ("No.", "Module", "Plasticity", "Slope", "Threshold", "Signal to noise", "Threshold of it")
_RANK_COLUMNS = ("Rank", "Connected", "Step", "Frozen", "Samples sent", "Dropped", "Reconnects")
_DECISION_COLUMNS = ("Step", "What", "Frozen", "By", "Why")


class Top(App[None]):
    """The jobs; and below them the one that the cursor is on: its cache, modules, ranks and decisions."""

    TITLE = "Egeria"
    CSS = """
    #jobs { height: auto; max-height: 40%; }
    #trouble { color: $error; height: auto; }
    #sentences, #cache { height: auto; margin-top: 1; }
    #modules, #ranks, #decisions { height: auto; margin-top: 1; }
    """
    BINDINGS = [Binding("q", "quit", "Quit"), Binding("r", "refresh", "Ask now")]

    def __init__(self, api: ControllerApi, every: float = 2.0) -> None:
        super().__init__()
        self._api = api
        self._every = every
        self._chosen: str | None = None  # the id of the job under the cursor

    def compose(self) -> ComposeResult:
        # An answer may come while the app ends, when no widget can be looked up any more.
        self._trouble = Static(id="trouble")
        self._jobs = DataTable(id="jobs", cursor_type="row")
        self._sentences = Static(id="sentences")
        self._cache = Static(id="cache")
        self._modules = DataTable(id="modules", cursor_type="none")
        self._ranks = DataTable(id="ranks", cursor_type="none")
        self._decisions = DataTable(id="decisions", cursor_type="none")
        yield Header()
        yield self._trouble
        yield self._jobs
        with VerticalScroll():
            yield self._sentences
            yield self._cache
            yield self._modules
            yield self._ranks
            yield self._decisions
        yield Footer()

    def on_mount(self) -> None:
        self._jobs.add_columns(*_JOB_COLUMNS)
        self._modules.add_columns(*_MODULE_COLUMNS)
        self._ranks.add_columns(*_RANK_COLUMNS)
        self._decisions.add_columns(*_DECISION_COLUMNS)
        self._jobs.focus()
        self.set_interval(self._every, self.action_refresh)
        self.action_refresh()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table is self._jobs and event.row_key.value != self._chosen:
            self._chosen = event.row_key.value
            self.action_refresh()

    def action_refresh(self) -> None:
        self._ask(self._chosen)

    @work(thread=True, exclusive=True)
    def _ask(self, chosen: str | None) -> None:
        """Asks on a thread of its own, so that the keys answer while a controller does not."""
        try:
            jobs = self._api.jobs()
            known = [job["id"] for job in jobs["jobs"]]
            shown = chosen if chosen in known else next(iter(known), None)
            job = self._api.job(shown) if shown else None
            history = self._api.history(shown) if shown else None
        except NoAnswer as error:
            self.call_from_thread(self._show_trouble, str(error))
        else:
            self.call_from_thread(self._show, jobs, job, history)

    def _show_trouble(self, text: str) -> None:
        self._trouble.update(Text(text))

    def _show(self, jobs: dict[str, Any], job: dict[str, Any] | None, history: dict[str, Any] | None) -> None:
        phases = ", ".join(f"{count} {phase}" for phase, count in jobs["phases"].items())
        self.sub_title = f"{phases} · version {jobs['version']}"
        self._show_trouble(jobs["trouble"])
        rows = {
            each["id"]: (
                each["label"],
                words.state(each),
                words.steps(each),
                f"{each['connected_ranks']} of {each['ranks']}",
                words.frozen(each),
                words.seconds(words.net(each)),
            )
            for each in jobs["jobs"]
        }
        _fill(self._jobs, rows)
        if job is None:
            self._sentences.update("The controller holds no job yet.")
            self._cache.update("")
            return
        self._sentences.update(Text(f"{job['name']}: " + " ".join(job["words"])))
        self._cache.update(Text(words.cache(job)))
        modules = {
            str(index): (
                str(index),
                ("* " if index < job["applied_prefix"] else "  ") + module["name"],
                words.number(module.get("plasticity")),
                words.number(module.get("slope")),
                words.number(module.get("threshold")),
                words.interval(module),
                words.number(module.get("snr_threshold")),
            )
            for index, module in enumerate(job["module_states"])
        }
        _fill(self._modules, modules)
        ranks = {
            str(rank["rank"]): (
                str(rank["rank"]),
                "yes" if rank["connected"] else "no",
                f"{rank['step']:,}",
                str(rank["frozen_prefix"]),
                f"{rank['samples_sent']:,}",
                f"{rank['samples_dropped']:,}",
                str(rank["reconnects"]),
            )
            for rank in job["rank_states"]
        }
        _fill(self._ranks, ranks)
        decisions = {
            f"{index}": (
                f"{decision['step']:,}",
                decision["action"],
                str(decision["frozen_prefix"]),
                decision["origin"],
                decision["reason"],
            )
            for index, decision in reversed(list(enumerate(history["decisions"])))
        }
        _fill(self._decisions, decisions)


def _fill(table: DataTable, rows: dict[str, tuple[str, ...]]) -> None:
    """Puts rows into a table, and leaves the cursor on the row that it was on. Names are text, not markup."""
    if [key.value for key in table.rows] != list(rows):
        chosen = None
        if table.row_count > 0:
            chosen = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        table.clear()
        for key, cells in rows.items():
            table.add_row(*map(Text, cells), key=key)
        if chosen in rows:
            table.move_cursor(row=list(rows).index(chosen))
        return
    for row, cells in enumerate(rows.values()):
        for column, cell in enumerate(cells):
            if str(table.get_cell_at((row, column))) != cell:
                table.update_cell_at((row, column), Text(cell), update_width=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 0; 2 where nobody answers."""
    parser = argparse.ArgumentParser(prog="egeria top", description="Show a controller's jobs in a terminal.")
    parser.add_argument(
        "address",
        nargs="?",
        default=os.environ.get("EGERIA_METRICS", DEFAULT_ADDRESS),
        help=f"the controller's metrics address (default: $EGERIA_METRICS, else {DEFAULT_ADDRESS})",
    )
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks (default 2)")
    parsed = parser.parse_args(arguments)
    if parsed.every < 0.2:
        parser.error("--every must be at least 0.2")
    api = ControllerApi(parsed.address)
    try:
        api.jobs()
    except NoAnswer as error:
        print(f"egeria top: {error}", file=sys.stderr)
        return 2
    Top(api, parsed.every).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
