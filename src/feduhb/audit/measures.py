"""What an audit measures on finished models, apart from verdicts: accuracies, distances, relearning and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from feduhb.audit.attacks.membership import Models
from feduhb.audit.result import (
    ORIGINAL,
    RETRAIN,
    UNLEARNED,
    Accuracies,
    ClientRow,
    Clients,
    Cost,
    Distance,
)
from feduhb.audit.steps import ShowRound
from feduhb.core.flat import with_params
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.engines.scoring import compute_outputs, score_model
from feduhb.errors import DataError
from feduhb.methods.replay import history_of
from feduhb.methods.retrain import Plain
from feduhb.runs.folder import RunFolder
from feduhb.runs.loop import run as rounds_of
from feduhb.runs.run import Run, method_for


def compute_accuracy(model: nn.Module, parts: Iterable[Examples], federation: Federation) -> float | None:
    """Return the accuracy over several lists of examples together; None where targets are not labels or there are no examples."""
    right = total = 0.0
    for examples in parts:
        if not len(examples):
            continue
        share = score_model(model, examples, federation.loss)[1]
        if share != share:  # NaN
            return None
        right, total = right + share * len(examples), total + len(examples)
    return right / total if total else None


def compute_chance(federation: Federation) -> float:
    """Return the accuracy of always answering the commonest label of the test set."""
    counts = torch.unique(federation.test.targets, return_counts=True)[1]
    return float(counts.max()) / len(federation.test)


def measure_accuracies(run: Run, federation: Federation, request: Request) -> Accuracies:
    """Return a model's accuracy on what was forgotten, on what was kept, and on test data."""
    model = run.model()
    kept = federation.without(request).clients.values()
    gone = federation.forgotten(request).values()
    return Accuracies(
        *(compute_accuracy(model, parts, federation) for parts in (gone, kept, [federation.test]))
    )


def measure_clients(models: Models, federation: Federation, request: Request) -> Clients:
    """Return the accuracies of everyone who stays, on held-out data where everyone has some."""
    rest = federation.without(request)
    held = all(len(rest.held_out.get(client, ())) for client in rest.clients)
    data = rest.held_out if held else rest.clients
    modules = {name: run.model() for name, run in models.items()}

    def measure(client: ClientId) -> ClientRow:
        found = (
            compute_accuracy(modules[name], [data[client]], rest) for name in (ORIGINAL, UNLEARNED, RETRAIN)
        )
        return ClientRow(client, len(data[client]), *found)

    rows = tuple(measure(client) for client in sorted(rest.clients))
    return Clients("held-out data" if held else "training data", rows)


def measure_distances(models: Models, federation: Federation) -> dict[str, Distance]:
    """Return how far the audited model and the original are from Retrain."""
    x = federation.test.all()[0]
    answers = {name: compute_outputs(run.model(), x) for name, run in models.items()}
    params = {name: run.params.detach().cpu() for name, run in models.items()}
    return {
        name: compute_distance(params[name], params[RETRAIN], answers[name], answers[RETRAIN])
        for name in (UNLEARNED, ORIGINAL)
    }


def compute_distance(
    params: Tensor, reference: Tensor, outputs: Tensor, reference_outputs: Tensor
) -> Distance:
    """Return the distance of weights [P] and outputs [n, k] on the same examples, computed in float64."""
    _check_distance(params, reference, outputs, reference_outputs)
    w, v = params.double(), reference.double()
    log_q, log_p = outputs.double().log_softmax(dim=1), reference_outputs.double().log_softmax(dim=1)
    kl = (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()
    differ = outputs.argmax(dim=1) != reference_outputs.argmax(dim=1)
    return Distance(float((w - v).norm()), _cosine(w, v), max(0.0, float(kl)), float(differ.double().mean()))


def _cosine(w: Tensor, v: Tensor) -> float:
    sizes = float(w.norm()), float(v.norm())
    if not all(sizes):
        return 0.0
    return max(-1.0, min(1.0, float((w / sizes[0]) @ (v / sizes[1]))))


def _check_distance(params: Tensor, reference: Tensor, outputs: Tensor, reference_outputs: Tensor) -> None:
    if params.dim() != 1 or params.shape != reference.shape:
        raise DataError(
            f"weights {list(params.shape)} and {list(reference.shape)} are not of one model; compare like with like"
        )
    if outputs.dim() != 2 or outputs.shape != reference_outputs.shape or not len(outputs):
        raise DataError(
            f"outputs {list(outputs.shape)} and {list(reference_outputs.shape)} cannot be compared; "
            "give both models' [n, k] on the same examples, at least one"
        )
    for what, found in (
        ("the model", (params, outputs)),
        ("the reference", (reference, reference_outputs)),
    ):
        if not all(bool(torch.isfinite(part).all()) for part in found):
            raise DataError(f"{what} has weights or outputs that are not finite: it has diverged")


def measure_cost(run: Run) -> Cost:
    """Return the cost of a run."""
    total: Callable[[str], float] = lambda name: sum(getattr(record, name) for record in run.rounds)  # noqa: E731
    key = "history_bytes_kept" if run.forgot is None else "history_bytes_read"
    kept = RunFolder(run.folder).result().get(key, 0) if run.folder else 0
    if not run.folder and (history := history_of(run.method)) is not None:
        kept = history.bytes
    return Cost(
        len(run.rounds),
        int(total("client_epochs")),
        int(total("bytes_down")),
        int(total("bytes_up")),
        int(kept),
        total("client_seconds") + total("server_seconds"),
    )


def compute_relearning_goal(original: Run, request: Request) -> float | None:
    """Return the original's accuracy on the forgotten data, canaries apart; None where targets are not labels."""
    return compute_accuracy(original.model(), _list_plain(original, request), original.federation)


def count_relearning_rounds(
    goal: float, start: Tensor, original: Run, request: Request, most: int, show: ShowRound
) -> int | None:
    """Let everybody train by FedAvg from weights [P]; return the rounds until the forgotten data is known as before.

    Canaries are trained on like the rest but not counted: any model takes long to learn a wrong label by heart.
    Return None where ``most`` rounds are not enough.
    """
    federation = original.federation
    gone = _list_plain(original, request)
    method = method_for("retrain", original.settings)
    module = federation.fresh_model()
    if (compute_accuracy(with_params(module, start.cpu()), gone, federation) or 0.0) >= goal:
        return 0
    stream = rounds_of(
        method, original.make_engine(), list(federation.clients), Plain(start.clone()), rounds=most
    )
    for state, record in stream:
        show(record)
        share = compute_accuracy(with_params(module, state.params.cpu()), gone, federation)
        if share is not None and share >= goal:
            return record.round + 1
    return None


def _list_plain(original: Run, request: Request) -> list[Examples]:
    """Return the forgotten examples that are not canaries."""
    gone = original.federation.forgotten(request).values()
    return [e if e.marked is None else e.where(~e.marked) for e in gone]
