"""The extension beside packages that bring a protobuf or a gRPC of their own, and beside a torch of another version."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from harness import Controller
from launching import HERE

import egeria
from egeria import _native

# Each package does this when its turn comes: enough to run its own protobuf or gRPC.
USES = {
    "egeria": """
        from egeria import _native
        from link_job import describe_job, graph_json
        assert _native.check_graph(graph_json()) is None
        link = _native.RankLink(describe_job(), controller=ADDRESS)
    """,
    "grpcio": """
        import grpc
        channel = grpc.insecure_channel(ADDRESS)
        grpc.channel_ready_future(channel).result(60)
    """,
    "protobuf": """
        from google.protobuf import json_format, struct_pb2
        struct = json_format.Parse('{"a": [1, {"b": null}]}', struct_pb2.Struct())
        assert struct_pb2.Struct.FromString(struct.SerializeToString()) == struct
    """,
    "onnx": """
        import onnx
        graph = onnx.helper.make_graph([], "g", [], [])
        onnx.load_from_string(onnx.helper.make_model(graph).SerializeToString())
    """,
    "tensorboard": """
        import tempfile
        from torch.utils.tensorboard import SummaryWriter
        with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
            writer.add_scalar("loss", 1.0, 1)
    """,
}

# At the end everything is used again, while the link's stream is open.
AT_THE_END = """
    import time
    deadline = time.monotonic() + 60
    while not link.counters()["connected"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if "channel" in globals():
        grpc.channel_ready_future(channel).result(60)
    link.commit(1)
    link.stop(finished=True)
    print("to the end")
"""

ORDERS = [
    *(("egeria", other) for other in USES if other != "egeria"),
    *((other, "egeria") for other in USES if other != "egeria"),
    *(order for order in itertools.permutations(("egeria", "grpcio", "onnx"))),
    ("protobuf", "onnx", "tensorboard", "grpcio", "egeria"),
    ("egeria", "tensorboard", "grpcio", "onnx", "protobuf"),
    ("tensorboard", "egeria", "protobuf", "grpcio", "onnx"),
]


def run(program: str, *, path: list[pathlib.Path] | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_import_order(controller: Controller, order: tuple[str, ...]):
    program = "\n".join(
        [
            f"ADDRESS = {controller.address!r}",
            *(textwrap.dedent(USES[package]) for package in order),
            textwrap.dedent(AT_THE_END),
        ]
    )
    ended = run(program)
    assert ended.returncode == 0 and ended.stdout.endswith("to the end\n"), ended.stderr


def test_no_symbol_of_protobuf_or_grpc_is_exported():
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--demangle", _native.__file__],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "PyInit__native" in listed
    assert not [line for line in listed.splitlines() if "protobuf" in line or "grpc" in line or "absl" in line]


def fake_torch(folder: pathlib.Path, version: str) -> pathlib.Path:
    """A package `torch` of this version, which has nothing but it."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return folder


@pytest.mark.parametrize("version", ["2.12.1+cu130", "2.14.0", "3.13.0"])
def test_another_torch_is_refused_with_what_to_do(tmp_path: pathlib.Path, version: str):
    ended = run("import egeria", path=[fake_torch(tmp_path, version)])
    assert ended.returncode == 1
    message = ended.stderr.splitlines()[-1]
    assert message.startswith(
        f"ImportError: egeria {egeria.__version__} was built for torch {_native.built_for_torch}, "
        f"but torch {version} is installed: "
    )
    assert f"pip install 'torch=={_native.built_for_torch}.*'" in message


def test_a_missing_torch_is_named_with_what_to_do(tmp_path: pathlib.Path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")
    ended = run("import egeria", path=[tmp_path])
    assert ended.stderr.splitlines()[-1].startswith(f"ImportError: egeria {egeria.__version__} needs torch, which is")


def test_a_fault_inside_torch_is_not_taken_for_a_missing_torch(tmp_path: pathlib.Path):
    (tmp_path / "torch.py").write_text("import a_part_of_torch\n")
    ended = run("import egeria", path=[tmp_path])
    assert "a_part_of_torch" in ended.stderr.splitlines()[-1]
