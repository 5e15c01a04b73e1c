"""The client's side: a ClientApp made of a module and a function that loads the client's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, MetricRecordValues, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from feduhb.core.flat import ModelSource, fresh, unflatten
from feduhb.core.types import Local, Loss, Work
from feduhb.data.federation import Examples, Federation
from feduhb.engines.loop import Loop
from feduhb.engines.scoring import score_model
from feduhb.errors import DataError, FeduhbError
from feduhb.flower.client_cache import ClientCache, Loader, Place, to_examples
from feduhb.flower.wire import (
    ANSWER,
    ARRAYS,
    CLASSES,
    CONFIG,
    DELETED,
    EXAMPLES,
    LEAVE,
    METRICS,
    REFUSAL,
    ROWS,
    UPDATE,
    WHO,
    Layout,
    MalformedError,
)

OnLeave = Callable[[Context], object]


def client_app(
    model: ModelSource,
    data: Loader,
    *,
    held_out: Loader | None = None,
    loss: Loss = nn.functional.cross_entropy,
    cache: Place | None = None,
    on_leave: OnLeave | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> ClientApp:
    """Return the ClientApp of a federation: ``app = client_app(model=..., data=...)`` in the module that the app's config names.

    Args:
        model: the module that everyone shares, or a factory; its weights come with each message.
        data: of the Flower context, returns this client's (x, y), or (x, y, keys) if requests name its rows by numbers
            of its own instead of their positions.
        held_out: of the Flower context, returns (x, y) that are never trained on, for evaluation; None evaluates on the
            training data.
        loss: of (outputs, targets), the mean over a batch.
        cache: a folder, or a function of the context that names one, to keep the loaded tensors in; each partition has its
            own folder in it. It is deleted when the client is told to leave.
        on_leave: called with the context then, to delete everything else that the client keeps.
        device, threads: to train with; on the CPU with one thread the bits are those of an in-process run.

    Training is the reference engine's, on batches drawn at (seed, client, round, epoch): the same updates as in process.
    """
    side = _Side(model, ClientCache(data, cache), held_out, loss, device, threads)
    app = ClientApp()
    app.train()(side.train)
    app.evaluate()(side.evaluate)
    return _add_queries(app, side.cache.delete, on_leave)


def introduced(app: ClientApp, *, on_leave: OnLeave | None = None) -> ClientApp:
    """Return a ClientApp of your own with answers to two queries of the server: which partition it holds, and to leave.

    Args:
        on_leave: called with the context when the client is told to leave, to delete what it keeps.
    """
    return _add_queries(app, lambda context: 0, on_leave)  # noqa: ARG005


def _add_queries(app: ClientApp, delete: Callable[[Context], int], on_leave: OnLeave | None) -> ClientApp:
    def answer_who(message: Message, context: Context) -> Message:
        known = {key: context.node_config.get(key, -1) for key in ("partition-id", "num-partitions")}
        return _reply(message, {METRICS: MetricRecord({key: int(value) for key, value in known.items()})})

    def leave(message: Message, context: Context) -> Message:
        deleted = delete(context)
        if on_leave is not None:
            on_leave(context)
        context.state.clear()
        return _reply(message, {METRICS: MetricRecord({DELETED: deleted})})

    app.query(WHO.partition(".")[2])(answer_who)
    app.query(LEAVE.partition(".")[2])(leave)
    return app


@dataclass(frozen=True, slots=True)
class _Side:
    """The handlers of a client's messages, and what they share."""

    model: ModelSource
    cache: ClientCache
    held_out: Loader | None
    loss: Loss
    device: str
    threads: int

    def train(self, message: Message, context: Context) -> Message:
        """Do the work of a message, or answer with a refusal that gives the server the reason."""
        try:
            return self._train(message, context)
        except (FeduhbError, MalformedError) as error:
            if ANSWER not in _config(message):  # a server that does not know refusals
                raise
            return _reply(message, {REFUSAL: ConfigRecord({"why": str(error)})})

    def _train(self, message: Message, context: Context) -> Message:
        told = _config(message)
        examples = self.cache.load(context, told.get(ROWS, ()), told.get(CLASSES, ()))
        if not len(examples):
            raise DataError("nothing is left of this client's data; forget the whole client instead")
        client = str(told.get("client", "client"))
        turn = int(told.get("round", told.get("server-round", 1) - 1))
        own = Federation(
            {client: examples}, examples, self.model, seed=int(told.get("seed", 0)), loss=self.loss
        )
        standard = Local()
        local = Local(
            batch_size=int(told.get("batch-size", standard.batch_size)),
            lr=float(told.get("lr", standard.lr)),
            l2=float(told.get("l2", standard.l2)),
            loss=self.loss,
        )
        layout = Layout.of_module(own.fresh_model())
        work = Work(layout.flatten(_arrays(message)), int(told.get("epochs", 1)))
        (block,) = Loop(own, local, device=self.device, threads=self.threads).train(work, [client], turn)
        update = block.values[0]
        answer = (UPDATE, update) if told.get(ANSWER) == UPDATE else (ARRAYS, work.params - update)
        metrics = MetricRecord({EXAMPLES: len(examples)})
        return _reply(message, {answer[0]: layout.to_arrays(answer[1]), METRICS: metrics})

    def evaluate(self, message: Message, context: Context) -> Message:
        """Score the model of a message on what this client holds out."""
        told = _config(message)
        if self.held_out is None:
            examples = self.cache.load(context, told.get(ROWS, ()), told.get(CLASSES, ()))
        else:
            examples = to_examples(self.held_out(context))
        module = fresh(self.model, 0)
        unflatten(Layout.of_module(module).flatten(_arrays(message)), module)
        return _reply(message, {METRICS: MetricRecord(self._score(module, examples))})

    def _score(self, module: nn.Module, examples: Examples) -> dict[str, MetricRecordValues]:
        loss, accuracy = score_model(module, examples, self.loss)
        found: dict[str, MetricRecordValues] = {EXAMPLES: len(examples), "loss": loss}
        return found if accuracy != accuracy else {**found, "accuracy": accuracy}


def _config(message: Message) -> dict[str, Any]:
    found = message.content.get(CONFIG)
    return dict(found) if isinstance(found, ConfigRecord) else {}


def _arrays(message: Message) -> ArrayRecord:
    found = message.content.get(ARRAYS)
    if not isinstance(found, ArrayRecord):
        raise MalformedError("the message brings no model to start from")
    return found


def _reply(message: Message, content: dict[str, Any]) -> Message:
    return Message(RecordDict(content), reply_to=message)
