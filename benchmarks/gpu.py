"""What was measured on a GPU, for docs/speed.md."""

from __future__ import annotations

from statistics import median

from layout import Results, format_source, format_table
from precision import compare_precisions, find_chance

PRECISIONS = ("float32", "tf32", "bf16")
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def format_timings(measured: Results) -> str:
    """Return the table of milliseconds a round, by precision and for the loop."""
    found = measured["stacked-h200"]
    rows = [
        (
            words,
            *(f"{_read_median(found, task, precision):.1f} ms" for precision in PRECISIONS),
            f"{found['loop_ms_a_round'][task]:,} ms",
        )
        for task, words in _describe_rounds(found).items()
    ]
    masked = found["ragged"]["masked"]
    note = f"In the last row {masked:.1%} of the places in batches are masked. {format_source(found)}"
    return f"{format_table(('round', *PRECISIONS, '`loop` on the same GPU'), rows)}\n\n{note}"


def _describe_rounds(found: Results) -> dict[str, str]:
    """Return a description of each timed round."""
    images, ragged = found["images"], found["ragged"]
    even = {task: f"{name}, {images[task]:,} images a client" for task, name in NAMES.items()}
    together = images["ragged"] * found["clients"]
    sizes = f"{ragged['least']:,} to {ragged['most']:,} a client"
    return {**even, "ragged": f"MNIST, the same {together:,} images by Dirichlet(0.1): {sizes}"}


def _read_median(found: Results, task: str, precision: str) -> float:
    return found["ms_a_round"][f"{task} {precision}"]["median"]


def format_distances(measured: Results) -> str:
    """Return the table of distances between the answers and those in float64."""
    found = measured["stacked-h200"]["distance_from_float64"]
    kinds = ("loop float32", *PRECISIONS)
    rows = [
        (f"{name}'s shapes", *(f"{found[task][kind]:.1e}" for kind in kinds)) for task, name in NAMES.items()
    ]
    return format_table(("", "loop, float32", *PRECISIONS), rows)


def format_precisions(measured: Results) -> str:
    """Return a paragraph about what a precision costs in accuracy."""
    found = measured["precision-h200"]
    every, exact = {each.precision: each for each in compare_precisions(found)}, found["accuracy"]["float32"]
    ends = ", ".join(f"{each.last:.2%} in {each.precision}" for each in every.values())
    others = [each for each in every.values() if each.precision != "float32"]
    apart = " and ".join(f"{each.errors:.2f} ({each.precision})" for each in others)
    names = " and ".join(each.precision for each in others)
    usual = find_chance(len(exact))
    verdict = "within" if all(each.errors <= usual for each in others) else "beyond"
    took = ", ".join(f"{median(found['seconds'][precision]):.1f}" for precision in every)
    return (
        f"Test accuracy after the last of {found['rounds']} rounds, mean of {len(exact)} seeds: {ends}. Seed by seed the curves of {names} differ from float32's by "
        f"{100 * max(each.mean for each in others):.2f} points on average and {100 * max(each.most for each in others):.2f} at most; the seeds' own standard deviation is "
        f"{100 * every['float32'].spread:.2f} points on average over the rounds. The means of the seeds lie at most {apart} standard errors from float32's, "
        f"where chance alone gives up to {usual:.1f}: {verdict} seed noise. The rounds took {took} s of training, the median of the seeds. {format_source(found)}"
    )


def format_summary(measured: Results) -> str:
    """Return one sentence about the paper's rounds."""
    found = measured["stacked-h200"]
    single, fast = (
        [f"{_read_median(found, task, precision):.0f}" for task in NAMES] for precision in ("float32", "tf32")
    )
    loop = [f"{found['loop_ms_a_round'][task] / 1000:.1f}" for task in NAMES]
    return (
        f"On one {found['machine']['gpu']} the `stacked` engine trains a whole MNIST round of the paper ({found['clients']} clients, {found['images']['mnist']:,} images each, 5 epochs) in "
        f"{fast[0]} ms in tf32 and {single[0]} ms in float32, and a CIFAR-10 round ({found['images']['cifar10']:,} images each) in {fast[1]} and {single[1]} ms, where a loop over clients "
        f"takes {loop[0]} and {loop[1]} s ([what scale costs](scale.md))."
    )


def format_models(measured: Results) -> str:
    """Return the table of milliseconds a round of other models, by precision and for the loop."""
    found = measured["architectures-h200"]
    engines = ("loop", *(f"stacked:{precision}" for precision in PRECISIONS))
    rows = []
    for name, model in found["models"].items():
        loop, *others = ((model["milliseconds"][one], model["times_faster"][one]) for one in engines)
        cells = (f"{ms:,.0f} ms ({times:.1f} times)" for ms, times in others)
        rows.append((name, f"{model['parameters']:,}", f"{loop[0]:,.0f} ms", *cells))
    heads = (
        "model",
        "numbers in its vector",
        "`loop`",
        *(f"`stacked`, {precision}" for precision in PRECISIONS),
    )
    return f"{format_table(heads, rows)}\n\n{format_source(found)}"
