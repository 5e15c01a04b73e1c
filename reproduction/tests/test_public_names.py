"""The package builds on public names of feduhb alone: those of `feduhb.__all__` and of its documented packages."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "feduhb_reproduction"
PACKAGES = {
    "feduhb", "feduhb.audit", "feduhb.cli", "feduhb.core", "feduhb.data", "feduhb.engines", "feduhb.errors", "feduhb.methods",
    "feduhb.report", "feduhb.runs", "feduhb.stopping",
}  # fmt: skip


def list_imports(path: Path) -> list[tuple[str, str]]:
    """Return the names of feduhb that a file imports or reads, as (module, name)."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "feduhb":
            found += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(a.name, "") for a in node.names if a.name.partition(".")[0] == "feduhb"]
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "feduhb"
        ):
            found.append(("feduhb", node.attr))
    return found


def list_public(module: str) -> list[str]:
    """Return the public names of a module: a documented package, or a module that such a package lists."""
    package, _, name = module.rpartition(".")
    if module in PACKAGES:
        return importlib.import_module(module).__all__
    if package in PACKAGES and name in importlib.import_module(package).__all__:
        return [name for name in vars(importlib.import_module(module)) if not name.startswith("_")]
    return []


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_imports_public_names_alone(path):
    for module, name in list_imports(path):
        assert not name or name in list_public(module), f"{path.name} imports {name} of {module}: not public"
        assert name or module in PACKAGES, f"{path.name} imports {module}: not public"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_public_name_is_there(package):
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
