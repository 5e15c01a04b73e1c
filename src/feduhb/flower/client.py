"""The client's side: a ClientApp made of a module and a function that loads the client's data, and the client's cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, MetricRecordValues, RecordDict
from flwr.clientapp import ClientApp
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from feduhb.core.flat import ModelSource, channels_last, draw_model, unflatten
from feduhb.core.inputs import Inputs, list_tensors
from feduhb.core.local import Augment, find_loss
from feduhb.core.scores import SCORES
from feduhb.core.types import Loss, Work
from feduhb.data.convert import read_data
from feduhb.data.federation import Examples, Federation, Start
from feduhb.data.request import Request
from feduhb.engines.loop import Loop
from feduhb.engines.scoring import choose_score, count_scored, score_held_out, score_model
from feduhb.errors import DataError, FeduhbError, RequestError
from feduhb.flower import wire
from feduhb.flower.wire import Layout, MalformedError
from feduhb.runs.files import disk_errors, write_atomically

Loader = Callable[[Context], Any]  # returns (x, y), (x, y, keys) or Examples
Place = str | Path | Callable[[Context], str | Path]
OnLeave = Callable[[Context], object]
TENSORS, FORGOTTEN = "examples.safetensors", "forgotten.json"


def client_app(
    model: ModelSource,
    data: Loader,
    *,
    held_out: Loader | None = None,
    loss: str | Loss = nn.functional.cross_entropy,
    start: Start = "fresh",
    augment: Augment | None = None,
    cache: Place | None = None,
    on_leave: OnLeave | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> ClientApp:
    """Return the ClientApp of a federation: ``app = client_app(model=..., data=...)`` in the module that the app's config names.

    Training is that of the reference engine, on batches drawn at (seed, client, round, epoch). On the CPU with one
    thread the updates equal those of an in-process run, bit for bit.

    Args:
        model: the module that all clients share, or a factory; its weights come with each message. Frozen parameters and
            constant buffers do not: they are the client's own, and must be those of the server's module.
        data: takes the Flower context and returns this client's (x, y), or (x, y, keys) if requests name its rows by
            keys of its own instead of positions. The inputs x are a tensor, or several in a dict or tuple.
        held_out: takes the Flower context and returns (x, y) for evaluation, never trained on; None evaluates on the
            training data. Stop rules on held-out values, and keep="best", need it; before such a run the server asks
            how many examples it returns. Forgotten classes are not scored for them, nor forgotten rows if it returns
            (x, y, keys) with the numbering of ``data``.
        loss: of (outputs, targets), the mean over a batch, or a name, as for `feduhb.Federation`.
        start: "given" if the server's runs start from the weights of the module; this is also how a module with frozen
            parameters is used.
        augment: changes the batches in training, as for `feduhb.Federation`.
        cache: a folder for the loaded tensors, or a function that takes the context and returns one; each partition
            has its own folder in it. It is deleted when the client is told to leave.
        on_leave: called with the context when the client is told to leave, to delete everything else that it keeps.
        device, threads: to train with.
    """
    kept = ClientCache(data, cache)
    handlers = _Handlers(model, kept, held_out, find_loss(loss), start, augment, device, threads)
    app = ClientApp()
    app.train()(handlers.train)
    app.evaluate()(handlers.evaluate)
    return _add_queries(app, handlers.cache.delete, on_leave, handlers.count_held_out)


def introduced(app: ClientApp, *, on_leave: OnLeave | None = None) -> ClientApp:
    """Return your own ClientApp with handlers for two queries of the server: which partition it holds, and to leave.

    Args:
        on_leave: called with the context when the client is told to leave, to delete what it keeps.
    """
    return _add_queries(app, lambda context: 0, on_leave)  # noqa: ARG005


def _add_queries(
    app: ClientApp,
    delete: Callable[[Context], int],
    on_leave: OnLeave | None,
    count_held_out: Callable[[dict[str, Any], Context], int] | None = None,
) -> ClientApp:
    def answer_who(message: Message, context: Context) -> Message:
        known = {key: int(context.node_config.get(key, -1)) for key in ("partition-id", "num-partitions")}
        config = _read_config(message)
        if wire.HELD_OUT in config and count_held_out is not None:
            known[wire.HELD_OUT] = count_held_out(config, context)
        return _reply(message, {wire.METRICS: MetricRecord(dict(known))})

    def leave(message: Message, context: Context) -> Message:
        deleted = delete(context)
        if on_leave is not None:
            on_leave(context)
        context.state.clear()
        return _reply(message, {wire.METRICS: MetricRecord({wire.DELETED: deleted})})

    app.query(wire.WHO.partition(".")[2])(answer_who)
    app.query(wire.LEAVE.partition(".")[2])(leave)
    return app


@dataclass(frozen=True, slots=True)
class _Handlers:
    """The handlers of train and evaluate messages."""

    model: ModelSource
    cache: ClientCache
    held_out: Loader | None
    loss: Loss
    start: Start
    augment: Augment | None
    device: str
    threads: int

    def train(self, message: Message, context: Context) -> Message:
        """Do the work of a message, or answer with a refusal that holds the reason."""
        try:
            return self._train(message, context)
        except (FeduhbError, MalformedError) as error:
            if wire.ANSWER not in _read_config(message):  # a server that does not know refusals
                raise
            return _reply(message, {wire.REFUSAL: ConfigRecord({"why": str(error)})})

    def _train(self, message: Message, context: Context) -> Message:
        config = _read_config(message)
        examples = self._load(config, context)
        if not len(examples):
            raise DataError("no example of this client remains; forget the whole client instead")
        client, seed = str(config.get("client", "client")), int(config.get("seed", 0))
        turn = int(config.get("round", config.get("server-round", 1) - 1))
        own = Federation(
            {client: examples}, examples, self.model, seed=seed, loss=self.loss, start=self.start, augment=self.augment
        )  # fmt: skip
        module, local = own.fresh_model(), wire.read_local(config, self.loss, self.augment)
        wire.check_carried(module, config.get(wire.CARRIED))
        layout = Layout.of_module(module)
        task = wire.read_task(config)
        work = Work(
            layout.flatten(_read_arrays(message)),
            int(config.get("epochs", 1)),
            task=task,
            leavers=wire.TARGETS in config,
        )
        if work.leavers:
            own = own.with_leaving({client: self.cache.read_targets(context, config[wire.TARGETS])})
        engine = Loop(own, local, device=self.device, threads=self.threads)
        (block,) = engine.train(work, [client], turn)
        update, wants_update = block.values[0], wire.wants_update(config, task)
        answer = layout.to_arrays(update if wants_update else work.params - update)
        metrics = MetricRecord({wire.EXAMPLES: int(block.weights[0])})
        if "joined_last_batch" in engine.about:
            metrics[wire.JOINED] = 1
        content = {wire.UPDATE if wants_update else wire.ARRAYS: answer, wire.METRICS: metrics}
        held = self._load_held_out(config, context) if wire.HELD_OUT in config else None
        if held is not None:
            unflatten(work.params, module)
            model, name = channels_last(module), config[wire.HELD_OUT]
            score = choose_score(model, held, self.loss) if name == wire.AUTO else SCORES.get(str(name))
            found = score_held_out(model, *held.all(), self.loss, score)
            content[wire.HELD_OUT] = MetricRecord({wire.EXAMPLES: count_scored(held, self.loss), **found})
        return _reply(message, content)

    def count_held_out(self, config: dict[str, Any], context: Context) -> int:
        """Return the number of held-out examples that would be scored."""
        return len(self._load_held_out(config, context) or ())

    def _load_held_out(self, config: dict[str, Any], context: Context) -> Examples | None:
        """Return the held-out examples without what a message says is forgotten; None if there are none."""
        if self.held_out is None:
            return None
        loaded = self.held_out(context)
        held = to_examples(loaded)
        rows, classes = config.get(wire.ROWS, ()), config.get(wire.CLASSES, ())
        # Keys that were not given are positions, of another numbering.
        if isinstance(loaded, tuple | list) and len(loaded) == 3:
            held = held.where(~held.mask_keys(rows))
        held = _leave_out(held, classes)
        return held if len(held) else None

    def evaluate(self, message: Message, context: Context) -> Message:
        """Score the model of a message on the held-out data, as it computes in use: without dropout or augmentation."""
        config = _read_config(message)
        if self.held_out is None:
            examples = self._load(config, context)
        else:
            examples = to_examples(self.held_out(context))
        module = draw_model(self.model, int(config.get("seed", 0)), given=self.start == "given")
        wire.check_carried(module, config.get(wire.CARRIED))
        unflatten(Layout.of_module(module).flatten(_read_arrays(message)), module)
        loss, accuracy = score_model(module, examples, self.loss)
        scores: dict[str, MetricRecordValues] = {wire.EXAMPLES: len(examples), "loss": loss}
        if not math.isnan(accuracy):  # NaN: the targets are not labels
            scores["accuracy"] = accuracy
        return _reply(message, {wire.METRICS: MetricRecord(scores)})

    def _load(self, config: dict[str, Any], context: Context) -> Examples:
        held = self.cache.load(context, config.get(wire.ROWS, ()), config.get(wire.CLASSES, ()))
        return held.where(~held.mask_keys(config.get(wire.TARGETS, ())))


def _read_config(message: Message) -> dict[str, Any]:
    found = message.content.get(wire.CONFIG)
    return dict(found) if isinstance(found, ConfigRecord) else {}


def _read_arrays(message: Message) -> ArrayRecord:
    found = message.content.get(wire.ARRAYS)
    if not isinstance(found, ArrayRecord):
        raise MalformedError("the message holds no model to start from")
    return found


def _reply(message: Message, content: dict[str, Any]) -> Message:
    return Message(RecordDict(content), reply_to=message)


@dataclass(frozen=True, slots=True)
class ClientCache:
    """A client's examples without the forgotten ones, kept in a folder if ``place`` names one.

    Flower starts a process for every message, and the folder saves it from loading and preparing the data again. It holds
    the loaded tensors and the keys of forgotten rows. Rows are deleted from the tensors as soon as they are forgotten.
    """

    data: Loader
    place: Place | None = None

    def load(self, context: Context, rows: Sequence[int] = (), classes: Sequence[int] = ()) -> Examples:
        """Return the client's examples without these rows and classes, and without rows forgotten before."""
        folder = self._find_folder(context)
        kept = None if folder is None else _read_examples(folder / TENSORS)
        held = to_examples(self.data(context)) if kept is None else kept
        forgotten = _read_forgotten(folder)
        if missing := sorted(set(rows) - set(held.keys.tolist()) - forgotten):
            raise RequestError(
                f"this client has no row {missing[0]} to forget; its {len(held)} rows have other keys"
            )
        forgotten |= set(rows)
        remaining = held.where(~held.mask_keys(forgotten))
        if folder is not None:
            _write_forgotten(folder, forgotten if rows else set())
            if kept is None or len(remaining) < len(held):
                _write_examples(folder, remaining)
        return _leave_out(remaining, classes)

    def read_targets(self, context: Context, rows: Sequence[int]) -> Examples:
        """Return rows that this client still holds but asked to forget; raise RequestError if it has none of them."""
        held = self.load(context)
        found = held.where(held.mask_keys(rows))
        if not len(found):
            raise RequestError(
                "this client holds none of the rows that it asked to forget; leave the task out"
            )
        return found

    def delete(self, context: Context) -> int:
        """Delete the cache; return the number of files deleted."""
        folder = self._find_folder(context)
        if folder is None or not folder.is_dir():
            return 0
        # A crash may leave temporary files.
        names = (TENSORS, FORGOTTEN, f".{TENSORS}.tmp", f".{FORGOTTEN}.tmp")
        files = [folder / name for name in names if (folder / name).exists()]
        with disk_errors(folder):
            for path in files:
                path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
        return len(files)

    def _find_folder(self, context: Context) -> Path | None:
        """Return the client's own folder: each partition has one, because several may run on one machine."""
        if self.place is None:
            return None
        if callable(self.place):
            return Path(self.place(context))
        part = context.node_config.get("partition-id")
        return Path(self.place) if part is None else Path(self.place) / f"partition-{part}"


def _leave_out(examples: Examples, classes: Sequence[int]) -> Examples:
    """Return examples without those of some classes, if there are any."""
    if not classes:
        return examples
    return examples.where(~Request(classes=tuple(classes)).class_mask(examples.targets))


def to_examples(data: Any) -> Examples:
    """Return what a loader returned as Examples: from (x, y), (x, y, keys) or Examples."""
    if isinstance(data, Examples):
        return data
    if not isinstance(data, tuple | list) or len(data) not in {2, 3}:
        raise DataError(
            "a client's data function must return (x, y), or (x, y, keys) with a whole number as the key of each row"
        )
    found = Examples.of(*read_data((data[0], data[1])))
    if len(data) == 2:
        return found
    keys = torch.as_tensor(data[2])
    if keys.shape != (len(found),) or keys.is_floating_point() or len(torch.unique(keys)) < len(keys):
        raise DataError(
            f"the keys of {len(found)} rows are {list(keys.shape)} {keys.dtype}; return a different whole number for each row"
        )
    return Examples(found.x, found.y, found.rows, keys.long())


def _read_forgotten(folder: Path | None) -> set[int]:
    if folder is None or not (folder / FORGOTTEN).exists():
        return set()
    try:
        return {int(key) for key in json.loads((folder / FORGOTTEN).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        raise DataError(
            f"{folder / FORGOTTEN} is damaged; restore it from a backup, or ask the operator to send the request again"
        ) from None


def _write_forgotten(folder: Path, keys: set[int]) -> None:
    """Make the folder, readable by its owner alone, and write the keys of forgotten rows if there are new ones."""
    with disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if keys and keys != _read_forgotten(folder):
        write_atomically(folder / FORGOTTEN, json.dumps(sorted(keys)).encode())


def _read_examples(path: Path) -> Examples | None:
    """Return the kept examples; None if there are none."""
    if not path.exists():
        return None
    try:
        held = load_file(path)
        found = Examples.of(_unpack_inputs(held), held["y"])
        return Examples(found.x, found.y, found.rows, held["keys"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged; delete it, and the data is loaded again") from error


def _write_examples(folder: Path, examples: Examples) -> None:
    x, y = examples.all()
    tensors = {**_name_inputs(x), "y": y, "keys": examples.keys}
    write_atomically(folder / TENSORS, save({name: part.contiguous() for name, part in tensors.items()}))


def _name_inputs(x: Inputs) -> dict[str, Tensor]:
    """Return the tensors of some inputs by the names that they have in a file: x, x.0 in a tuple, x.0.tokens in a dict."""
    if isinstance(x, Tensor):
        return {"x": x}
    names = [f".{name}" for name in x] if isinstance(x, dict) else [""] * len(x)
    return {f"x.{i}{names[i]}": part for i, part in enumerate(list_tensors(x))}


def _unpack_inputs(held: Mapping[str, Tensor]) -> Inputs:
    """Return the inputs in a file."""
    if "x" in held:
        return held["x"]
    names = sorted((name.split(".", 2) for name in held if name.startswith("x.")), key=lambda n: int(n[1]))
    if not names:
        raise KeyError("x")
    tensors = [held[".".join(name)] for name in names]
    return dict(zip([n[2] for n in names], tensors, strict=True)) if len(names[0]) == 3 else tuple(tensors)
