"""The pages in docs/reproduction/ are what feduhb_reproduction.pages makes of results/: no number on them is typed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb_reproduction import pages
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims import CLAIMS, TARGETS
from paper.cells import cell, grid, place

ROOT = Path(__file__).parents[3]
PICTURE = b"\x89PNG, or so"
SETTINGS = {
    "fedrecover": {"warmup": 7, "final": 3, "buffer": 2, "correction": 0},
    "fedrecover-corrected": {"warmup": 7, "final": 3, "buffer": 2, "correction": 9},
    "federaser": {"interval": 4, "ratio": 0.25},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A project with results of both data sets, made by hand, with stand-ins for pictures, and its pages."""
    root = tmp_path_factory.mktemp("project")
    for data, sizes in (("mnist", (525, 3000)), ("cifar10", (2500,))):
        folder = root / "results" / "paper" / data
        for one in grid(("iid", "dirichlet:0.5"), sizes, range(2), data=data):
            one.write(folder / "cells")
        for name in ("forgetting", "beta", *(f"curves-{size}" for size in sizes)):
            (folder / f"{name}.png").write_bytes(PICTURE + name.encode())
        (folder / "curves.pdf").write_bytes(b"%PDF")
    (root / "README.md").write_text("above\n<!-- paper -->\nold\n<!-- end paper -->\nbelow\n")
    pages.write_pages(root)
    return root


def read(root: Path, name: str) -> str:
    return (root / "docs" / "reproduction" / name).read_text(encoding="utf-8")


def write_cells(root: Path, *cells: Cell) -> Path:
    for each in cells:
        each.write(root / "results" / "paper" / "mnist" / "cells")
    return root


def with_settings(**where: object) -> Cell:
    whole = cell(place(**where))  # pyright: ignore[reportArgumentType]
    runs = {name: replace(run, settings=SETTINGS.get(name, {})) for name, run in whole.runs.items()}
    return replace(whole, runs=runs)


def test_the_pages_are_what_the_results_say():
    """They are up to date, they show the figures of results/, and the menu leads to them."""
    made = pages.make_pages()
    folder = ROOT / pages.FOLDER
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == made, "run make docs"
    assert all(copy.read_bytes() == figure.read_bytes() for copy, figure in pages.find_pictures().items())
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert [name for name in menu if name.startswith("reproduction")] == [
        f"reproduction/{name}" for name in made
    ]
    first = made["index.md"]
    counted = (
        "Of 40 claims of the paper, 6 hold, 22 hold under conditions, 12 do not hold and 0 cannot be judged."
    )
    assert counted in first
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- paper -->\n{counted}\n<!-- end paper -->" in readme, "run make docs"
    for path in pages.FILLED:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert pages.fill_parts(text) == text, "run make docs"
        assert "On 12 federations of MNIST and CIFAR-10 it keeps the accuracy" in text


def test_the_first_page_says_what_no_verdict_shows():
    """The claims were tested without a correction, the paper contradicts itself, and Dirichlet has two laws."""
    first = (ROOT / pages.FOLDER / "index.md").read_text(encoding="utf-8")
    table, cautions = first.index("| T2 |"), first.index("Before you quote a verdict:")
    assert table < cautions < first.index("## In one picture")
    for said in (
        f"{len(CLAIMS)} claims were tested without a correction for their number",
        "an MISR close to 0.5 is success (IV-A.3), and Retrain's 23.9% shows “a strong capability”",
        "Every client holds equally many images. Its mix of classes is a Dirichlet draw of its own",
    ):
        assert said in first


def test_only_the_sentence_between_the_marks_of_the_readme_is_written(root):
    above, begin, counted, end, below = (root / "README.md").read_text().splitlines()
    assert (above, begin, end, below) == ("above", "<!-- paper -->", "<!-- end paper -->", "below")
    assert counted.startswith(f"Of {len(CLAIMS)} claims of the paper, ")


def test_every_claim_is_a_row_and_leads_to_its_criterion(root):
    links = re.findall(
        r"^\| T?\d+ \| .* \| \[.*\]\(criteria\.md#(claim-t?\d+)\) \|$", read(root, "index.md"), re.MULTILINE
    )
    assert len(links) == len(CLAIMS) + len(TARGETS)
    criteria = read(root, "criteria.md")
    assert links == re.findall(r'<a id="(claim-t?\d+)"></a>', criteria)
    assert criteria.count("- Holds if: ") == criteria.count("- Measured: ") == len(links)


def test_the_first_page_fits_a_phrase_into_a_row():
    assert max(len(claim.words) for claim in (*CLAIMS, *TARGETS)) <= 90
    assert not any(claim.words.endswith(".") for claim in (*CLAIMS, *TARGETS))


def test_each_data_set_has_an_appendix_with_its_figures(root):
    for data, count in (("mnist", 12), ("cifar10", 6)):
        text = read(root, f"{data}.md")
        assert f"{count} cells, made by `feduhb reproduce mnist`" in text
        assert "20 clients, 2 of them leavers; 40 rounds" in text
        assert "## Table I: running time" in text
    shown = [Path(name).name for data in ("mnist", "cifar10") for name in re.findall(r"\((\.\./images/[^)]+)\)", read(root, f"{data}.md"))]  # fmt: skip
    assert shown == [
        "mnist-curves-525.png", "mnist-curves-3000.png", "mnist-forgetting.png", "mnist-beta.png",
        "cifar10-curves-2500.png", "cifar10-forgetting.png", "cifar10-beta.png",
    ]  # fmt: skip
    copied = {path.name: path.read_bytes() for path in (root / "docs" / "images" / "paper").iterdir()}
    assert set(copied) == set(shown)
    assert copied["cifar10-beta.png"] == PICTURE + b"beta"


def test_links_of_the_pages_lead_to_pages_that_are_there(root):
    for name, text in pages.make_pages(root).items():
        links = re.findall(r"\]\(([\w./-]+\.md)", text)
        there = [(ROOT / "docs" / "reproduction" / link).exists() for link in links]
        assert all(there), (name, links)


def test_other_results_make_other_pages(root, tmp_path):
    write_cells(
        tmp_path, *(Cell.read(path) for path in (root / "results" / "paper" / "mnist" / "cells").iterdir())
    )
    made = pages.make_pages(tmp_path)
    assert set(made) == {"index.md", "criteria.md", "mnist.md", "study.md", "methods.md"}
    assert "**Cannot be judged**: there is no cell of CIFAR-10." in made["criteria.md"]


def test_settings_that_the_paper_leaves_open_are_read_from_the_cells(tmp_path):
    told = pages.make_pages(write_cells(tmp_path / "a", with_settings()))["criteria.md"]
    assert "Here they are T_w 7, T_f 3, s 2 and, where it is corrected, T_c 9; Δt 4 and r 0.25." in told
    assert "Here it was tf32" in told
    assert "2 classes a client on MNIST" not in told
    bare = pages.make_pages(write_cells(tmp_path / "b", cell()))["criteria.md"]
    assert "Here they are T_w" not in bare
    whole = write_cells(tmp_path / "c", with_settings(), with_settings(partition="shards:2", per_client=None))
    assert "- **2 classes a client on MNIST**" in pages.make_pages(whole)["criteria.md"]


def test_versions_say_where_feduhb_ran_from_its_source_tree(tmp_path):
    installed, bare = cell(), cell(place(seed=1))
    assert (
        "- feduhb 0.1.0 and torch 2.13.0"
        in pages.make_pages(write_cells(tmp_path / "a", installed))["mnist.md"]
    )
    made = {**bare.made, "versions": {"feduhb": "not installed", "torch": "2.13.0"}}
    text = pages.make_pages(write_cells(tmp_path / "b", replace(bare, made=made)))["mnist.md"]
    assert "- feduhb from source, at the commits below and torch 2.13.0" in text


def test_without_results_no_page_is_written(tmp_path):
    with pytest.raises(RunFolderError, match="holds no cells"):
        pages.write_pages(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_module_prints_why_it_wrote_nothing(tmp_path):
    command = [sys.executable, "-m", "feduhb_reproduction.pages", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("docs/reproduction is not written: ")
    assert "make some with feduhb reproduce mnist" in ended.stderr
