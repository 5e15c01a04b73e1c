"""Messages and help never send a person to a file of the repository, which an installed package does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("src", "reproduction/src") for path in (ROOT / folder).rglob("*.py"))
REPOSITORY = re.compile(r"\bdocs/[\w/-]+\.md|\b(README|CONTRIBUTING|CHANGELOG)\.md")
# They write a model's or a study's README.md, and files of the repository.
WRITERS = {"runs/export.py", "feduhb_reproduction/pages.py", "study/page.py", "benchmark/page.py"}


def list_messages(path: Path) -> Iterator[str]:
    """Yield the texts in a file that a person may be shown: all strings, and of docstrings those of commands."""
    tree = ast.parse(path.read_text())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    documented = [node for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node)]
    docstrings = {id(node.body[0].value) for node in documented if isinstance(node.body[0], ast.Expr)}
    is_command = path.parent.name == "cli" or path.stem.endswith("_command")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (is_command or id(node) not in docstrings)
        ):
            yield node.value


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_messages_name_no_file_of_the_repository(path):
    found = [text for text in list_messages(path) if REPOSITORY.search(text)]
    assert f"{path.parent.name}/{path.name}" in WRITERS or not found


def test_a_message_that_does_is_found(tmp_path):
    """Whether a string is plain, formatted or the docstring of a command."""
    folder = tmp_path / "cli"
    folder.mkdir()
    (folder / "made.py").write_text(
        'def made(path):\n    """Read docs/config.md."""\n    raise ValueError(f"{path}: see docs/config.md")\n'
    )
    assert [bool(REPOSITORY.search(text)) for text in list_messages(folder / "made.py")].count(True) == 2
    (tmp_path / "made.py").write_text((folder / "made.py").read_text())
    assert [bool(REPOSITORY.search(text)) for text in list_messages(tmp_path / "made.py")].count(True) == 1
