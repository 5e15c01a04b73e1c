"""Documents are executable: what README and docs say to type, works."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from feduhb.runs.config import parse_config
from feduhb_reproduction.grids import read_grid

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_readme_is_a_page():
    assert len(README.splitlines()) <= 120


def shrink(text, changes):
    """Replace what makes an example large; all of it must be there."""
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_the_python_of_readme_and_quickstart_runs(commands, tmp_path):
    """Run the snippets of the quickstart, which begin with the README's, in a process and a folder of their own, on smaller images."""
    snippets = blocks(QUICKSTART, "python")
    assert (
        snippets[:1] == blocks(README, "python") == blocks((ROOT / "docs" / "index.md").read_text(), "python")
    )
    (tmp_path / "snippet.py").write_text(shrink("\n".join(snippets), {'"mnist-5k"': '"digits"'}))
    ended = commands.run_script(tmp_path / "snippet.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for run in (
        "Run(feduhb without c00,c01, ",
        "Run(feduhb without class:3, ",
        "Run(feduhb without hospital-1:0-2, ",
    ):
        assert run in ended.stdout


def test_the_commands_of_the_quickstart_run(commands, tmp_path):
    """Run its shell session after installation, word for word, on a smaller federation."""
    (session,) = (block for block in blocks(QUICKSTART, "sh") if "feduhb train" in block)
    (config,) = blocks(QUICKSTART, "toml")
    smaller = {
        '"mnist-5k"': '"digits"',
        "rounds = 40": "rounds = 3",
        "batch_size = 16": "batch_size = 64",
        "clients = 20": "clients = 6",
    }
    (tmp_path / "federation.toml").write_text(shrink(config, smaller))
    for line in session.strip().splitlines():
        program, *words = line.partition("#")[0].split()
        assert program == "feduhb"
        ended = commands.feduhb(*words, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "report" / "report.html").exists()


def test_make_does_what_the_readme_says():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets
    assert {"demo", "test", "lint"} <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_inside_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_example_config_is_valid_and_complete():
    text, _ = blocks((ROOT / "docs" / "config.md").read_text(), "toml")
    config = parse_config(tomllib.loads(text), "docs/config.md")
    assert config.federation is not None
    assert config.federation.backdoor is not None
    given = {key for table in ("federation", "train") for key in tomllib.loads(text)[table]}
    known = {*type(config.federation).__slots__, *type(config.train).__slots__}
    assert given == known - {"table"}  # a page of its own, docs/tables.md


def test_the_grid_of_the_config_page_names_every_setting(tmp_path):
    _, text = blocks((ROOT / "docs" / "config.md").read_text(), "toml")
    (tmp_path / "grid.toml").write_text(text)
    grid = read_grid(tmp_path / "grid.toml")
    assert set(tomllib.loads(text)) == set(type(grid).__slots__)
    assert {key for part in tomllib.loads(text)["parts"] for key in part} == set(
        type(grid.parts[0]).__slots__
    ) - {"rows"}  # of benchmarks


@pytest.mark.slow
def test_the_help_in_the_docs_is_the_programs_own(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate  # pyright: ignore[reportMissingImports]

    assert (ROOT / "docs" / "cli.md").read_text() == generate.command_line(), "run make docs"


def test_the_documentation_builds_without_a_warning(tmp_path):
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("audit-demo.png", "audit-demo/audit.png"),
        ("iid-strong-local.png", "iid-strong-local/curves.png"),
        ("theorem.png", "theorem/theorem.png"),
    ],
)
def test_pictures_of_the_site_are_those_of_the_results(copy, original):
    shown, made = ROOT / "docs" / "images" / copy, ROOT / "results" / original
    assert shown.read_bytes() == made.read_bytes(), f"copy {made} to {shown}"


WORDS = ("@@", "GDPR-compliant", "proof of erasure is", "nobody else")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_documents_promise_nothing_they_must_not_and_name_no_machine(page):
    text = page.read_text()
    assert not [word for word in WORDS if word in text]
    assert not re.search(r"@[A-Z_]+@", text)  # a number that was still to be measured
    assert not re.search(r"(?<![\w.])/(?:home|work|root|opt|tmp)/", text)


def test_the_page_on_tables_names_every_setting():
    page = (ROOT / "docs" / "tables.md").read_text()
    (text,) = blocks(page, "toml")
    config = parse_config(tomllib.loads(text), "docs/tables.md")
    assert config.federation is not None
    assert config.federation.table is not None
    missing = [
        name
        for name in type(config.federation.table).__slots__
        if f"`{name}`" not in page and f"\n{name} =" not in page
    ]
    assert not missing
