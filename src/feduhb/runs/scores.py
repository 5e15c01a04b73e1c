"""The names and formats of recorded scores, without torch."""

from __future__ import annotations

from collections.abc import Iterable

PREFIX, LOSS = "test_", "test_loss"  # of scores on test data
ABBREVIATIONS = ("auroc", "f1", "rmse", "mae")
SHARES = ("accuracy", "f1")  # formatted as percentages


def list_scores(recorded: Iterable[str]) -> list[str]:
    """Return the scores on test data among recorded names, without the loss, in their order."""
    return [name for name in recorded if name.startswith(PREFIX) and name != LOSS]


def is_share(score: str) -> bool:
    """Return whether a score, with or without its prefix, is a share."""
    return score.removeprefix(PREFIX) in SHARES


def name_score(score: str) -> str:
    """Return the name of a score for people: test_auroc is "test AUROC", and my_score is "my score"."""
    plain = score.removeprefix(PREFIX)
    name = plain.upper() if plain in ABBREVIATIONS else plain.replace("_", " ")
    return f"test {name}" if score.startswith(PREFIX) else name


def format_score(score: str, value: float) -> str:
    """Format the value of a score: a share as a percentage, an AUROC with three digits, others as numbers."""
    if is_share(score):
        return f"{value:.1%}"
    return f"{value:.3f}" if score.removeprefix(PREFIX) == "auroc" else format_number(value)


def format_change(score: str, change: float) -> str:
    """Format a difference of two values of a score with its sign, in points if it is a share."""
    if is_share(score):
        return f"{100 * change:+.1f}".replace("-", "−")  # noqa: RUF001
    sign = "+" if change >= 0 else "−"  # noqa: RUF001
    return f"{sign}{format_score(score, abs(change))}"


def format_number(value: float) -> str:
    """Format a number with three digits, large ones in full."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")
