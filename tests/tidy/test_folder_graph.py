"""The folders of the C++ tree and of the Python package include and import downwards only, and not in circles."""

from __future__ import annotations

import pathlib

from folder_graph import (
    PACKAGE,
    PYTHON_ORDER,
    Order,
    circle,
    cpp_folder,
    cpp_folder_graph,
    cpp_graph,
    cpp_order,
    cpp_sources,
    import_graph,
    includes,
    python_folder,
    python_folder_graph,
    upward_imports,
    upward_includes,
)
from source_tree import name


def test_every_cpp_file_is_in_a_folder_that_has_a_place_in_the_order() -> None:
    order = cpp_order()
    places = {cpp_folder(order, name(path)) for path in cpp_sources(order)}
    assert places == set(order.folders) - {"egeria"}  # the build generates this folder from proto/egeria


def test_cpp_folders_include_downwards_only() -> None:
    order = cpp_order()
    assert upward_includes(cpp_graph(order), order) == []


def test_no_cpp_folders_or_files_include_each_other_in_a_circle() -> None:
    order = cpp_order()
    graph = cpp_graph(order)
    assert circle(graph) == []
    assert circle(cpp_folder_graph(graph, order)) == []


def test_an_upward_include_is_found() -> None:
    levels = ("egeria", "common/base", "common/rpc common/tensor", "controller worker", "launcher")
    order = Order(tuple(tuple(level.split()) for level in levels))

    def found(file: str, target: str) -> bool:
        return upward_includes({file: {target}}, order) != []

    assert not found("common/rpc/a.cc", "common/base/b.h")
    assert not found("common/rpc/deep/a.cc", "common/rpc/b.h")
    assert not found("launcher/a.cc", "worker/cache/entry/b.h")
    assert not found("worker/a.cc", "egeria/v1/b.pb.h")
    assert found("common/base/a.cc", "common/rpc/b.h")
    assert found("common/rpc/a.cc", "common/tensor/b.h")
    assert found("common/rpc/a.cc", "worker/session/b.h")
    assert found("worker/session/a.cc", "controller/job/b.h")
    assert found("controller/job/a.cc", "worker/session/b.h")
    assert found("worker/session/a.cc", "launcher/b.h")
    assert found("worker/session/a.cc", "tests/support/b.h")


def test_controller_and_worker_never_include_each_other_whatever_their_levels() -> None:
    order = Order((("controller/job",), ("worker/session",)))
    assert upward_includes({"worker/session/a.cc": {"controller/job/b.h"}}, order) != []


def test_includes_are_found_in_a_source() -> None:
    source = '#include "common/base/ids.h"\n#include <vector>\n#include "local.h"\n  // #include "worker/a/b.h"\n'
    assert includes(source) == ["common/base/ids.h"]


def test_every_python_file_is_in_a_folder_that_has_a_place_in_the_order() -> None:
    assert {python_folder(module) for module in import_graph()} == set(PYTHON_ORDER.folders)
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(PYTHON_ORDER.folders) - {""}


def test_python_folders_import_downwards_only() -> None:
    assert upward_imports(import_graph()) == []


def test_no_python_folders_or_files_import_each_other_in_a_circle() -> None:
    graph = import_graph()
    assert circle(graph) == []
    assert circle(python_folder_graph(graph)) == []


def test_imports_are_found_wherever_they_are(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "egeria"
    for room in ("model", "freeze"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "__init__.py").write_text("from egeria.model.one import f\n")
    (package / "freeze" / "two.py").write_text("import egeria.model.one\nfrom egeria import _native\n")
    (package / "model" / "one.py").write_text("def f():\n    from egeria.freeze import two\n")
    graph = import_graph(package)
    assert upward_imports(graph) == ["egeria.model.one imports egeria.freeze.two"]
    assert set(circle(graph)) == {"egeria.model.one", "egeria.freeze.two"}
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import egeria\n"
    (package / "model" / "one.py").write_text(source)
    import_graph.cache_clear()
    assert upward_imports(import_graph(package)) == ["egeria.model.one imports egeria"]
