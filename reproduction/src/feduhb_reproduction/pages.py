"""Write docs/reproduction/ and what other pages say of it from results/, so that nobody types a number; `make docs` runs it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from feduhb.errors import FeduhbError
from feduhb.report.grids import Grid
from feduhb.report.words import join_names
from feduhb_reproduction import claims
from feduhb_reproduction.benchmark import page as benchmark
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims.membership import PRINTED
from feduhb_reproduction.claims.noticed import tabulate_methods, tabulate_notes
from feduhb_reproduction.claims.parts import DATA, NEITHER, OURS, Claim, Evidence, Judged
from feduhb_reproduction.study import page as study
from feduhb_reproduction.tables import make_tables
from feduhb_reproduction.words import CORRECTED

ROOT = Path(__file__).parents[3]
FOLDER, IMAGES = Path("docs/reproduction"), Path("docs/images/paper")
FILLED = (Path("README.md"), Path("docs/methods/accelerators.md"))
MADE = "<!-- Made by feduhb_reproduction.pages from results/: do not edit, run make docs. -->"
PICTURE = "mnist-curves-525.png"  # on the first page
FIGURES = {
    "curves": "Test accuracy and loss by round",
    "forgetting": "MISR and ASR of every method, with controls",
    "beta": "Accuracy by round for each momentum",
    "lambda": "The stop rule by λ and window",
    "ablation": "Momentum and the stop rule apart, and FedAvg with other server steps",
}
LEAD = """\
FedUHB saves rounds, but one round takes as long as one of Retrain. If all methods may use the same amount of client work, FedUHB is not
always the most accurate. The paper's numbers on time, on MISR (its measure of membership inference) and on λ (the setting of the stop rule)
were not reproduced."""
CAUTIONS = """\
- **No correction.** {count} claims were tested without a correction for their number. “Clearly” means 95 % for one comparison, so a few clear differences may be chance.
- **MISR.** The paper contradicts itself: an MISR close to 0.5 is success (IV-A.3), and Retrain's {printed:.1%} shows “a strong capability” (IV-B.4). Both cannot be the goal.
- **Dirichlet.** Every client holds equally many images. Its mix of classes is a Dirichlet draw of its own. The other common law cuts each class
  among the clients, which makes clients of unequal size. The paper does not say which it used."""
WHERE = """\
Each verdict links to its criterion and to the measurements ([all criteria](criteria.md)). All tables and figures: {appendices}."""
AGAIN = """\
## Run it again

```sh
feduhb reproduce mnist --quick     # a first look: one seed, one federation, ten rounds; six minutes on two cores
feduhb reproduce mnist --data FOLDER --engine stacked:tf32 --out results/paper/mnist
feduhb reproduce cifar10 --data FOLDER --engine stacked:tf32 --out results/paper/cifar10
```

- Without `--data` the files are downloaded.
- A cell is one federation with one seed, and has its own file. If you interrupt the command, start it again: it keeps the finished cells and continues.
- `--workers N` makes several cells at once. `--missing` lists the cells that are missing.
- To add cells from other machines, copy their files into `cells/`.
- `make docs` writes these pages. The [command line](../cli.md) has all options."""
CRITERIA = f"""\
# The claims: criteria, measurements, conditions

Each verdict is computed: a criterion is applied to the numbers in `results/`.

- {claims.CLEARLY}
- {claims.RUNS}
- A number in the name of a federation, as in “iid (525)”, is the number of training images per client.
- “In part” describes a partial result. A claim with such a result holds under conditions."""
DIFFERS = """\
## Where this differs from the paper

- **Images of a client, and the partition.** The paper gives neither. The [tables]({first}) state those used here. For the paper's numbers on λ, more
  numbers of images were searched (`results/search/`).
- **The law of a Dirichlet partition.** Each client draws its mix of classes from a Dirichlet distribution, and then takes as many images as every other
  client, in this mix. If a class has no images left, images of the class with the most left take their place. No class is cut among the clients.
- **Window and ε of the stop rule.** The paper gives neither. Here the window is all rounds so far and ε is 0. The tables on λ replay other windows.
- **The movement that is judged.** Here the rule judges the newest movement and returns the newest model. The paper's algorithm judges the previous
  movement and returns the previous model ([the stop rule](../stop-rule.md)).
- **The update.** The paper's formula uses a gradient, but its experiments train local epochs. Here a client's update is the change that its local
  training made, and the server applies it with step size 1.
- **The trigger.** The paper does not describe its backdoor. Here half of each leaver's images carry a bright square and the label 0. The other
  half stays clean, so that the model can distinguish the trigger from the rest of the image.
- **MISR.** The attackers are cross-fitted: none classifies an example that it was fitted on. The rate on test data is given beside every MISR.
- **No held-out data.** Clients train on all of their images. Accuracy is measured on the data set's own test images.
- **FedEraser and FedRecover** follow their own papers ([methods](../methods/index.md)). FedRecover runs without periodic correction, as in the
  FedUHB paper, and with it. {settings}"""
WHOLE = """\
- **2 classes a client on MNIST** were run with 525 images a client and with all images, because not every class has enough images for 3,000 a client."""


def make_pages(root: Path = ROOT) -> dict[str, str]:
    """Return the pages by file name, made from the results under a folder."""
    evidence = claims.read_evidence(root / "results")
    found = claims.judge_claims(evidence)
    there = {data: cells for data, cells in evidence.cells.items() if cells}
    parts = {
        "index.md": _index(root, evidence, found, list(there)),
        "criteria.md": _criteria(found, there),
        **{f"{data}.md": _appendix(root, data, cells) for data, cells in there.items()},
        "study.md": study.make_page(root / "results", _find_study_figures(root)),
        "methods.md": benchmark.make_page(root / "results", _find_benchmark_figures(root)),
    }
    return {name: "\n\n".join([MADE, *each]) + "\n" for name, each in parts.items()}


def _index(root: Path, evidence: Evidence, found: Sequence[Judged], there: Sequence[str]) -> Iterator[str]:
    yield "# The paper, reproduced"
    yield f"{claims.count_verdicts(found)} {_devices(evidence)}"
    yield "## The claims"
    rows = [
        f"| {mark} | {claim.words} | [{one.verdict}](criteria.md#claim-{mark.lower()}) |"
        for mark, claim, one in claims.number_claims(found)
    ]
    yield "\n".join(
        ["|  | claim of the paper (T1, T2: our own targets) | verdict |", "| ---: | :--- | :--- |", *rows]
    )
    yield WHERE.format(appendices=join_names([f"[{DATA[data]}]({data}.md)" for data in there]))
    yield "Before you quote a verdict:"
    yield CAUTIONS.format(count=len(claims.CLAIMS), printed=PRINTED)
    yield "## In one picture"
    yield LEAD
    if PICTURE in {copy.name for copy in find_pictures(root)}:
        yield f"![Test accuracy and loss by round on MNIST](../images/paper/{PICTURE})"
    for table in (tabulate_methods(evidence), tabulate_notes(evidence)):
        yield f"## {table.title}"
        yield table.to_markdown().rstrip()
    yield (
        "Test accuracy is the mean over the seeds ± their standard deviation. A number in the name of a federation is the number of "
        "training images per client. A client round is one client training in one round. If the stop rule does not end a run, the run counts with its last round."
    )
    yield AGAIN


def _devices(evidence: Evidence) -> str:
    """Return a sentence on the data, the seeds and the machine."""
    every = [cell for cells in evidence.cells.values() for cell in cells]
    seeds = sorted({cell.place.seed for cell in every})
    names = [DATA[data] for data, cells in evidence.cells.items() if cells]
    devices = join_names(sorted({str(cell.made["device"]) for cell in every}))
    return f"Measured on {join_names(names)} with {len(seeds)} seed{'s' if len(seeds) > 1 else ''}, on {devices}."


def _criteria(found: Sequence[Judged], there: Mapping[str, Sequence[Cell]]) -> Iterator[str]:
    yield CRITERIA
    topics: dict[str, list[str]] = {}
    for mark, claim, one in claims.number_claims(found):
        topics.setdefault(claim.topic, []).append(_claim(mark, claim, one))
    for topic, each in topics.items():
        yield f"## {topic}"
        yield from each
    said = "The FedUHB paper gives neither FedRecover's T_w, T_f and s nor FedEraser's Δt and r."
    open_ones = dict.fromkeys(text for cells in there.values() for cell in cells if (text := _settings(cell)))
    lines = [
        DIFFERS.format(
            first=f"{next(iter(there))}.md",
            settings=f"{said} Here they are {' or '.join(open_ones)}." if open_ones else said,
        )
    ]
    lines += [WHOLE] if any(cell.place.per_client is None for cell in there.get("mnist", ())) else []
    yield "\n".join([*lines, _precision(there.values())])


def _claim(mark: str, claim: Claim, one: Judged) -> str:
    """Return a claim's section: the verdict with its conditions, the criterion, the numbers."""
    verdict = f"**{one.verdict.capitalize()}**" + (f": {one.why}." if one.why else ".")
    run = "" if claim.run == NEITHER else f" Run of FedUHB: {claim.run}."
    return "\n\n".join(
        [
            f'<a id="claim-{mark.lower()}"></a>\n\n### {mark}. {claim.words}',
            f"{verdict} {'Not in the paper.' if claim.where == OURS else f'In the paper: {claim.where}.'}",
            f"- Holds if: {claim.criterion}{run}\n- Measured: {one.brief or 'nothing'}.",
            *(_fold(part) for part in one.measured.split("\n\n") if part),
        ]
    )


def _fold(measured: str) -> str:
    """Return a folded HTML table: its summary line names the numbers, and each federation has a row."""
    lead, *lines = measured.split("\n")
    cells = [line.partition(": ") for line in lines]
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(rest)}</td></tr>"
        if mark
        else f"<tr><td>{escape(name)}</td></tr>"
        for name, mark, rest in cells
    )
    return f"<details><summary>{escape(lead)}</summary><table>{rows}</table></details>"


def _settings(cell: Cell) -> str:
    """Return the values that a cell uses for the settings that the paper does not state."""
    names = ("fedrecover", CORRECTED, "federaser")
    runs = {name: cell.runs[name].settings for name in names if name in cell.runs}
    if len(runs) < 3 or not all(runs.values()):
        return ""
    plain, corrected, eraser = runs.values()
    return (
        f"T_w {plain['warmup']}, T_f {plain['final']}, s {plain['buffer']} and, where it is corrected, T_c {corrected['correction']}; "
        f"Δt {eraser['interval']} and r {eraser['ratio']:g}"
    )


def _precision(grids: Iterable[Sequence[Cell]]) -> str:
    found = sorted({str(cell.made["engine"]["precision"]) for cells in grids for cell in cells})
    return f"- **Precision.** The paper does not give it. Here it was {join_names(found)}, which [speed](../speed.md) compares with float32."


def _appendix(root: Path, data: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield what was run on a data set, its figures and its tables."""
    place, hours = cells[0].place, sum(cell.made["seconds"] for cell in cells) / 3600
    commands = dict.fromkeys(f"`{made['command']}`" for cell in cells for made in cell.origins)
    yield f"# {DATA[data]}: what was run, figures, tables"
    yield (
        f"{len(cells)} cells, made by {join_names(list(commands))}.\n\n"
        f"- {place.clients} clients, {len(place.forget.split(','))} of them leavers; {place.rounds} rounds, {place.epochs} local epochs, "
        f"batch {place.batch_size}, learning rate {place.lr:g}\n"
        f"- FedUHB with β {place.momentum:g} and λ {place.scale:g}\n"
        f"- {hours:.1f} hours of cells, added up\n- {join_names(_versions(cells))}"
    )
    found = make_tables(cells)
    yield _format_table(found.pop("runs"))
    yield "## Figures"
    for copy, figure in find_pictures(root).items():
        if figure.parent.name == data:
            kind, _, size = figure.stem.partition("-")
            more = {"": "", "all": ", all images"}.get(size, f", {size} images a client")
            yield f"![{DATA[data]}: {FIGURES[kind]}{more}](../images/paper/{copy.name})"
    for table in found.values():
        yield f"## {table.title}"
        yield _format_table(table)


def _format_table(table: Grid) -> str:
    return "\n\n".join(part for part in (table.to_markdown().rstrip(), table.note) if part)


def _versions(cells: Sequence[Cell]) -> list[str]:
    found = {
        f"{name} {version if version[:1].isdigit() else 'from source, at the commits below'}"
        for cell in cells
        for made in cell.origins
        for name, version in made["versions"].items()
    }
    return sorted(found)


def _find_study_figures(root: Path) -> dict[str, dict[str, str]]:
    """Return the paths of a study's figures on its page, by study and name."""
    there = {copy.name for copy in find_pictures(root)}
    return {
        tier: {
            name: f"../images/paper/{tier}-{name}.png"
            for name in study.FIGURES
            if f"{tier}-{name}.png" in there
        }
        for tier in study.STUDIES
    }


def _find_benchmark_figures(root: Path) -> dict[str, str]:
    """Return the paths of the benchmarks' figures on their page, by name."""
    there = {copy.name for copy in find_pictures(root)}
    names = {name: f"benchmark-{name}.png" for name in benchmark.BENCHMARKS}
    return {name: f"../images/paper/{file}" for name, file in names.items() if file in there}


def find_pictures(root: Path = ROOT) -> dict[Path, Path]:
    """Return the figures of the pages: a dict from the copy in docs/ to the file in results/."""
    studied = {
        root / IMAGES / f"{tier}-{name}.png": root / "results" / tier / f"{name}.png"
        for tier in study.STUDIES
        for name in study.FIGURES
    }
    studied |= {
        root / IMAGES / f"benchmark-{name}.png": root
        / "results"
        / benchmark.FOLDER
        / name
        / f"{benchmark.FIGURE}.png"
        for name in benchmark.BENCHMARKS
    }
    return {copy: figure for copy, figure in studied.items() if figure.exists()} | {
        root / IMAGES / f"{data}-{path.name}": path
        for data in DATA
        for kind in FIGURES
        for path in sorted(
            (root / "results" / "paper" / data).glob(f"{kind}*.png"),
            key=lambda path: (len(path.name), path.name),
        )
    }


def fill_parts(text: str, root: Path = ROOT) -> str:
    """Return a page with what was measured between its marks: the count of verdicts, and the rounds of the recommended method."""
    makers = {
        "paper": lambda: claims.count_verdicts(claims.judge_claims(claims.read_evidence(root / "results"))),
        "fast": lambda: study.describe_fast(root / "results"),
    }
    for name, make in makers.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def write_pages(root: Path = ROOT) -> None:
    """Write the pages, copy their figures, and fill in the parts of other pages."""
    pages = make_pages(root)
    for copy, figure in find_pictures(root).items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figure, copy)
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (root / FOLDER / name).write_text(text, encoding="utf-8")
    for path in (root / name for name in FILLED):
        if path.exists():
            path.write_text(fill_parts(path.read_text(encoding="utf-8"), root), encoding="utf-8")


if __name__ == "__main__":
    try:
        write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    except FeduhbError as error:
        sys.exit(f"{FOLDER} is not written: {error}")
