"""Measures the cost of watching: the same run with Egeria in observe mode against the plain run, interleaved.

usage: observe_overhead.py DIR [--rounds N] [--steps N] [--interval n]      DIR: CIFAR-10's binary files

ResNet-20, two ranks, a controller on the same machine. Every round trains both once, in turn; a ratio is taken
within a round. Prints the seconds of training steps (as the summaries have them) and the ratios.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "e2e")]
from harness import Controller, Job  # found through the line above

from benchmarks.recording import Recording, add_record_option, percents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of CIFAR-10's binary files")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--interval",
        type=int,
        default=5,
        help="steps between readings (default 5, the guideline's for a run of 1,248 steps)",
    )
    add_record_option(parser)
    arguments = parser.parse_args()

    common = (
        "--task",
        "resnet20",
        "--data",
        arguments.data,
        "--train-samples",
        "10000",
        "--validation-samples",
        "500",
        "--epochs",
        "16",
        "--stop-after",
        str(arguments.steps),
    )
    # No waiting for the loss, so that all steps are watched.
    watched = ("--policy", "plasticity", "--observe", "--bootstrap", "off", "--interval", str(arguments.interval))
    plain, observe = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with Controller(folder) as controller:
            for index in range(arguments.rounds):
                order = ("plain", "observe") if index % 2 == 0 else ("observe", "plain")
                for kind in order:
                    if kind == "plain":
                        plain.append(Job(folder, "plain", *common).wait())
                    else:
                        observe.append(Job(folder, "observe", *common, *watched, controller=controller.address).wait())
    for a, b in zip(plain, observe):
        assert a["parameters_hash"] == b["parameters_hash"], "observe changed the training"
    ratios = [b["seconds"] / a["seconds"] for a, b in zip(plain, observe)]
    print(f"samples sent per run: {statistics.median(run['samples_sent'] for run in observe)}")
    print("seconds plain:  ", " ".join(f"{run['seconds']:.2f}" for run in plain))
    print("seconds observe:", " ".join(f"{run['seconds']:.2f}" for run in observe))
    print(f"observe / plain: min {min(ratios):.3f}  median {statistics.median(ratios):.3f}  max {max(ratios):.3f}")
    recording = Recording()
    recording.add("native ResNet-20 in observe mode, of the plain time", percents(ratios), "%")
    recording.write(arguments.record, arguments.rounds)


if __name__ == "__main__":
    main()
