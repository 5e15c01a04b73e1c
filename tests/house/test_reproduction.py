"""docs/reproduction.md is what docs/reproduction.py makes of results/: no number on it is typed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb.report.paper.claims import CLAIMS
from report.cells import grid

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduction.md"
PICTURE = b"\x89PNG, or so"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import reproduction  # pyright: ignore[reportMissingImports]

    return reproduction


@pytest.fixture
def root(tmp_path):
    """A project with results of both data sets, made by hand, and pictures that are none."""
    for data, sizes in (("mnist", (525, 3000)), ("cifar10", (2500,))):
        folder = tmp_path / "results" / "paper" / data
        for cell in grid(("iid", "dirichlet:0.5"), sizes, range(2), data=data):
            cell.write(folder / "cells")
        for name in ("forgetting", "beta", *(f"curves-{size}" for size in sizes)):
            (folder / f"{name}.png").write_bytes(PICTURE + name.encode())
        (folder / "curves.pdf").write_bytes(b"%PDF")
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_the_page_is_what_the_results_say(script):
    """Where there are results there is a page, it is up to date, it shows their figures, and the menu leads to it."""
    there = any((ROOT / "results" / "paper").glob("*/cells/*.json"))
    assert PAGE.exists() == there, "run python docs/reproduction.py"
    assert ("reproduction.md" in re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())) == there
    if there:
        assert PAGE.read_text(encoding="utf-8") == script.page(), "run python docs/reproduction.py"
        assert all(copy.read_bytes() == figure.read_bytes() for copy, figure in script.pictures().items())


def test_the_readme_shows_what_the_results_say(script):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script.filled(readme) == readme, "run python docs/reproduction.py"
    assert readme.count(script.BEGIN) == readme.count(script.END) == 1


def test_only_what_stands_between_the_marks_is_written(script, root):
    (root / "README.md").write_text(f"above\n{script.BEGIN}\nold\n{script.END}\nbelow\n")
    script.write(root)
    text = (root / "README.md").read_text()
    assert text.startswith(f"above\n{script.BEGIN}\nOf {len(CLAIMS)} claims of the paper, ")
    assert text.endswith(f"|\n{script.END}\nbelow\n")
    assert text.count("| CIFAR-10, ") == 2
    assert "\nold\n" not in text


def test_a_page_is_made(script, root):
    script.write(root)
    text = (root / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert (
        "**MNIST**: 12 cells, made by `feduhb reproduce mnist`. 20 clients, 2 of them to be forgotten, 40 rounds"
        in text
    )
    assert text.count("Holds if: ") == len(CLAIMS)
    heads = [
        "The claims",
        "What we noticed",
        "Where this differs",
        "What was run",
        "MNIST: fig",
        "CIFAR-10: fig",
        "What was measured",
    ]
    assert sorted(heads, key=lambda head: text.index(f"\n## {head}")) == heads
    assert "- **Precision.** The paper does not say. Here it was tf32;" in text
    assert "### CIFAR-10: Table I: running time" in text
    assert script.page(root) == text


def test_every_figure_is_copied_and_shown(script, root):
    script.write(root)
    text = (root / "docs" / "reproduction.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\((images/[^)]+)\)", text)
    assert [Path(name).name for name in shown] == [
        "mnist-curves-525.png", "mnist-curves-3000.png", "mnist-forgetting.png", "mnist-beta.png",
        "cifar10-curves-2500.png", "cifar10-forgetting.png", "cifar10-beta.png",
    ]  # fmt: skip
    copied = {path.name: path.read_bytes() for path in (root / "docs" / "images" / "paper").iterdir()}
    assert set(copied) == {Path(name).name for name in shown}
    assert copied["cifar10-beta.png"] == PICTURE + b"beta"


def test_links_of_the_page_lead_to_pages_that_are_there(script, root):
    links = re.findall(r"\]\(([\w/-]+\.md)\)", script.page(root))
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links)


def test_other_results_make_another_page(script, root):
    before = script.page(root)
    for path in (root / "results" / "paper" / "cifar10" / "cells").glob("*.json"):
        path.unlink()
    after = script.page(root)
    assert after != before
    assert "## CIFAR-10: figures" not in after
    assert "cannot be judged: no cell of CIFAR-10 is there" in after


def test_without_results_no_page_is_written(script, tmp_path):
    with pytest.raises(RunFolderError, match="holds no cells"):
        script.write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_script_says_why_it_wrote_nothing(tmp_path):
    """Run from a copy of the project without results."""
    (tmp_path / "docs").mkdir()
    copy = tmp_path / "docs" / "reproduction.py"
    copy.write_text((ROOT / "docs" / "reproduction.py").read_text())
    ended = subprocess.run([sys.executable, copy], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("docs/reproduction.md is not written: ")
    assert "make some with feduhb reproduce mnist" in ended.stderr
