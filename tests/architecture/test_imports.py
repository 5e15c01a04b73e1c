"""The import table of docs/design.md, held; and what may be imported without what."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forking import Forks, reach_server

SOURCE = Path(__file__).parents[2] / "src" / "feduhb"
METHOD_CLASSES = {
    "FedAF", "FedAdam", "FedEraser", "FedExP", "FedNadam", "FedRecover", "FedUHB", "FedYogi", "Method", "Nesterov", "PGA",
    "RapidRetrain", "Retrain",
}  # fmt: skip

DESIGN = SOURCE.parents[1] / "docs" / "design.md"
OTHERS = {  # packages that are not ours
    "runs.files": {"annotated_types", "filelock", "pydantic"},
    "runs.folder": {"typing_extensions"},
    "audit.pooling": {"scipy"},
    "audit.result": {"pydantic"},
    "core": {"torch", "sklearn"},
    "methods": {"torch"},
    "models": {"torch"},
    "data": {
        "pydantic",
        "torch",
        "numpy",
        "mlxtend",
        "sklearn",
        "filelock",
        "pandas",
        "pyarrow",
        "datasets",
        "typing_extensions",
    },
    "engines": {"torch"},
    "runs": {"onnx", "torch", "safetensors", "rich", "pydantic", "tomli_w", "typing_extensions"},
    "batching": {"numpy"},
    "audit": {"cloudpickle", "torch", "numpy", "scipy", "sklearn", "threadpoolctl"},
    "flower": {"torch", "numpy", "safetensors", "tomli_w", "flwr", "cryptography", "pydantic"},
    "report": {"jinja2", "markupsafe", "matplotlib", "rich"},
}


def read_table() -> dict[str, set[str] | None]:
    """The table of docs/design.md: by package, those of ours that it may import; None for anything."""
    section = DESIGN.read_text().partition("## Packages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| .* \| ([^|]+) \|$", section, flags=re.MULTILINE)
    words = {package: {name.strip() for name in names.split(",")} for package, names in rows}
    return {
        package: None if names == {"anything"} else names - {"nothing"} for package, names in words.items()
    }


TABLE = read_table()
MAY_IMPORT = {
    **{
        package: None if ours is None else ours | OTHERS.get(package, set())
        for package, ours in TABLE.items()
    },
    "__init__": None,
    "__main__": None,
}
PURE = {package for package in TABLE if "." in package}  # modules that have a row of their own


def package_of(module: str) -> str:
    """Return the row of the table that a module of feduhb belongs to."""
    return next((pure for pure in PURE if module == pure), module.partition(".")[0])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """The rows of the table and the other packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module or ""]
            if (node.module or "").startswith("feduhb") and not (
                SOURCE.parent / f"{str(node.module).replace('.', '/')}.py"
            ).exists():
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            found.add(package_of(rest) if top == "feduhb" and rest else top)
    return {name for name in found if name not in sys.stdlib_module_names}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_file_keeps_to_the_table(path):
    package = package_of(module_of(path))
    assert package in MAY_IMPORT, f"{package} is not in the table; add it to docs/design.md and here"
    allowed = MAY_IMPORT[package]
    if allowed is not None:
        assert imported(path) - allowed - {package} == set()


def test_the_table_names_no_package_that_is_not_there():
    assert {package_of(module_of(path)) for path in SOURCE.rglob("*.py")} == set(MAY_IMPORT)


@pytest.mark.parametrize(
    "path",
    sorted(path for path in SOURCE.rglob("*.py") if path.parent.name != "methods"),
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_no_code_outside_methods_asks_for_a_methods_type(path):
    """Methods declare what others need to know of them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("method"):
            assert node.attr not in {"history", "clients"}, f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        about = ast.unparse(node.args[0]) if node.args else ""
        if node.func.id == "isinstance":
            named = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            assert not named & METHOD_CLASSES, f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        if node.func.id in {"hasattr", "getattr"}:
            assert about.rpartition(".")[2] not in {"method", "chosen"}, (
                f"{path.name}:{node.lineno}: {ast.unparse(node)}"
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "feduhb",
        "feduhb.runs.folder",
        "feduhb.runs.scores",
        "feduhb.audit.result",
        "feduhb.audit.pooling",
        "feduhb.stopping",
        "feduhb.report",
        "feduhb.cli",
    ],
)
def test_importing_it_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def run_fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], None]]:
    """Run code in a process that has imported torch, but nothing of this package."""
    script = tmp_path_factory.mktemp("fresh") / "code.py"
    with reach_server("bare") as address:

        def run(code: str) -> None:
            script.write_text("import sys\nassert 'feduhb' not in sys.modules\n" + code)
            ended = Forks(address).run_script(script)
            assert ended.returncode == 0, ended.stderr

        yield run


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import feduhb.audit.result", "feduhb.audit"])
def test_the_audit_is_a_function_although_there_is_a_package_of_that_name(run_fresh, before):
    run_fresh(
        f"import feduhb\n{before}\nassert callable(feduhb.audit)\nfrom feduhb import audit\nassert audit is feduhb.audit"
    )


@pytest.mark.slow
def test_the_package_works_without_the_extras(run_fresh):
    """Every module imports, and every public name is there, with the extras' packages made impossible to import."""
    extras = ["flwr", "ray", "cryptography", "datasets", "pyarrow", "onnx", "onnxscript", "tensorboard"]
    modules = [
        ".".join(("feduhb", *p.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for p in SOURCE.rglob("*.py")
        if package_of(module_of(p)) != "flower"
    ]
    run_fresh(
        f"import sys\nfor name in {extras}: sys.modules[name] = None\n"
        f"import importlib, feduhb\nfor name in {modules}: importlib.import_module(name)\n"
        "for name in feduhb.__all__: getattr(feduhb, name)"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "typed", ["import feduhb.flower", "import feduhb; feduhb.flower", "import feduhb.flower.client"]
)
def test_a_package_without_its_extra_says_what_to_install(typed):
    code = f"import sys; sys.modules['flwr'] = None\n{typed}"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (
        "feduhb.flower needs Flower; install it in the clone: pip install -c constraints.txt '.[flower]'"
        in ended.stderr
    )


@pytest.mark.slow
def test_flower_is_imported_when_it_is_first_used(run_fresh):
    run_fresh(
        "import sys, feduhb; assert 'flwr' not in sys.modules; assert feduhb.flower.FedUHB; assert 'flwr' in sys.modules"
    )
