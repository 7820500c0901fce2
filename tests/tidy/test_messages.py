"""Messages to people keep the rules of prose: each sentence has a subject, and none is long or tells history."""

from __future__ import annotations

from messages import broken, broken_in, cpp_messages, python_messages, sources


def test_messages_keep_the_rules_of_prose() -> None:
    assert [fault for path in sources() for fault in broken_in(path)] == []


def test_messages_are_found_in_cpp() -> None:
    source = """
      // "a comment is no message"
      LogWarning("the cache in ", options_.folder, " cannot be read: ", opened.ToString(),
                 "; its "
                 "lists are kept");
      out << "one" << x << "two\\n";
    """
    assert [message for _, message in cpp_messages(source)] == [
        "the cache in X cannot be read: X; its lists are kept",
        "oneXtwo\n",
    ]


def test_messages_are_found_in_python() -> None:
    source = '"""No message."""\n\ndef f(x):\n    """None either."""\n    return f"step {x} of {x}" "!" + "a"\n'
    assert [message for _, message in python_messages(source)] == ["step X of X!", "a"]


def test_what_breaks_a_rule_is_found() -> None:
    assert broken("it stops. What is frozen stays") == []  # three words
    assert broken("What is frozen stays so for ever") == ["no subject: What is frozen stays so for ever"]
    assert broken("it is no longer asked for") == ["history: it is no longer asked for"]
    assert broken("it took .5 of that time") == ["decimal without a zero: it took .5 of that time"]
    assert [fault[:12] for fault in broken("word " * 41)] == ["more than 40"]
