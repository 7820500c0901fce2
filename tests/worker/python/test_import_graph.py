"""Rooms of the package import downwards only, and files not in circles. As a script, it prints the graph of rooms."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "worker" / "python" / "egeria"

# This is the order of the rooms, from the bottom. A file may import from its own room and from lower levels; the rooms
# of one level do not import each other. "" stands for the files at the package's top, which every room may use.
LEVELS = (
    ("",),
    ("model",),
    ("freeze",),
    ("reference", "gradients"),
    ("data",),
    ("cache",),
    ("training",),
    ("doctor", "integrations"),
)
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
GENERATED = {"egeria._native", "egeria._version"}  # by the build; they import nothing of the package

Graph = dict[str, set[str]]  # a module's name: the modules of the package that it imports


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


def import_graph(package: pathlib.Path = PACKAGE) -> Graph:
    files = {module_name(file, package): file for file in sorted(package.rglob("*.py"))}
    graph: Graph = {name: set() for name in files}
    for name, file in files.items():
        for module, part in imported(file.read_text(encoding="utf-8")):
            if module.partition(".")[0] != package.name:
                continue
            inner = f"{module}.{part}"
            target = inner if inner in files or inner in GENERATED else module
            if target not in GENERATED:
                graph[name].add(target)
    return graph


def room_of(module: str) -> str:
    """The folder of a module; "" for the files at the package's top."""
    _, _, rest = module.partition(".")
    room, _, file = rest.partition(".")
    return room if file or room in LEVEL_OF else ""


def upward_imports(graph: Graph) -> list[str]:
    """Imports that go against the order. The package's __init__.py stands above all rooms, so nothing imports it."""
    return [
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in sorted(targets)
        if target == PACKAGE.name or (name != PACKAGE.name and not _goes_down(room_of(name), room_of(target)))
    ]


def _goes_down(room: str, target: str) -> bool:
    return room == target or LEVEL_OF[target] < LEVEL_OF[room]


def circle(graph: Graph) -> list[str]:
    """The modules of some circle, in order; empty where there is none."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for target in sorted(graph.get(path[-1], ())):
            if target in path:
                return [*path[path.index(target) :], target]
            if target not in done and (found := search([*path, target])):
                return found
        done.add(path[-1])
        return []

    return next((found for name in graph if name not in done and (found := search([name]))), [])


def test_every_file_is_in_a_room_that_has_a_place_in_the_order() -> None:
    assert {room_of(name) for name in import_graph()} == set(LEVEL_OF)
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(LEVEL_OF) - {""}


def test_rooms_import_downwards_only() -> None:
    assert upward_imports(import_graph()) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(import_graph()) == []


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
    assert upward_imports(import_graph(package)) == ["egeria.model.one imports egeria"]


def main() -> None:
    graph = import_graph()
    for room in (room for rooms in LEVELS for room in rooms if room):
        targets = {room_of(target) for name in graph if room_of(name) == room for target in graph[name]}
        print(f"{room} -> {', '.join(sorted(targets - {room, ''}, key=LEVEL_OF.__getitem__))}".rstrip())
    for line in upward_imports(graph):
        print(f"upwards: {line}")
    if found := circle(graph):
        print(f"a circle: {' -> '.join(found)}")


if __name__ == "__main__":
    main()
