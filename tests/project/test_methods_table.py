"""The table of all methods in docs/methods/index.md says what the methods declare."""

import re
from pathlib import Path

import pytest

from feduhb.methods import BUILT_IN, list_needs

METHODS = Path(__file__).parents[2] / "docs" / "methods"
ROWS = re.findall(
    r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \| \[(\w+)\]\((\w+\.md)\) \|$",
    (METHODS / "index.md").read_text(),
    re.MULTILINE,
)


def test_every_method_has_one_row():
    assert sorted(row[0] for row in ROWS) == sorted(kind.name for kind in BUILT_IN)


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.name)
def test_a_row_says_what_its_method_declares_and_names_a_page_about_it(kind):
    method = kind()
    (row,) = (row for row in ROWS if row[0] == method.name)
    exact, needs = "yes" if method.exact else "no", ", ".join(list_needs(method)) or "nothing"
    assert row[1:5] == (exact, needs, ", ".join(method.serves), kind.__name__)
    assert f"`{method.name}`" in (page := (METHODS / row[5]).read_text()) or f"--method {method.name}" in page
