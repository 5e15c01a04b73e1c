from __future__ import annotations

import pytest

from feduhb.report.grids import Grid, escape_markdown, escape_tex

SHARED = Grid(
    "t", ["run", "model", "score"], [["a", "x", "1"], ["a", "y", "2"], ["b", "x", "3"]], frozenset({0, 1}),
    said=[("a", "it went well"), ("", "all of it")],
)  # fmt: skip


def test_columns_of_words_stand_to_the_left():
    assert SHARED.to_markdown().splitlines()[1] == "| :--- | :--- | ---: |"
    assert SHARED.to_latex().startswith(r"\begin{tabular}{llr}")


def test_a_name_that_rows_share_stands_once_in_html():
    assert SHARED.lay_out() == [
        [(0, "a", 2), (1, "x", 1), (2, "1", 1)],
        [(1, "y", 1), (2, "2", 1)],
        [(0, "b", 1), (1, "x", 1), (2, "3", 1)],
    ]
    assert SHARED.to_markdown().count("| a |") == 2, "but in every row of Markdown"


def test_a_run_apart_needs_no_name():
    alone = SHARED.without_names()
    assert alone.headers == ["model", "score"]
    assert alone.rows == [["x", "1"], ["y", "2"], ["x", "3"]]
    assert alone.text == {0}
    assert alone.sentences == ["it went well", "all of it"]
    assert SHARED.sentences == ["a: it went well", "all of it"]


def test_marks_stay_text_everywhere():
    odd = Grid("t", ["a<b"], [["<b>|x_y\n%$ λ ± –"]])  # noqa: RUF001
    assert odd.to_markdown() == "| a\\<b |\n| :--- |\n| \\<b\\>\\|x\\_y %\\$ λ ± – |\n"  # noqa: RUF001
    assert r"x\_y" in odd.to_latex()
    assert r"\%\$ $\lambda$ $\pm$ --" in odd.to_latex()


@pytest.mark.parametrize(
    ("text", "markdown", "tex"),
    [
        ("a|b`c`", r"a\|b\`c\`", r"a\textbar{}b\textasciigrave{}c\textasciigrave{}"),
        ("[x](https://e.vil)", r"\[x\](https\://e.vil)", r"{}[x](https://e.vil)"),
        ("www.e.vil a@e.vil", r"www\.e.vil a\@e.vil", "www.e.vil a@e.vil"),
        ("<img>&lt;", r"\<img\>\&lt;", r"\textless{}img\textgreater{}\&lt;"),
        ("# head\r\n- item", r"\# head - item", r"\# head - item"),
        ("1. item", r"1\. item", "1. item"),
        ("---", r"\---", "---"),
        ("*50%* \\input{x}", r"\*50%\* \\input{x}", r"{}*50\%* \textbackslash{}input\{x\}"),
        ("-0.5 +1.10 89.9%", "-0.5 +1.10 89.9%", r"-0.5 +1.10 89.9\%"),
    ],
)
def test_names_stay_text(text: str, markdown: str, tex: str):
    assert escape_markdown(text) == markdown
    assert escape_tex(text) == tex
