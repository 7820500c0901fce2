"""Draws the pictures of this folder: python docs/internals/draw.py makes an SVG beside each .puml file.

It needs Debian's package plantuml, which brings graphviz. Where the reader's browser prefers dark colours, the SVG has
them. Each SVG names the hash of its source, so that a test sees when one was changed without the other.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import subprocess
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
PAPER = '<rect class="paper" width="100%" height="100%" fill="#FFFFFF"/>'
DARK = """<style>
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  line, path, polygon, rect, ellipse { stroke: #8b949e !important }
  [fill="#FFFFFF"] { fill: #0d1117 }
  [fill="#F8F8F8"], [fill="#EEEEEE"] { fill: #161b22 }
  .paper { stroke: none !important }
  [fill="#383838"] { fill: #8b949e }
}
</style>"""


def sources() -> list[pathlib.Path]:
    return sorted(FOLDER.glob("*.puml"))


def mark(source: pathlib.Path) -> str:
    """A comment that says from what an SVG was made."""
    digest = hashlib.sha256(source.read_bytes() + (FOLDER / "style.iuml").read_bytes()).hexdigest()
    return f"<!-- made from {source.name}, SHA-256 {digest} -->"


def draw(source: pathlib.Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = ["plantuml", "-tsvg", "-nometadata", "-charset", "utf-8", "-o", folder, source.name]
        subprocess.run(command, cwd=FOLDER, check=True)
        drawn = (pathlib.Path(folder) / source.with_suffix(".svg").name).read_text(encoding="utf-8")
    svg = re.sub(r"^<\?xml[^>]*>|<!--.*?-->", "", drawn, flags=re.DOTALL)
    return re.sub(r"(<svg[^>]*>)", rf"\1{mark(source)}{DARK}{PAPER}", svg, count=1) + "\n"


def main() -> None:
    for source in sources():
        source.with_suffix(".svg").write_text(draw(source), encoding="utf-8")


if __name__ == "__main__":
    main()
