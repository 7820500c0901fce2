"""No function is there for tests alone, unless it is listed here with the reason."""

from __future__ import annotations

import ast
import re

from symbols import cpp_declared, cpp_used, python_used, unused, unused_in_cpp, unused_in_python

CALLED_BY_A_FRAMEWORK = "The framework calls its callbacks by name."
# (file, function; "*" for all functions of the file): why it stays although nothing outside of tests calls it.
ALLOWED = {
    ("common/graph/graph.h", "AllowedOperators"): "Tests run every operator of the allowlist through the engine.",
    ("controller/job/journal.h", "KeyForTest"): "A test damages single entries of the journal.",
    ("controller/job/standing_requests.h", "reference_ready"): "A test watches this state, which decides silently.",
    ("worker/agent/loss_buffer.h", "dropped"): "A test counts the losses that the bounded buffer pushed out.",
    ("worker/session/session_metrics.h", "Text"): "A test reads the metrics without a socket.",
    ("worker/python/egeria/integrations/huggingface.py", "*"): CALLED_BY_A_FRAMEWORK,
    ("worker/python/egeria/integrations/lightning.py", "*"): CALLED_BY_A_FRAMEWORK,
    ("worker/python/egeria/monitor/top.py", "*"): CALLED_BY_A_FRAMEWORK,
}


def test_only_what_is_listed_here_is_there_for_tests_alone() -> None:
    unlisted = [entry for entry in unused() if (entry[1], entry[0]) not in ALLOWED and (entry[1], "*") not in ALLOWED]
    assert unlisted == []


def test_what_is_listed_here_is_still_there_and_still_unused() -> None:
    found = {(path, function) for function, path in unused()}
    paths = {path for path, _ in found}
    assert [entry for entry in ALLOWED if entry not in found and not (entry[1] == "*" and entry[0] in paths)] == []


def test_a_function_counts_as_used_where_a_source_that_includes_its_header_names_it() -> None:
    sources = {
        "common/a/a.h": "int Used(int x);\nint Dead();\nclass C {\n  bool idle() const { return idle_; }\n};\n",
        "common/a/a.cc": '#include "common/a/a.h"\nint Used(int x) { return x; }\nint Dead() { return 1; }  // Dead\n',
        "common/b/b.h": '#include "common/a/a.h"\n',
        "common/b/b.cc": '#include "common/b/b.h"\nvoid F() { Used(1); Log("Dead"); }\n',
        "common/c/c.cc": "void G() { Dead(); }\n",
    }
    assert unused_in_cpp(sources) == [("Dead", "common/a/a.h"), ("idle", "common/a/a.h")]


def test_what_is_no_declaration_is_not_taken_for_one() -> None:
    header = """
        int Area(int x) ABSL_LOCKS_EXCLUDED(mutex_);
        void B() override;
        int c = Call(1);
        return Call(2);
    """
    assert cpp_declared(re.sub("^ {8}", "  ", header, flags=re.MULTILINE)) == ["Area"]
    assert cpp_used("int Defined() { return Called(); }\n", is_header=False) >= {"Called"}
    assert "Defined" not in cpp_used("int Defined() { return Called(); }\n", is_header=False)


def test_a_python_function_counts_as_used_where_a_module_names_it() -> None:
    sources = {
        "bench/a.py": "def used(): pass\ndef dead(): pass\ndef by_name(): pass\nclass C:\n    def method(self): pass\n",
        "bench/b.py": "from bench.a import used\nused()\ngetattr(C(), 'by_name')\n",
    }
    assert unused_in_python(sources) == [("dead", "bench/a.py"), ("method", "bench/a.py")]
    assert set(python_used(ast.parse("a.b('c d')"))) == {"a", "b"}
