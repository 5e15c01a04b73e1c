"""docs/api.md is what the code says of itself: every public name, every argument, and examples that run."""

import inspect
import re
import runpy
import sys
from pathlib import Path

import pytest

import feduhb

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text()


@pytest.fixture
def generate_api(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate_api  # pyright: ignore[reportMissingImports]

    yield generate_api
    sys.modules.pop("generate_api")


def test_the_page_is_what_the_generator_writes(generate_api):
    assert generate_api.write_reference() == API, "run make docs"


@pytest.mark.parametrize("name", feduhb.__all__)
def test_every_public_name_has_a_section_with_all_its_arguments(name, generate_api):
    (section,) = re.findall(
        rf'^### <a id="feduhb.{name}"></a>{name}\n(.*?)(?=^###? |\Z)', API, re.DOTALL | re.MULTILINE
    )
    thing = generate_api.find_name(name)
    assert (inspect.getdoc(thing) or "").splitlines()[0] in re.sub(r"\[(`[^`]+`)\]\([^)]*\)", r"\1", section)
    if inspect.isfunction(thing):
        for argument in inspect.signature(thing).parameters:
            assert re.search(rf"^- `\**{argument}: ", section, re.MULTILINE), argument


def test_links_inside_the_page_lead_somewhere():
    anchors = re.findall(r'<a id="([^"]+)">', API)
    assert len(anchors) == len(set(anchors))
    targets = {target for target in re.findall(r"\]\(#([^)]+)\)", API) if target.startswith("feduhb.")}
    assert targets <= {*anchors}


def test_the_members_that_users_call_are_there():
    for member in (
        "Federation.without",
        "Run.model",
        "Run.params",
        "Request.parse",
        "Audit.to_json",
        "Method.tell",
    ):
        assert f'<a id="feduhb.{member}"></a>' in API


def test_a_new_name_finds_its_group_by_its_module(generate_api, monkeypatch):
    """A name that no group lists stands where its module belongs, after those that are listed."""
    monkeypatch.setattr(feduhb, "__all__", [*feduhb.__all__, "check_whole", "Examples"])
    monkeypatch.setitem(feduhb._MODULE, "check_whole", "feduhb.core.checks")
    monkeypatch.setitem(feduhb._MODULE, "Examples", "feduhb.data.federation")
    placed = {group.title: names for group, names in generate_api.place_names().items()}
    assert placed["Types"][-1] == "check_whole"
    assert "Examples" in placed["Data"][3:]
    assert '### <a id="feduhb.Examples"></a>Examples' in generate_api.write_reference()


@pytest.mark.slow
def test_the_examples_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in re.findall(r"```python\n(.*?)```", API, re.DOTALL) if " = " in block]
    assert len(blocks) >= 6
    Path("examples.py").write_text("\n".join(["import feduhb", *blocks]))
    runpy.run_path("examples.py", run_name="examples")
    assert capsys.readouterr().out.splitlines()[-1] == "forgotten"
