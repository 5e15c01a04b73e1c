"""The notebook on the site: executed again, it prints what the committed one shows, and its page shows the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("docs_notebook", DOCS / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_notebook(tool):
    for path, content in tool.write_page(nbformat.read(DOCS / "hospital.ipynb", 4)).items():
        assert path.read_bytes() == content, path.name


@pytest.mark.slow
def test_the_notebook_prints_what_it_shows(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent / "src"))
    monkeypatch.setenv("FEDUHB_STATE", "")  # restored afterwards
    shown = nbformat.read(DOCS / "hospital.ipynb", 4)
    again = tool.execute(nbformat.read(DOCS / "hospital.ipynb", 4), tmp_path)
    assert tool.list_texts(again) == tool.list_texts(shown)
    assert "FORGOTTEN" in "".join(tool.list_texts(again))
    assert (tmp_path / "model" / "model.safetensors").exists()
