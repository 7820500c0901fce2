"""Finds messages to people that break the rules of prose: python tests/tidy/messages.py [FOLDER ...] prints them.

Messages are the string literals of the programs and of the package that have at least one sentence: log lines, errors,
help texts, reports. Literals that follow each other are one message, and what is filled in counts as one word.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

from comments import CPP_CODE, HEADLESS
from markdown_text import sentences, words
from prose import BARE_DECIMAL, HISTORY, LONGEST_SENTENCE, STACKED
from source_tree import files, name, text

TREES = ("common/", "controller/", "jobs/", "worker/", "launcher/", "bench/")
FEWEST_WORDS = 5  # shorter sentences are names, keys and fragments
FILLED_IN = re.compile(r"%[-+#0 ]*[\d*]*(?:\.[\d*]+)?(?:z|l|ll)?[dsfgeuvx]|\$\d|\{\w*\}")
CPP_COMMENT = re.compile(r"//[^\n]*")
# Literals, and the calls between them that StrCat() and operator<< have: "a ", x, " b" or "a " << x << " b".
CPP_MESSAGE = re.compile(r'"(?:\\.|[^"\\\n])*"(?:[\s+<,]*(?:[\w.:>()\-*\[\]]{1,60}[\s+<,]*)?"(?:\\.|[^"\\\n])*")*')
CPP_LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')


def cpp_messages(source: str) -> Iterator[tuple[int, str]]:
    code = re.sub(CPP_CODE.pattern + "|" + CPP_COMMENT.pattern, _without_comment, source)
    for found in CPP_MESSAGE.finditer(code):
        pieces = CPP_LITERAL.split(found[0])
        between = pieces[2:-1:2]
        message = pieces[1]
        for gap, literal in zip(between, pieces[3::2], strict=True):
            message += literal if not gap.strip() else f"X{literal}"
        yield source.count("\n", 0, found.start()) + 1, message.replace("\\n", "\n").replace('\\"', '"')


def _without_comment(found: re.Match[str]) -> str:
    return found[0] if found[0][0] in "\"'" else " " * len(found[0])


def python_messages(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    inside = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in ast.walk(node)}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _documents(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | docstrings:
            yield node.lineno, node.value


def _documents(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)


def broken(message: str) -> list[str]:
    """ "RULE: SENTENCE" for each sentence of a message that breaks a rule."""
    found = []
    for paragraph in message.split("\n\n"):
        for sentence in sentences(" ".join(FILLED_IN.sub("X", paragraph).split())):
            if len(words(sentence)) < FEWEST_WORDS:
                continue
            if len(words(sentence)) > LONGEST_SENTENCE:
                found.append(f"more than {LONGEST_SENTENCE} words: {sentence}")
            for rule, pattern in (("history", HISTORY), ("decimal without a zero", BARE_DECIMAL), ("stacked", STACKED)):
                if pattern.search(sentence):
                    found.append(f"{rule}: {sentence}")
            if HEADLESS.match(sentence) and not sentence.endswith("?"):
                found.append(f"no subject: {sentence}")
    return found


def broken_in(path: pathlib.Path) -> list[str]:
    read = python_messages if path.suffix == ".py" else cpp_messages
    return [f"{name(path)}:{line}: {fault}" for line, message in read(text(path)) for fault in broken(message)]


def sources() -> tuple[pathlib.Path, ...]:
    return tuple(path for path in files("*.cc", "*.h", "*.py") if name(path).startswith(TREES))


def main() -> None:
    wanted = tuple(folder.rstrip("/") for folder in sys.argv[1:])
    for path in sources():
        if not wanted or name(path).startswith(wanted):
            print("".join(f"{line}\n" for line in broken_in(path)), end="")


if __name__ == "__main__":
    main()
