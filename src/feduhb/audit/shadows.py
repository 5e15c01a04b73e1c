"""Shadow federations for LiRA: the same training many times, each time with another half of the clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from feduhb.audit.attacks.lira import Shadows, compute_all_confidences
from feduhb.audit.attacks.membership import Candidates
from feduhb.audit.controls import Controls, ShowRound, Step
from feduhb.core.inputs import Inputs, join_inputs, map_tensors
from feduhb.core.seeds import generator, seed_for
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.engines import EngineMaker
from feduhb.engines.pool import Pool, count_cores
from feduhb.errors import ConfigError
from feduhb.runs.files import write_atomically
from feduhb.runs.held_out import list_recorded
from feduhb.runs.prepare import run_method
from feduhb.runs.run import Run
from feduhb.runs.workers import spread
from feduhb.stopping import never


class ShadowSet:
    """The shadow federations of one method, and their confidences in every candidate.

    Half of the clients take part in a shadow, the other half in the next one. A leaver that takes part trains on as many
    of its candidates as in the real training, drawn again for each shadow from members and others alike. Only a shadow's
    confidences are written, never its model, which was trained on data to be forgotten. On a CPU as many shadows train
    at once as there are cores, each on one core.
    """

    def __init__(
        self,
        controls: Controls,
        federation: Federation,
        candidates: Candidates,
        method: str,
        name: str,
        count: int,
        like: Callable[[], Run],
    ) -> None:
        """Plan the shadows.

        Args:
            method: the name of the method, for display.
            name: the beginning of the file names, different for each method.
            count: the number of shadows, which is even.
            like: returns the run whose method, rounds and stop rule the shadows use. A shadow without held-out data, which
                a rule may need, runs every round.
        """
        if len(federation.clients) < 2:
            raise ConfigError(
                "a shadow federation holds half of the clients, but there is only one client; audit with shadows=0"
            )
        self.controls, self.federation, self.candidates = controls, federation, candidates
        self.like = like
        self.deals = [deal(federation, candidates, shadow) for shadow in range(count)]
        self.files = [controls.folder / f"{name}-{shadow:02d}.json" for shadow in range(count)]
        self.steps = [
            Step(f"shadow-{method} {shadow} of {count}", partial(self._wait_for, file), 1, partial(_is_missing, file))
            for shadow, file in enumerate(self.files, 1)
        ]  # fmt: skip
        self._training = self._train()

    def read(self) -> Shadows:
        """Return the confidences of all shadows, once they are trained."""
        self._training.close()
        written = [json.loads(file.read_text()) for file in self.files]
        clients = list(self.candidates.members)
        return Shadows(
            self.candidates,
            {c: torch.stack([torch.tensor(one[c], dtype=torch.float64) for one in written]) for c in clients},
            {c: torch.stack([dealt[c] for dealt in self.deals]) for c in clients},
        )

    def _wait_for(self, file: Path, show: ShowRound) -> None:  # noqa: ARG002
        """Train shadows until this file is written; other shadows may train at the same time."""
        while _is_missing(file):
            next(self._training)
        if not any(map(_is_missing, self.files)):
            self._training.close()  # this ends the processes that trained them

    def _train(self) -> Generator[None]:
        workers = count_cores() if _choose_small_engine(self.controls.engine) else 1
        yield from spread(train_shadow, self._jobs(), workers)

    def _jobs(self) -> Iterator[Job]:
        """Yield a job for each shadow whose file is missing."""
        engine, like = _choose_small_engine(self.controls.engine) or self.controls.engine, self.like()
        for shadow, (file, dealt) in enumerate(zip(self.files, self.deals, strict=True)):
            if _is_missing(file):
                inner = make_shadow_federation(self.federation, self.candidates, shadow, dealt)
                stop, keep = like.stop, like.keep
                if "held_out" in list_recorded(stop, keep, ()) and not any(map(len, inner.held_out.values())):
                    stop, keep = never, "last"
                train = partial(
                    run_method, inner, like.method, self.controls.settings_in(inner), rounds=like.scheduled, stop=stop, keep=keep,
                    engine=engine, block=self.controls.way, scored=False,
                )  # fmt: skip
                yield Job(train, self.candidates, file)


def _is_missing(file: Path) -> bool:
    return not file.exists()


def choose_clients(federation: Federation, shadow: int) -> list[ClientId]:
    """Return a shadow's half of the clients; shadows 2 j and 2 j + 1 have the two halves of one division."""
    clients = sorted(federation.clients)
    order = torch.randperm(
        len(clients), generator=generator(federation.seed, "shadows", shadow // 2)
    ).tolist()
    half = len(clients) // 2
    return sorted(clients[i] for i in (order[half:] if shadow % 2 else order[:half]))


def deal(federation: Federation, candidates: Candidates, shadow: int) -> dict[ClientId, Tensor]:
    """Return for each client which of its candidates [n] a shadow trains on."""
    present, found = choose_clients(federation, shadow), {}
    for client, members in candidates.members.items():
        inside = torch.zeros(len(members) + len(candidates.others[client]), dtype=torch.bool)
        if client in present:
            draw = generator(federation.seed, "deal", shadow, client)
            inside[torch.randperm(len(inside), generator=draw)[: len(members)]] = True
        found[client] = inside
    return found


def make_shadow_federation(
    federation: Federation, candidates: Candidates, shadow: int, dealt: Mapping[ClientId, Tensor]
) -> Federation:
    """Return the federation that a shadow trains in.

    Held-out examples of clients with candidates may be trained on here, so only those of the other clients stay held out.
    """

    def examples(client: ClientId) -> Examples | tuple[Inputs, Tensor]:
        own = federation.clients[client]
        if client not in candidates.members:
            return own
        kept = own.where(~torch.isin(own.keys, candidates.members[client].keys))
        x, y = candidates.all(client)
        parts = [kept.all(), (map_tensors(lambda part: part[dealt[client]], x), y[dealt[client]])]
        return join_inputs([x for x, _ in parts]), torch.cat([y for _, y in parts])

    chosen = choose_clients(federation, shadow)
    held = {c: e for c, e in federation.held_out.items() if c in chosen and c not in candidates.members}
    return federation.replace(
        clients={client: examples(client) for client in chosen},
        held_out=held,
        test=federation.test,
        seed=seed_for(federation.seed, "shadow", shadow),
        about=None,
        standardize=False,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that another process needs to train one shadow."""

    train: partial[Run]
    candidates: Candidates
    file: Path  # where the shadow's confidences are written


def train_shadow(job: Job) -> None:
    """Train a shadow and write its confidences, but not its model. A crash costs one shadow."""
    confidences = compute_all_confidences(job.train(), job.candidates)
    text = json.dumps({client: values.tolist() for client, values in confidences.items()})
    write_atomically(job.file, text.encode())


def _choose_small_engine(engine: str | EngineMaker) -> EngineMaker | None:
    """Return an engine of one thread, to train several shadows at once; None on a GPU and for other engines."""
    if engine not in {"auto", "pool"} or torch.cuda.is_available():
        return None
    return partial(Pool, threads=1)
