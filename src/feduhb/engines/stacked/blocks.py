"""Clients trained together: all clients of a block in one computation."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from feduhb.core.loss import WeightedEntropy
from feduhb.core.types import ClientId
from feduhb.engines.batches import split_chunks
from feduhb.engines.stacked.data import ExampleStore
from feduhb.engines.stacked.fused import make_fused_layers
from feduhb.engines.stacked.layers import Chain, make_layers
from feduhb.engines.stacked.networks import LayeredNetwork, MappedNetwork, Network
from feduhb.engines.stacked.runner import Runner, Schedule
from feduhb.engines.stacked.setup import Setup
from feduhb.engines.triton import HAS_TRITON


class Blocks:
    """Train the clients of a block layer by layer if the model is a chain, else mapped by `torch.func`.

    Args:
        chain: the model's layers; None maps the model.
        size: the largest number of clients in a block.
    """

    def __init__(self, setup: Setup, chain: Chain | None, size: int) -> None:
        self.setup = setup
        self.chain = chain
        self.size = size

    def run(
        self,
        clients: Sequence[ClientId],
        store: ExampleStore,
        start: Tensor,
        epochs: int,
        seed: int,
        round: int,
    ) -> Tensor:
        """Train from the parameters [P]; return the parameters of each client [C, P]."""
        schedule = self._schedule(clients, epochs)
        return self._reorder(self.runner.run(schedule, store, start, seed, round), schedule, clients)

    def time_step(self, clients: Sequence[ClientId], store: ExampleStore, start: Tensor) -> float:
        """Return the seconds that a GPU needs for one step of all these clients."""
        return self.runner.time_step(self._schedule(clients, 1), store, start)

    def compute_gradients(self, clients: Sequence[ClientId], store: ExampleStore, start: Tensor) -> Tensor:
        """Return the gradients [C, P] of each client's mean loss over all its examples, plus l2/2 ‖w‖²."""
        setup, counts = self.setup, self.setup.count_examples(clients)
        width = max(1, 4 * len(next(split_chunks(max(counts)))) // len(clients))
        schedule = Schedule.of(clients, counts, width, 1)
        mapped = MappedNetwork(setup.masked, setup.local, 0, setup.device, setup.trial.idle)
        total = (setup.local.decay * start).repeat(len(clients), 1)
        weights = [self._weigh(client) for client in schedule.clients]
        for step, begin in enumerate(range(0, max(schedule.counts), schedule.size)):
            still = [count for count in schedule.counts if count > begin]
            rows = torch.stack(
                [_slice(store.rows[client], step, schedule.size) for client in schedule.clients[: len(still)]]
            )
            here = torch.arange(begin, begin + schedule.size) < torch.tensor(still).unsqueeze(1)
            factor = here / torch.tensor(weights[: len(still)], dtype=setup.dtype).unsqueeze(1)
            x, y = store.gather(rows.to(setup.device))
            factor = factor.to(setup.device)
            total[: len(still)] += mapped.gradients(start, x, y, factor, factor)[0]
        return self._reorder(total, schedule, clients)

    @functools.cached_property
    def runner(self) -> Runner:
        """What carries out the schedules of blocks."""
        setup, clients = self.setup, min(self.size, len(self.setup.clients))
        network = self._make_network(clients)
        return Runner(network, clients, setup.dtype, setup.device, draws=setup.batches.draws)

    def _make_network(self, clients: int) -> Network:
        setup = self.setup
        if self.chain is None:
            return MappedNetwork(setup.masked, setup.local, clients, setup.device, setup.trial.idle)
        if setup.device.type == "cuda" and HAS_TRITON:
            x, _ = next(iter(setup.clients.values())).batch(torch.arange(1))
            example = x.to(setup.device)
            layers = make_fused_layers(self.chain, clients, setup.device, setup.precision, example)
        else:
            layers = make_layers(self.chain, clients, setup.device)
        return LayeredNetwork(setup.masked, layers, setup.local)

    def _schedule(self, clients: Sequence[ClientId], epochs: int) -> Schedule:
        setup, counts = self.setup, self.setup.count_examples(clients)
        joins = bool(setup.batches.joined)
        return Schedule.of(clients, counts, setup.local.batch_size, epochs, joins=joins)

    def _weigh(self, client: ClientId) -> float:
        """Return the sum of the weights of a client's examples in its loss; 1 if all of them are 0."""
        targets = self.setup.clients[client].targets
        entropy = WeightedEntropy.of(self.setup.local.loss, targets)
        return float(len(targets) if entropy is None else entropy.weigh(targets).double().sum()) or 1.0

    def _reorder(self, values: Tensor, schedule: Schedule, clients: Sequence[ClientId]) -> Tensor:
        """Return the rows of a schedule in the order of the clients."""
        place = {client: row for row, client in enumerate(schedule.clients)}
        return values.index_select(
            0, torch.tensor([place[client] for client in clients], device=values.device)
        )


def _slice(rows: Tensor, step: int, size: int) -> Tensor:
    """Return the positions of one step in order, padded with the first position."""
    found = rows[step * size : (step + 1) * size]
    return torch.cat([found, rows[:1].expand(size - len(found))])
