"""The ten recipes run as they are printed, each in a folder of its own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text()
RECIPES = dict(re.findall(r"^## (\d+\. .*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def test_there_are_ten_recipes_and_each_says_what_to_watch_out_for():
    assert [int(title.partition(".")[0]) for title in RECIPES] == [*range(1, 11)]
    for text in RECIPES.values():
        assert text.count("\nWatch out: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs_as_it_is_printed(title, commands, tmp_path):
    """Write the blocks that begin with the name of a file, then run the others in their order."""
    said = ""
    for language, text in re.findall(r"```(\w+)\n(.*?)```", RECIPES[title], re.DOTALL):
        if named := re.match(r"# (\w+\.\w+)\n", text):
            (tmp_path / named[1]).write_text(text)
        elif language == "sh":
            said = [run_command(commands, line, tmp_path) for line in text.splitlines()][-1]
        else:
            (tmp_path / "recipe.py").write_text(text)
            ended = commands.run_script(tmp_path / "recipe.py", cwd=tmp_path)
            assert ended.returncode == 0, ended.stderr
            said = ended.stdout
    assert re.search(r"^Run\(feduhb without |^feduhb without .*: FORGOTTEN$", said, re.MULTILINE), said


def run_command(commands, line, folder):
    program, *words = line.split()
    assert program == "feduhb"
    ended = commands.feduhb(*words, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
