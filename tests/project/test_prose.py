"""Docstrings are imperative, and the private words of the first version do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [path for folder in ("src", "reproduction", "tests", "benchmarks", "examples", "docs") for path in sorted((ROOT / folder).rglob("*.py"))]  # fmt: skip
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPENINGS = {"Give", "Gives", "Say", "Says", "Spell", "Spells", "Tell", "Tells"}
PRIVATE = re.compile(r"\b(whoever|lets nobody|front door|at home|so many (?:rounds|clients|lines))\b")


def read_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every docstring of a file with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def test_no_docstring_begins_with_give_say_tell_or_spell():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in CODE
        for line, text in read_docstrings(path)
        if text.split()[0].rstrip(".,:;") in OPENINGS
    ]
    assert not found


def test_private_words_are_gone():
    in_code = [
        (path, text) for path in CODE if "tests" not in path.parts for _, text in read_docstrings(path)
    ]
    in_pages = [(path, path.read_text(encoding="utf-8")) for path in PAGES]
    found = [f"{path.relative_to(ROOT)}: {match[0]}" for path, text in [*in_code, *in_pages] for match in PRIVATE.finditer(text)]  # fmt: skip
    assert not found


@pytest.mark.parametrize("word", [
    "federation", "client", "round", "update", "run", "plan", "request", "leaver", "remaining clients", "erasure", "audit", "verdict", "cell",
])  # fmt: skip
def test_the_glossary_defines_the_projects_words(word):
    assert f"| **{word}** |" in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
