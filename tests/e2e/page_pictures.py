"""Takes the pictures of docs/guides/monitoring.md from a run of the quickstart's job.

usage: python tests/e2e/page_pictures.py FOLDER
"""

import pathlib
import subprocess
import sys
import tempfile

from browser import Visit, browser
from harness import ROOT, Controller, Job

# The quickstart's third run, long enough to see it.
ARGUMENTS = ("--epochs", "60", "--schedule", "step", "--lr-milestones", "0.6", "--seed", "0")
RULE = ("--policy", "plasticity", "--interval", "4", "--window", "4")


def take(visit: Visit, path: pathlib.Path) -> None:
    visit.page.mouse.move(0, 0)
    visit.page.wait_for_timeout(2500)  # the page has asked once more
    visit.page.screenshot(path=path, full_page=True)
    print(path)


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, Controller(pathlib.Path(scratch)) as controller, browser() as visit:
        digits = f"{scratch}/digits.bin"
        subprocess.run([sys.executable, ROOT / "deploy" / "digits" / "export_digits.py", digits], check=True)
        task = ("--task", "digits", "--data", digits, *ARGUMENTS, *RULE)
        name = {"EGERIA_TRAINING_JOB": "digits"}
        with Job(pathlib.Path(scratch), "digits", *task, controller=controller.address, environment=name) as job:
            visit.page.goto(f"http://127.0.0.1:{controller.metrics_port}/")
            visit.page.click("#jobs tbody a", timeout=300_000)
            visit.page.wait_for_selector("#measures figure", timeout=300_000)
            take(visit, out / "page-running.png")
            visit.page.wait_for_selector("#decisions tbody tr", timeout=300_000)
            take(visit, out / "page-decision.png")
            job.wait()
        visit.page.wait_for_selector("#phase:text('finished')", timeout=60_000)
        take(visit, out / "page-finished.png")
        if visit.complaints:
            raise SystemExit(f"the page has complained: {visit.complaints}")


if __name__ == "__main__":
    main()
