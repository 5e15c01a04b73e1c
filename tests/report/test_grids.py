from __future__ import annotations

import re

from feduhb.report.grids import Grid

SHARED = Grid(
    "t", ["run", "model", "score"], [["a", "x", "1"], ["a", "y", "2"], ["b", "x", "3"]], frozenset({0, 1}),
    said=[("a", "it went well"), ("", "all of it")],
)  # fmt: skip


def test_columns_of_words_stand_to_the_left():
    assert SHARED.markdown().splitlines()[1] == "| :--- | :--- | ---: |"
    assert SHARED.latex().startswith(r"\begin{tabular}{llr}")
    assert SHARED.html().count('class="text name"') == 3, "a header and two names"


def test_a_name_that_rows_share_stands_once_in_html():
    assert '<td class="text name" rowspan="2">a</td>' in SHARED.html()
    assert len(re.findall("<tr>", SHARED.html())) == 4
    assert SHARED.markdown().count("| a |") == 2, "but in every row of Markdown"


def test_a_run_apart_needs_no_name():
    alone = SHARED.without_names()
    assert alone.headers == ["model", "score"]
    assert alone.rows == [["x", "1"], ["y", "2"], ["x", "3"]]
    assert alone.text == {0}
    assert alone.sentences == ["it went well", "all of it"]
    assert SHARED.sentences == ["a: it went well", "all of it"]


def test_marks_stay_text_everywhere():
    odd = Grid("t", ["a<b"], [["<b>|x_y\n%$ λ ± –"]])  # noqa: RUF001
    assert r"\<b\>\|x\_y %$" in odd.markdown()
    assert len(odd.markdown().splitlines()) == 3
    assert r"x\_y" in odd.latex()
    assert r"\%\$ $\lambda$ $\pm$ --" in odd.latex()
    assert '<th class="text name">a&lt;b</th>' in odd.html()
    assert "&lt;b&gt;|x_y" in odd.html()


def test_a_cell_can_be_spelled_otherwise():
    shouted = SHARED.html(lambda header, cell: cell.upper() if header == "model" else cell)
    assert ">X</td>" in shouted
    assert ">a</td>" in shouted
