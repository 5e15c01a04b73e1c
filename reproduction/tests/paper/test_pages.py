"""docs/reproduction.md is what feduhb_reproduction.pages makes of results/: no number on it is typed."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb_reproduction import pages
from feduhb_reproduction.cells import read_cells
from feduhb_reproduction.report.claims import CLAIMS, TARGETS
from paper.cells import cell, falling, grid, place, track

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reproduction.md"
PICTURE = b"\x89PNG, or so"


@pytest.fixture
def script():
    return pages


@pytest.fixture
def root(tmp_path):
    """A project with results of both data sets, made by hand, and pictures that are none."""
    for data, sizes in (("mnist", (525, 3000)), ("cifar10", (2500,))):
        folder = tmp_path / "results" / "paper" / data
        for one in grid(("iid", "dirichlet:0.5"), sizes, range(2), data=data):
            one.write(folder / "cells")
        for name in ("forgetting", "beta", *(f"curves-{size}" for size in sizes)):
            (folder / f"{name}.png").write_bytes(PICTURE + name.encode())
        (folder / "curves.pdf").write_bytes(b"%PDF")
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_the_page_is_what_the_results_say(script):
    """Where there are results there is a page, it is up to date, it shows their figures, and the menu leads to it."""
    there = any((ROOT / "results" / "paper").glob("*/cells/*.json"))
    assert PAGE.exists() == there, "run make docs"
    assert ("reproduction.md" in re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())) == there
    if there:
        assert PAGE.read_text(encoding="utf-8") == script.page(), "run make docs"
        assert all(copy.read_bytes() == figure.read_bytes() for copy, figure in script.pictures().items())


def test_the_readme_shows_what_the_results_say(script):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script.filled(readme) == readme, "run make docs"
    assert readme.count(script.BEGIN) == readme.count(script.END) == 1


def test_only_what_stands_between_the_marks_is_written(script, root):
    (root / "README.md").write_text(f"above\n{script.BEGIN}\nold\n{script.END}\nbelow\n")
    script.write(root)
    text = (root / "README.md").read_text()
    assert text.startswith(f"above\n{script.BEGIN}\nOf {len(CLAIMS)} claims of the paper, ")
    assert text.endswith(f" CIFAR-10.\n{script.END}\nbelow\n")
    assert text.count("| CIFAR-10, ") == 2
    assert "\nold\n" not in text


def test_below_the_readmes_table_stands_what_the_cells_say(script, root):
    """FedEraser runs half of the rounds with half of the 18 clients, FedRecover asks 5 or 9 of them in 40 rounds."""
    cells = root / "results" / "paper" / "cifar10" / "cells"
    for seed in range(2):
        asks = {"fedrecover": track([0.9] * 40, asked=9), "feduhb-on": track([0.9] * 40, [1.0] * 40)}
        cell(place("shards:2", 2500, seed, data="cifar10"), runs_too=asks).write(cells)
    told = script.front(root).rpartition("|\n\n")[2]
    assert told == (
        "A round of FedUHB takes 1.00 times as long as one of Retrain (timed: iid, Dirichlet 0.5 and 2 classes a client). FedUHB's rule fires in 8 of 8 runs on MNIST and 4 of 6 runs on CIFAR-10. "
        "FedEraser runs 20 rounds of 5 local epochs, in the first of which it asks nobody, and asks for 25 % of the client rounds of Retrain, which runs 40 of 5; FedRecover asks for 28 % on "
        "MNIST and 28 to 50 % on CIFAR-10."
    )


def test_below_the_readmes_table_stands_nothing_that_was_not_run(script, root):
    for data in ("mnist", "cifar10"):
        folder = root / "results" / "paper" / data / "cells"
        for whole in read_cells(folder):
            fewer = {name: run for name, run in whole.runs.items() if name in {"original", "retrain"}}
            replace(whole, runs=fewer, misr={}).write(folder)
    assert script.front(root).endswith("|")


@pytest.mark.parametrize(
    ("fire", "said"), [((True, True), "24"), ((True, False), "32 (1 of 2 seeds)"), ((False, False), "never")]
)
def test_the_readme_tells_the_mean_round_and_how_many_seeds_the_rule_ends(script, tmp_path, fire, said):
    folder = tmp_path / "results" / "paper" / "mnist" / "cells"
    for seed, fires in enumerate(fire):
        runs = {"feduhb-on": track([0.9] * 40, falling() if fires else [1.0] * 40)}
        cell(place(seed=seed), runs_too=runs).write(folder)
    told = script.front(tmp_path)
    head, _, row = (line.split(" | ") for line in told.splitlines() if line.startswith("|"))
    assert row[head.index("its rule ends it at round")] == said
    assert ("; a run that it does not end counts with its last round." in told) == (
        set(fire) == {True, False}
    )
    assert head[2] == "Retrain, 40 rounds"


def test_a_page_is_made(script, root):
    script.write(root)
    text = (root / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert (
        "**MNIST**: 12 cells, made by `feduhb reproduce mnist`. 20 clients, 2 of them to be forgotten, 40 rounds"
        in text
    )
    assert text.count("Holds if: ") == len(CLAIMS) + len(TARGETS)
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


def test_the_module_says_why_it_wrote_nothing(tmp_path):
    """Run in a project without results."""
    command = [sys.executable, "-m", "feduhb_reproduction.pages", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("docs/reproduction.md is not written: ")
    assert "make some with feduhb reproduce mnist" in ended.stderr
