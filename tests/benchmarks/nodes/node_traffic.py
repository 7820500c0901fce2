#!/usr/bin/env python3
"""Measures what a frozen prefix spares the network between nodes: bytes on the wire, and time of a step.

usage: node_traffic.py [options]
Needs root, ip, tc and unshare, the package (PYTHONPATH=build/dev/python) and EGERIA_BIN (build/dev/bin).

Nodes are network namespaces of this machine, joined by a bridge. Each has one link, shaped by tc to a rate and, where
the kernel has netem, delayed. Every node runs egeria-run with some ranks of a ResNet-18 on random images of 32 x 32
pixels; a plan freezes the front after some steps. For each link, hook and frozen prefix: the median time of a step, and
the bytes that the first node sends in one, with the least and the most of the rounds. All of them take turns.

The ranks of all nodes share this machine's cores, so that computing takes longer than on machines of their own, and
the network's share of a step is smaller.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from benchmarks.recording import Recording, add_record_option

WARM_UP, MEASURED = 6, 12  # steps; the plan freezes behind the second one
PARTS = ["stem", "layer1", "layer2", "layer3", "layer4", "head"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="of each node (default 2)")
    parser.add_argument("--links", default="1gbit,100mbit", help="rates as tc has them (default %(default)s)")
    parser.add_argument("--delay", default="1ms", help="of each link, where the kernel has netem (default 1ms)")
    parser.add_argument("--prefixes", default="0,3,4", help=f"frozen modules of {', '.join(PARTS)} (default 0,3,4)")
    parser.add_argument("--hooks", default="none,bf16", help="DistributedDataParallel's communication hooks")
    parser.add_argument("--batch-size", type=int, default=4, help="of each rank (default 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="file that a line for each run is added to")
    add_record_option(parser)
    for name in ("--job", "--prefix", "--hook", "--link"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


# These functions are a rank's.


def sent_bytes() -> int:
    """The bytes that this node has sent to others so far."""
    for line in pathlib.Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.strip().partition(":")
        if name == "eth0":
            return int(numbers.split()[8])
    raise RuntimeError("this process is in no node of the benchmark")


def train(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    import egeria

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = resnet18()
    wrapped = DistributedDataParallel(model)
    if arguments.hook == "bf16":
        # DistributedDataParallel refuses the hook itself where there is no NCCL, though gloo can do it.
        wrapped.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    plans = [(2, int(arguments.prefix))] if arguments.prefix != "0" else []
    config = egeria.Config.from_env(plans=plans, controller="none", cache="none")
    session = egeria.attach(wrapped, optimizer, modules=PARTS, total_steps=WARM_UP + MEASURED, config=config)
    images, labels = torch.randn(arguments.batch_size, 3, 32, 32), torch.randint(10, (arguments.batch_size,))
    times, bytes_before = [], 0
    for step in range(WARM_UP + MEASURED):
        if step == WARM_UP:
            dist.barrier()
            bytes_before = sent_bytes()
        begin = time.perf_counter()
        loss = F.cross_entropy(wrapped(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
        times.append(time.perf_counter() - begin)
    dist.barrier()
    report = {
        "seconds": statistics.median(times[WARM_UP:]),
        "bytes": (sent_bytes() - bytes_before) / MEASURED,
        "frozen": session.prefix,
    }
    session.close()
    if dist.get_rank() == 0:
        pathlib.Path(arguments.job).write_text(json.dumps(report), encoding="utf-8")
    dist.destroy_process_group()


def resnet18():  # noqa: ANN201  # torch is loaded in the ranks only
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, out: int, stride: int):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
            same = stride == 1 and width == out
            self.around = (
                nn.Identity() if same else nn.Sequential(nn.Conv2d(width, out, 1, stride), nn.BatchNorm2d(out))
            )

        def forward(self, x):  # noqa: ANN001, ANN202
            return (self.second(self.first(x)) + self.around(x)).relu()

    model = nn.Sequential()
    model.add_module("stem", nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()))
    for number, (width, out) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
        stride = 1 if number == 1 else 2
        model.add_module(f"layer{number}", nn.Sequential(Block(width, out, stride), Block(out, out, 1)))
    model.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)))
    return model


# These functions are the network's.


def in_namespaces() -> None:
    """Runs this program again in network and mount namespaces of its own, which take all that is made in them along."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare"))):
        sys.exit("node_traffic.py needs root, and ip, tc and unshare (Debian's iproute2 and util-linux)")
    os.environ["NODE_TRAFFIC"] = "made"
    os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def make_nodes(count: int) -> None:
    run("mount", "-t", "tmpfs", "none", "/run")  # where ip keeps the names of namespaces
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "link", "set", "br0", "up")
    for node in range(1, count + 1):
        run("ip", "netns", "add", f"node{node}")
        run("ip", "link", "add", f"link{node}", "type", "veth", "peer", "name", "eth0", "netns", f"node{node}")
        run("ip", "link", "set", f"link{node}", "master", "br0", "up")
        for command in (f"addr add 10.77.0.{node}/24 dev eth0", "link set eth0 up", "link set lo up"):
            run("ip", "-n", f"node{node}", *command.split())


def shape(count: int, rate: str, delay: str) -> bool:
    """Shapes both directions of every node's link. Returns whether they are delayed, too."""
    delayed = False
    for node in range(1, count + 1):
        for where in (["-n", f"node{node}"], []):
            device = "eth0" if where else f"link{node}"
            limit = ["rate", rate, "burst", "256kb", "latency", "100ms"]
            run("tc", *where, "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf", *limit)
            netem = ["tc", *where, "qdisc", "replace", "dev", device, "parent", "1:1", "netem", "delay", delay]
            delayed = subprocess.run(netem, check=False, capture_output=True).returncode == 0
    return delayed


def measure(arguments: argparse.Namespace, hook: str, prefix: str) -> dict[str, float]:
    """Trains on all nodes once. Returns the first rank's report."""
    launcher = pathlib.Path(os.environ["EGERIA_BIN"]) / "egeria-run"
    with tempfile.TemporaryDirectory() as folder:
        job = f"{folder}/report.json"
        options = ["--job", job, "--hook", hook, "--prefix", prefix, "--batch-size", str(arguments.batch_size)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        nodes = []
        for node in range(1, arguments.nodes + 1):
            command = ["ip", "netns", "exec", f"node{node}", str(launcher), "--egeria-controller", "none"]
            command += ["--egeria-cache", "none", "--nnodes", str(arguments.nodes)]
            command += ["--nproc-per-node", str(arguments.ranks), "--rdzv-backend", "c10d", "--rdzv-id", "nodes"]
            command += ["--rdzv-conf", f"is_host={node == 1}", "--rdzv-endpoint", "10.77.0.1:29500"]
            command += ["--local-addr", f"10.77.0.{node}", __file__, *options]
            with open(f"{folder}/node{node}.log", "wb") as log:
                nodes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        if any([node.wait() for node in nodes]):
            logs = [pathlib.Path(f"{folder}/node{node}.log").read_text() for node in range(1, arguments.nodes + 1)]
            sys.exit("a node has failed\n" + "\n".join(logs))
        return json.loads(pathlib.Path(job).read_text(encoding="utf-8"))


def spread(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.2f} {unit} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    arguments = parse_arguments()
    if arguments.job:
        train(arguments)
        return
    if os.environ.get("NODE_TRAFFIC") != "made":
        in_namespaces()
    make_nodes(arguments.nodes)
    links, hooks, prefixes = (text.split(",") for text in (arguments.links, arguments.hooks, arguments.prefixes))
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for number, link in itertools.product(range(arguments.rounds), links):
        delayed = shape(arguments.nodes, link, arguments.delay)
        for hook, prefix in itertools.product(hooks, prefixes):
            report = measure(arguments, hook, prefix)
            found.setdefault((link, hook, prefix), []).append(report)
            if arguments.json:
                with arguments.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"round": number, "link": link, "hook": hook, "prefix": prefix, **report}))
                    file.write("\n")
    print(f"{arguments.nodes} nodes of {arguments.ranks} ranks;", end=" ")
    print(
        f"links are delayed by {arguments.delay}."
        if delayed
        else "this kernel has no netem, so that no link is delayed."
    )
    recording = Recording("link, hook, frozen modules")
    for (link, hook, prefix), reports in found.items():
        plain = found[link, hook, prefixes[0]]
        ratios = [100 * (1 - one["seconds"] / other["seconds"]) for one, other in zip(reports, plain)]
        seconds = spread([report["seconds"] for report in reports], "s a step")
        what = f"{link}, {hook}, {prefix}"
        recording.add(what, [report["seconds"] for report in reports], "s", "a step")
        recording.add(what, [report["bytes"] / 1e6 for report in reports], "MB", "bytes of a step")
        megabytes = spread([report["bytes"] / 1e6 for report in reports], "MB a step")
        saved = "" if prefix == prefixes[0] else f"; {spread(ratios, '% less time')}"
        print(f"{link}, hook {hook}, {prefix} of {len(PARTS)} modules frozen: {seconds}, {megabytes}{saved}")
    recording.write(arguments.record, arguments.rounds)


if __name__ == "__main__":
    main()
