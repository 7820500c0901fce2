"""Writes the tables of constants in reference/policies.md and internals/plasticity.md, from their one declaration.

    python docs/policy_constants.py           writes them
    python docs/policy_constants.py --check   fails where a file differs from what would be written

A table stands between the lines `<!-- constants: POLICY -->` and `<!-- end of constants -->`. The constants are
declared in common/policy/policy_config.cc; this script reads them from the installed package.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from egeria import _native

PAGES = [Path(__file__).resolve().parent / name for name in ("reference/policies.md", "internals/plasticity.md")]
_TABLE = re.compile(r"(<!-- constants: (\w+) -->\n).*?(<!-- end of constants -->)", re.DOTALL)


def table(policy: dict[str, Any]) -> str:
    """The policy's constants, one a line."""
    lines = ["| constant | default | range | what it is |", "|---|---|---|---|"]
    for constant in policy["constants"]:
        name = f"`{constant['name']}`" + (f", {constant['unit']}" if constant["unit"] else "")
        lines.append(f"| {name} | {constant['default']} | {constant['range']} | {constant['sentence']} |")
    return "\n".join(line.replace("|slope|", "\\|slope\\|") for line in lines) + "\n"


def written(page: str) -> str:
    """The page with each of its tables as it should be."""
    policies = {policy["name"]: policy for policy in json.loads(_native.policies())}
    return _TABLE.sub(lambda found: found[1] + table(policies[found[2]]) + found[3], page)


def main() -> int:
    status = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if "--check" not in sys.argv[1:]:
            page.write_text(written(text), encoding="utf-8")
        elif written(text) != text:
            print(f"{page} differs from the constants of the policies; run {sys.argv[0]}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
