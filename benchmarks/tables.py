"""Write the tables of benchmarks/README.md and of pages in docs/, and the figure, from results/benchmarks/*.json.

    python benchmarks/tables.py

A table stands between `<!-- NAME -->` and `<!-- end NAME -->` and replaces the old one.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerators import format_rules
from figure import draw_figure, find_median
from gpu import format_distances, format_models, format_precisions, format_summary, format_timings
from layout import Results, format_source, format_table
from scaling import count_models, format_arithmetic, format_sampling

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks"
PAGES = [
    ROOT / page
    for page in ("benchmarks/README.md", "docs/scale.md", "docs/speed.md", "docs/methods/accelerators.md")
]
FIGURE = ROOT / "docs" / "images" / "benchmarks.png"


def read_results(folder: Path = RESULTS) -> Results:
    """Return every result by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def tabulate_side_by_side(all: Results) -> str:
    """Return the table of images a second, by implementation."""
    found = all["side-by-side"]
    every, task = found["implementations"], found["task"]
    plain = every["plain"]["images_per_second"]
    rows = []
    for name, one in every.items():
        if "images_per_second" not in one:
            words = f"missing: `{one['missing']}`" if "missing" in one else "failed"
            rows.append((f"{name}: {one['what']}", words, "", "", "", "", ""))
            continue
        rate = one["images_per_second"]
        share = rate * found["flop_an_image"] / found["matrix_gflops"] / 1e9
        every_round = [
            task["clients"] * task["images"] * task["epochs"] / s for turn in one["seconds"] for s in turn
        ]
        rows.append(
            (
                f"{name}: {one['what']}",
                f"{rate:,.0f}",
                f"{min(every_round):,.0f} to {max(every_round):,.0f}",
                f"{rate / plain:.2f}",
                f"{share:.0%}",
                f"{one['peak_mib']:,.0f} MiB",
                f"{one['outside_seconds']:.1f} s",
            )
        )
    rows.sort(key=lambda row: -float(row[1].replace(",", "")) if row[1][:1].isdigit() else 1)
    heads = (
        "",
        "images/s",
        "single rounds",
        "to plain",
        "of the matrix rate",
        "memory at most",
        "outside the timed rounds",
    )
    versions = sorted({part for one in every.values() for part in one.get("version", "").split(", ") if part})
    size = f"{task['clients']} clients x {task['images']} images x {task['epochs']} epoch"
    moved = [one["moved"] for one in every.values() if "moved" in one]
    note = (
        f"{size}; {task['rounds']} rounds a turn, {task['turns']} turns. Matrix products reached {found['matrix_gflops']:.0f} GFLOP/s in the same run; "
        f"an image costs {found['flop_an_image'] / 1e6:.1f} MFLOP. How far the models moved differs by {max(moved) / min(moved) - 1:.1%} at most. {', '.join(versions)}."
    )
    return f"{format_table(heads, rows)}\n\n{note} {format_source(found)}"


def tabulate_clients(all: Results) -> str:
    """Return the table of growth with clients."""
    rows = []
    for name, one in all["growth"]["cases"].items():
        if name.startswith("clients:"):
            rows.append(
                (f"{one['clients']:,}", name.split(":")[1], f"{one['seconds']:.2f}", f"{one['seconds'] / one['clients'] * 1e3:.1f}", f"{one['beyond_mib']:,.0f} MiB", f"{one['most_mib']:,.0f} MiB")
            )  # fmt: skip
    heads = (
        "clients",
        "engine",
        "seconds a round",
        "ms a client",
        "memory beyond the data, at most",
        "in all, Python and torch included",
    )
    return format_table(heads, rows)


def tabulate_parameters(all: Results) -> str:
    """Return the table of growth with parameters."""
    cases, rows = all["growth"]["cases"], []
    for name, one in cases.items():
        kind, _, rest = name.partition(":")
        if kind == "parameters":
            others = [cases.get(f"{other}:{rest}") for other in ("train", "unlearn")]
            models = ["" if case is None else f"{count_models(case):.1f}" for case in (one, *others)]
            rows.append(
                (f"{one['parameters']:,}", f"{one['seconds']:.2f}", f"{one['beyond_mib']:,.0f} MiB", *models)
            )
    heads = (
        "parameters",
        "seconds a round",
        "memory beyond data and model, at most",
        "in models",
        "`feduhb.train`, in models",
        "`feduhb.unlearn`, in models",
    )
    source = all["growth"].get("again", {}).get("parameters", all["growth"])
    return f"{format_table(heads, rows)}\n\n{format_source(source)}"


def tabulate_rounds(all: Results) -> str:
    """Return the table of growth with rounds."""
    (found,) = (one for name, one in all["growth"]["cases"].items() if name.startswith("rounds:"))
    rows = [
        (f"{at['round']}", f"{at['seconds'] * 1e3:.0f} ms", f"{at['held_mib']:,.0f} MiB")
        for at in found["rounds"]
    ]
    heads = ("up to round", "a round (median of the last ten)", "held, all of Python included")
    return f"{format_table(heads, rows)}\n\n{format_source(all['growth'])}"


def tabulate_targets(all: Results) -> str:
    """Return the table of rounds and seconds to each accuracy, the median over seeds."""
    found = all["to-target"]
    rows = []
    for method in next(iter(found["seeds"].values())):
        runs = [seed[method] for seed in found["seeds"].values()]
        cells = [_format_when([run["targets"][target] for run in runs]) for target in found["targets"]]
        last = statistics.median(run["last"] for run in runs)
        kept = max(run["history_bytes"] for run in runs)
        rows.append((method, *cells, f"{last:.1%}", f"{kept / 1e6:,.0f} MB" if kept else "none"))
    heads = ("", *(f"to {target}" for target in found["targets"]), "last accuracy", "history needed")
    note = f'The median of {len(found["seeds"])} seeds. A seed that never got there counts as the longest; "2 of 3" means that two did.'
    return f"{format_table(heads, rows)}\n\n{note} {format_source(found)}"


def _format_when(runs: list[dict[str, Any] | None]) -> str:
    """Return the median of all runs; a run that never got there counts as the longest."""
    there = sum(run is not None for run in runs)
    count, seconds = (find_median(runs, key) for key in ("rounds", "seconds"))
    some = f"{there} of {len(runs)}"
    if count == math.inf:
        return some if there else "never"
    return f"{count:g} rounds, {seconds:.1f} s" + ("" if there == len(runs) else f" ({some})")


TABLES: dict[str, Callable[[Results], str]] = {
    "side by side": tabulate_side_by_side,
    "clients": tabulate_clients,
    "parameters": tabulate_parameters,
    "rounds": tabulate_rounds,
    "targets": tabulate_targets,
    "accelerators": format_rules,
    "arithmetic": format_arithmetic,
    "sampling": format_sampling,
    "gpu rounds": format_timings,
    "gpu models": format_models,
    "gpu distances": format_distances,
    "gpu precisions": format_precisions,
    "gpu in short": format_summary,
}


def wrap(text: str) -> str:
    """Wrap the lines outside of tables; a minus sign stays in its line, because it would begin a list in the next."""
    return "\n".join(
        line
        if line.startswith("|")
        else textwrap.fill(
            line.replace(" - ", "\0-\0"),
            116,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        ).replace("\0", " ")
        for line in text.split("\n")
    )


def fill_tables(text: str, all: Results) -> str:
    """Return a page with every table in its place."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if pattern.search(text):
            made = wrap(make(all))
            text = pattern.sub(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)
    return text


def main() -> None:
    """Write the pages and the figure."""
    found = read_results()
    for page in PAGES:
        page.write_text(fill_tables(page.read_text(), found))
    FIGURE.write_bytes(draw_figure(found))


if __name__ == "__main__":
    main()
