"""Compute what a federation of a million clients would cost, from what was measured."""

from __future__ import annotations

from typing import Any

MILLION = 1_000_000
IMAGES, EPOCHS = 100, 5  # of each client
ROUNDS = 40  # as in the demo; not measured for a million clients
PIXELS = 28 * 28 * 4  # bytes of an image in float32
LINE = 1e9  # bits a second of a server's line
H200_IMAGES = 18 * 3000 * 5  # of the measured round


def collect_facts(all: dict[str, Any]) -> dict[str, float]:
    """Return the measured numbers that the computation uses."""
    cases = all["growth"]["cases"]
    few, many = cases["clients:pool:1000"], cases["clients:pool:10000"]
    more = many["clients"] - few["clients"]
    return {
        "parameters": many["parameters"],
        "payload": many["bytes_up"] / many["clients"],
        "client_seconds": (many["seconds"] - few["seconds"]) / more,
        "record": (many["record_bytes"] - few["record_bytes"]) / more,
        "lists": next(one["bytes_a_client"] for name, one in cases.items() if name.startswith("lists:")),
        "rate": all["side-by-side"]["implementations"]["pool"]["images_per_second"],
        "gpu_rate": H200_IMAGES / (all["stacked-h200"]["ms_a_round"]["mnist tf32"]["median"] / 1e3),
        "copies": _count_copies(cases, "parameters"),
        "trained": _count_copies(cases, "train"),
        "unlearned": _count_copies(cases, "unlearn"),
    }


def _count_copies(cases: dict[str, Any], kind: str) -> float:
    """Return the memory beyond data and model of the largest model measured in a kind of case, in copies of the model."""
    return count_models(max((one for name, one in cases.items() if name.startswith(f"{kind}:")), key=lambda one: one["parameters"]))  # fmt: skip


def count_models(case: dict[str, Any]) -> float:
    """Return the memory of a case beyond data and model, in models of 4 bytes a parameter."""
    return case["beyond_mib"] * 2**20 / case["parameters"] / 4


def format_arithmetic(all: dict[str, Any]) -> str:
    """Return a list of the numbers and how they are computed."""
    f = collect_facts(all)
    cases = all["growth"]["cases"]
    memory = all["growth"]["machine"]["memory_gib"]
    data = MILLION * IMAGES * PIXELS
    lines = [
        f"- **Sending a model**: {f['parameters']:,.0f} parameters x 4 bytes = {format_bytes(f['payload'])}, to every client asked and back again.",
        f"- **The least a client costs** on two cores, with two images and one epoch: ({_read_seconds(all, 10000):.2f} s - {_read_seconds(all, 1000):.2f} s) / 9,000 clients = {f['client_seconds'] * 1e3:.2f} ms. A million of them: {format_seconds(MILLION * f['client_seconds'])} a round.",
        f"- **A client with {IMAGES} images and {EPOCHS} epochs**: {IMAGES * EPOCHS} images / {f['rate']:,.0f} images/s = {IMAGES * EPOCHS / f['rate'] * 1e3:.0f} ms on two cores; / {f['gpu_rate']:,.0f} images/s = {IMAGES * EPOCHS / f['gpu_rate'] * 1e3:.2f} ms on an H200 in tf32 (at the rate measured with 3,000 images per client; small clients will be slower).",
        f"- **Memory of a round** beyond the data, at most: {_format_memory(cases)}. Updates are added to the mean as they arrive. Kept until the end, those of 10,000 clients would take {format_bytes(10_000 * f['payload'])}.",
        f"- **Memory of the lists**: {f['lists']:,.0f} bytes a client x 1,000,000 = {format_bytes(f['lists'] * MILLION)}.",
        f"- **Memory of the data**: 1,000,000 x {IMAGES} images x {PIXELS:,} bytes = {format_bytes(data)}. This machine has {memory:g} GiB, so it holds the data of {memory * 2**30 / (IMAGES * PIXELS + f['lists']):,.0f} such clients.",
        f"- **Records**: {f['record']:.1f} bytes per round and client asked. All clients, {ROUNDS} rounds: {format_bytes(f['record'] * MILLION * ROUNDS)}.",
        f"- **A larger model**: with 100 million parameters, plain SGD and two threads, three rounds on the pool held {f['copies']:.1f} models' worth at most, beyond the federation's fresh model and the server's own; `feduhb.train` held {f['trained']:.1f}, and `feduhb.unlearn` by FedUHB {f['unlearned']:.1f}, beside the run that is to forget. So {memory:g} GiB / (4 bytes x {f['trained'] + 2:.1f}) are enough to train about {memory * 2**30 / 4 / (f['trained'] + 2) / 1e6:,.0f} million parameters. A further thread takes two models more.",
    ]
    return "\n".join(lines)


def _format_memory(cases: dict[str, Any]) -> str:
    pool = [one for name, one in cases.items() if name.startswith("clients:pool:")]
    return ", ".join(f"{one['beyond_mib']:,.0f} MiB with {one['clients']:,} clients" for one in pool)


def _read_seconds(all: dict[str, Any], clients: int) -> float:
    return all["growth"]["cases"][f"clients:pool:{clients}"]["seconds"]


def format_sampling(all: dict[str, Any]) -> str:
    """Return the table of the cost of one round and of all rounds, by the number of clients asked."""
    f = collect_facts(all)
    lines = [
        f"| asked a round | two cores | one H200, at best | down and up | through a line of 1 Gbit/s | {ROUNDS} rounds, two cores | bytes of {ROUNDS} rounds | history of {ROUNDS} rounds |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for asked in (100, 1_000, 10_000, MILLION):
        images = asked * IMAGES * EPOCHS
        moved = 2 * asked * f["payload"]
        kept = ROUNDS * (asked + 1) * f["payload"]
        cells = (
            f"{asked:,}", format_seconds(images / f["rate"]), format_seconds(images / f["gpu_rate"]), format_bytes(moved), format_seconds(8 * moved / LINE),
            format_seconds(ROUNDS * images / f["rate"]), format_bytes(ROUNDS * moved), format_bytes(kept),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_bytes(size: float) -> str:
    """Return a number of bytes with its unit, in powers of a thousand."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} PB"


def format_seconds(seconds: float) -> str:
    """Return a duration with its unit."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
