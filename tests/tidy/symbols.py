"""Finds functions that nothing but tests calls: python tests/tidy/symbols.py prints them.

This is a heuristic over names, not a compiler. A C++ function counts as used when its name stands, outside of its own
declarations and definitions, in a source that includes its header, directly or not; a Python function when its name
stands in any module. So two functions of one name may hide each other, and a call from dead code counts. The reports
are nearly always right; functions that are missed are missed silently.
"""

from __future__ import annotations

import ast
import collections
import functools
import re
from collections.abc import Iterator

from comments import CPP_CODE
from folder_graph import includes
from source_tree import files, name, text

CPP_TREES = ("common/", "controller/", "jobs/", "worker/", "launcher/")
PYTHON_TREES = ("worker/python/egeria/", "bench/")
USERS = ("worker/python/examples/", "tests/benchmarks/")  # functions that these call are used
FOREIGN = "worker/commit/gloo_declarations/"  # copies of another library's headers
CPP_COMMENT = re.compile(r"//.*")
# A declaration in a header, or an inline definition, has the words of a type before the name; a call has none.
DECLARED = re.compile(r"^[ \t]*(?:[\w:<>,*&]+[ \t]+)+[*&]?(\w+)\(", re.MULTILINE)
DEFINED = re.compile(r"^[\w:<>][\w:<>,*& \t\[\]()]*?[ \t*&:](\w+)\(", re.MULTILINE)  # begins in the first column
STATEMENT = re.compile(r"[ \t]*(?:return|throw|else|new|case|if|for|while|switch|using|friend|delete)\b|.*=")
MACRO = re.compile(r"[A-Z0-9_]+$")


def cpp_code(source: str) -> str:
    """A source without comments and includes, its string literals emptied."""
    lines = (CPP_COMMENT.sub("", CPP_CODE.sub('""', line)) for line in source.splitlines())
    return "\n".join(line for line in lines if not line.startswith("#include"))


def cpp_declared(header: str) -> list[str]:
    """The functions that a header declares; those that override are called by the name of their base."""
    code = cpp_code(header)
    return [
        match[1]
        for match in DECLARED.finditer(code)
        if not STATEMENT.match(match[0])
        and not MACRO.match(match[1])
        and match[1] != "operator"
        and not re.search(r"\boverride\b", re.split("[;{]", code[match.end() :], maxsplit=1)[0])
    ]


def cpp_used(source: str, is_header: bool) -> set[str]:
    """The names that stand in a source otherwise than in their declaration or definition."""
    code = cpp_code(source)
    counts = collections.Counter(re.findall(r"\b[A-Za-z]\w*\b", code))
    counts.subtract(cpp_declared(source) if is_header else (match[1] for match in DEFINED.finditer(code)))
    return {word for word, count in counts.items() if count > 0}


def unused_in_cpp(sources: dict[str, str]) -> list[tuple[str, str]]:
    """(function, header that declares it) of those that no source, given as path: text, uses by name."""
    included = {path: set(includes(source)) & set(sources) for path, source in sources.items()}

    def reached(path: str) -> set[str]:
        found, ahead = {path}, [path]
        while ahead:
            new = included[ahead.pop()] - found
            found |= new
            ahead += new
        return found

    used: dict[str, set[str]] = {path: set() for path in sources}
    for path, source in sources.items():
        words = cpp_used(source, path.endswith(".h"))
        for header in reached(path):
            used[header] |= words
    return [
        (function, path)
        for path, source in sources.items()
        if path.endswith(".h") and not path.startswith(FOREIGN)
        for function in dict.fromkeys(cpp_declared(source))
        if function not in used[path]
    ]


def python_defined(tree: ast.Module) -> Iterator[str]:
    """The functions of a module, but those that Python or a decorator such as @atexit.register calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            if not any(ast.unparse(decorator) == "atexit.register" for decorator in node.decorator_list):
                yield node.name


def python_used(tree: ast.Module) -> Iterator[str]:
    """Names and attributes that a module reads, and its strings of one word, which getattr() may be given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def unused_in_python(sources: dict[str, str], examined: tuple[str, ...] = PYTHON_TREES) -> list[tuple[str, str]]:
    """(function, file that defines it) of those that no source, given as path: text, uses by name."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    used = {word for tree in trees.values() for word in python_used(tree)}
    return [
        (function, path)
        for path, tree in trees.items()
        if path.startswith(examined)
        for function in python_defined(tree)
        if function not in used
    ]


def cpp_sources() -> dict[str, str]:
    return _sources(("*.cc", "*.h"), (*CPP_TREES, *USERS))


def python_sources() -> dict[str, str]:
    return _sources(("*.py",), (*PYTHON_TREES, *USERS))


def _sources(patterns: tuple[str, ...], trees: tuple[str, ...]) -> dict[str, str]:
    paths = {name(path): path for path in files(*patterns)}
    return {written: text(path) for written, path in paths.items() if written.startswith(trees)}


@functools.cache
def unused() -> tuple[tuple[str, str], ...]:
    """(function, file) of the repository's functions that nothing but tests uses."""
    return (*unused_in_cpp(cpp_sources()), *unused_in_python(python_sources()))


def main() -> None:
    tests = "\n".join(text(path) for path in files("*.cc", "*.h", "*.py") if name(path).startswith("tests/"))
    words = set(re.findall(r"\w+", tests))
    for function, path in unused():
        print(f"{path}: {function} ({'only tests use it' if function in words else 'nothing uses it'})")


if __name__ == "__main__":
    main()
