"""The graphs of C++ and Python folders: python tests/tidy/folder_graph.py prints which includes or imports which."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable, Iterator

from source_tree import ROOT, files, name, text

PACKAGE = ROOT / "worker" / "python" / "egeria"
CPP_ORDER = ROOT / "deploy" / "cmake" / "folder_order.txt"  # CMake reads the same file
TOWERS = ("controller", "worker")  # they never include each other

# This is the order of the package's folders, from the bottom, by the same rules as that of the C++ folders. "" stands
# for the files at the package's top, which every folder may use.
PYTHON_LEVELS = (
    ("",),
    ("model",),
    ("freeze",),
    ("reference", "gradients"),
    ("data",),
    ("cache",),
    ("frozen_forward",),
    ("training",),
    ("cached_calls",),
    ("doctor", "integrations", "monitor", "trial"),
)
GENERATED = {"egeria._native", "egeria._version"}  # by the build; they import nothing of the package

Graph = dict[str, set[str]]  # a file or module: what it includes or imports of the same tree


@dataclasses.dataclass(frozen=True)
class Order:
    """The levels of folders, the lowest first. A folder belongs to the nearest one above it that is listed."""

    levels: tuple[tuple[str, ...], ...]

    @property
    def folders(self) -> list[str]:
        return [folder for level in self.levels for folder in level]

    def level(self, folder: str) -> int:
        return next(index for index, level in enumerate(self.levels) if folder in level)

    def listed(self, folder: str) -> str | None:
        """The listed folder that this one belongs to, None where there is none."""
        parts = folder.split("/")
        candidates = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((candidate for candidate in candidates if candidate in self.folders), None)

    def goes_down(self, folder: str, target: str) -> bool:
        if {folder.split("/")[0], target.split("/")[0]} == set(TOWERS):
            return False
        return folder == target or self.level(target) < self.level(folder)


def cpp_order(path: pathlib.Path = CPP_ORDER) -> Order:
    lines = path.read_text(encoding="utf-8").splitlines()
    return Order(tuple(tuple(line.split()) for line in lines if line.strip() and not line.startswith("#")))


PYTHON_ORDER = Order(PYTHON_LEVELS)


def cpp_sources(order: Order) -> list[pathlib.Path]:
    """The sources and headers of the trees that the order speaks of."""
    tops = {folder.split("/")[0] for folder in order.folders}
    return [path for path in files("*.cc", "*.h") if name(path).split("/")[0] in tops]


def includes(source: str) -> list[str]:
    """The headers that a source includes by a folder; a header without a folder is not ours."""
    return re.findall(r'^#include "([^"]+/[^"]+)"', source, re.MULTILINE)


def cpp_graph(order: Order) -> Graph:
    tops = {folder.split("/")[0] for folder in order.folders} | {"tests", "bench", "proto"}
    return {
        name(path): {target for target in includes(text(path)) if target.split("/")[0] in tops}
        for path in cpp_sources(order)
    }


def cpp_folder(order: Order, file: str) -> str | None:
    return order.listed(file.rpartition("/")[0])


def upward_includes(graph: Graph, order: Order) -> list[str]:
    """Includes that go against the order, or into a tree that no source may include, such as tests/."""
    found = []
    for file, targets in graph.items():
        folder = cpp_folder(order, file)
        for target in sorted(targets):
            into = cpp_folder(order, target)
            if folder is None or into is None or not order.goes_down(folder, into):
                found.append(f"{file} includes {target}")
    return found


def module_name(file: pathlib.Path, package: pathlib.Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str) -> Iterator[tuple[str, str | None]]:
    """(module, name in it) of every import, also of those in functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import: {ast.unparse(node)}"
            yield from ((str(node.module), alias.name) for alias in node.names)


@functools.cache
def import_graph(package: pathlib.Path = PACKAGE) -> Graph:
    modules = {module_name(file, package): file for file in sorted(package.rglob("*.py"))}
    graph: Graph = {module: set() for module in modules}
    for module, file in modules.items():
        for source, part in imported(file.read_text(encoding="utf-8")):
            if source.partition(".")[0] != package.name:
                continue
            inner = f"{source}.{part}"
            target = inner if inner in modules or inner in GENERATED else source
            if target not in GENERATED:
                graph[module].add(target)
    return graph


def python_folder(module: str) -> str:
    """The folder of a module; "" for the files at the package's top."""
    _, _, rest = module.partition(".")
    folder, _, file = rest.partition(".")
    return folder if file or folder in PYTHON_ORDER.folders else ""


def upward_imports(graph: Graph) -> list[str]:
    """Imports that go against the order. The package's __init__.py stands above all folders, so nothing imports it."""
    return [
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in sorted(targets)
        if target == PACKAGE.name
        or (module != PACKAGE.name and not PYTHON_ORDER.goes_down(python_folder(module), python_folder(target)))
    ]


def circle(graph: Graph) -> list[str]:
    """The nodes of some circle, in order; empty where there is none."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for target in sorted(graph.get(path[-1], ())):
            if target in path:
                return [*path[path.index(target) :], target]
            if target not in done and (found := search([*path, target])):
                return found
        done.add(path[-1])
        return []

    return next((found for node in graph if node not in done and (found := search([node]))), [])


def folder_arrows(pairs: Iterable[tuple[str, str]], order: Order) -> Graph:
    """The graph of folders that the (folder, folder) of all includes or imports make."""
    graph: Graph = {folder: set() for folder in order.folders}
    for folder, target in pairs:
        if folder != target:
            graph[folder].add(target)
    return graph


def cpp_folder_graph(graph: Graph, order: Order) -> Graph:
    pairs = ((cpp_folder(order, file), cpp_folder(order, target)) for file in graph for target in graph[file])
    return folder_arrows(((folder, target) for folder, target in pairs if folder and target), order)


def python_folder_graph(graph: Graph) -> Graph:
    return folder_arrows(
        (
            (python_folder(module), python_folder(target))
            for module in graph
            if module != PACKAGE.name
            for target in graph[module]
        ),
        PYTHON_ORDER,
    )


def print_graph(title: str, arrows: Graph, order: Order, upward: list[str], around: list[str]) -> None:
    print(title)
    for folder in filter(None, order.folders):
        print(f"  {folder} -> {', '.join(sorted(filter(None, arrows[folder]), key=order.folders.index))}".rstrip(" ->"))
    for line in upward:
        print(f"  upward: {line}")
    if around:
        print(f"  a circle: {' -> '.join(around)}")


def main() -> None:
    order = cpp_order()
    cpp, python = cpp_graph(order), import_graph()
    print_graph("C++:", cpp_folder_graph(cpp, order), order, upward_includes(cpp, order), circle(cpp))
    arrows = python_folder_graph(python)
    print_graph("Package egeria:", arrows, PYTHON_ORDER, upward_imports(python), circle(python))


if __name__ == "__main__":
    main()
