"""The import table of docs/design.md, held; and what may be imported without what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "feduhb"

STANDARD = {"errors"}
MAY_IMPORT = {
    "errors": set(),
    "records": STANDARD,
    "stopping": STANDARD | {"records"},
    "cells": STANDARD | {"records"},
    "core": STANDARD | {"records", "stopping", "torch"},
    "methods": STANDARD | {"core", "torch"},
    "data": STANDARD | {"core", "torch", "numpy", "mlxtend", "sklearn"},
    "models": STANDARD | {"core", "torch"},
    "history": STANDARD | {"core", "records", "torch", "safetensors"},
    "engines": STANDARD | {"core", "data", "torch"},
    "run": STANDARD | {"core", "records", "stopping", "torch", "safetensors", "rich"},
    "evaluate": STANDARD
    | {"core", "data", "methods", "engines", "run", "models", "torch", "numpy", "sklearn", "threadpoolctl"},
    "flower": STANDARD
    | {"records", "stopping", "core", "data", "history", "methods", "engines", "run", "evaluate"}
    | {"torch", "numpy", "safetensors", "tomli_w", "flwr", "cryptography"},
    "report": STANDARD | {"records", "stopping", "cells", "matplotlib", "plotly", "rich", "numpy"},
    "experiment": STANDARD
    | {
        "records",
        "stopping",
        "cells",
        "core",
        "methods",
        "data",
        "models",
        "engines",
        "history",
        "run",
        "evaluate",
    }
    | {"torch", "pydantic", "tomli_w"},
    "demo": STANDARD | {"experiment", "report", "records", "data", "rich"},
    "cli": None,
    "__init__": None,
}


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms and packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module or ""]
            if node.module == "feduhb":
                names = [f"feduhb.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            found.add(rest.partition(".")[0] if top == "feduhb" and rest else top)
    return {name for name in found if name not in sys.stdlib_module_names}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_file_keeps_to_the_table(path):
    room = room_of(path)
    assert room in MAY_IMPORT, f"room {room} is not in the table; add it to docs/design.md and here"
    allowed = MAY_IMPORT[room]
    if allowed is not None:
        assert imported(path) - allowed - {room} == set()


def test_the_table_names_no_room_that_is_not_there():
    assert {room_of(path) for path in SOURCE.rglob("*.py")} == set(MAY_IMPORT)


@pytest.mark.parametrize(
    "path", sorted([*SOURCE.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]), ids=lambda p: p.name
)
def test_files_stay_under_400_lines(path):
    assert path.read_text().count("\n") < 400


@pytest.mark.parametrize(
    "module", ["feduhb", "feduhb.records", "feduhb.stopping", "feduhb.report", "feduhb.cli"]
)
def test_importing_it_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_works_without_the_extras():
    """Every module imports, and the front door opens, with the extras' packages made impossible to import."""
    extras = ["flwr", "ray", "fastapi", "uvicorn", "sqlalchemy", "alembic", "cryptography", "psycopg"]
    modules = [
        ".".join(("feduhb", *p.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for p in SOURCE.rglob("*.py")
        if room_of(p) != "flower"
    ]
    code = (
        f"import sys\nfor name in {extras}: sys.modules[name] = None\n"
        f"import importlib, feduhb\nfor name in {modules}: importlib.import_module(name)\n"
        "for name in feduhb.__all__: getattr(feduhb, name)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "typed", ["import feduhb.flower", "import feduhb; feduhb.flower", "import feduhb.flower.client"]
)
def test_a_room_without_its_extra_says_what_to_install(typed):
    code = f"import sys; sys.modules['flwr'] = None\n{typed}"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (
        "feduhb.flower needs Flower; install it in the clone: pip install -c constraints.txt '.[flower]'"
        in ended.stderr
    )


def test_the_front_door_opens_the_flower_room_without_importing_it_before():
    code = "import sys, feduhb; assert 'flwr' not in sys.modules; assert feduhb.flower.FedUHB; assert 'flwr' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
