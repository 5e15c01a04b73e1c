"""Config files in TOML: their settings as dataclasses, and functions that read, check and write them."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import tomli_w
from pydantic import Discriminator, Tag

from feduhb.core.checks import check_whole, parse_size
from feduhb.core.local import ADDED, Local
from feduhb.core.own_code import is_code
from feduhb.core.scores import Best
from feduhb.core.types import BlockSize
from feduhb.data.federation import Federation
from feduhb.data.load import NOT_OF_TABLES, FederationSettings
from feduhb.errors import ConfigError
from feduhb.runs.files import make_adapter
from feduhb.runs.held_out import Recorded
from feduhb.runs.start import StartSettings
from feduhb.stopping import DistanceStop, DynamicStop, Patience

KeepHistory = bool | Literal["float16"]
C = TypeVar("C")
FORBID = {"extra": "forbid"}  # pydantic refuses unknown keys
UNKNOWN = "unexpected_keyword_argument"  # pydantic's name for that error
# By the tags in pydantic's paths, which no setting can be called.
RULES = {"dynamic rule": DynamicStop, "patience rule": Patience, "distance rule": DistanceStop}
# Other parts of these paths that are not settings.
HIDDEN = {"bool", "int", "literal['float16']", "literal['best']", "literal['recorded']", *RULES}


def _choose_rule(value: Any) -> str:
    """Return which rule a [stop] table describes, by what it watches: nothing for the dynamic rule."""
    watch = value.get("watch") if isinstance(value, Mapping) else None
    return "dynamic rule" if watch is None else "distance rule" if watch == "distance" else "patience rule"


RuleTable = Annotated[
    Annotated[DynamicStop, Tag("dynamic rule")]
    | Annotated[Patience, Tag("patience rule")]
    | Annotated[DistanceStop, Tag("distance rule")],
    Discriminator(_choose_rule),
]

KEEPS_NOTHING = (
    "keep_models helps only where rounds sample clients: if everybody takes part in round 0, a rollback saves nothing; "
    "give clients_per_round, fewer than there are clients, or leave keep_models out"
)
OTHER_LAYERS = "was made with other layers, or other settings of a layer, such as the rate of a dropout; give the model of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """[train]: how clients train, in training and in every unlearning."""

    rounds: int = 40
    epochs: int = 5
    batch_size: int = 64
    lr: float = 0.005
    l2: float = 0.0
    aggregate: str = "weighted_mean"
    clients_per_round: int | None = None  # None: everyone
    engine: str = "auto"
    keep_history: KeepHistory = False  # "float16" takes half the space
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: str = "constant"
    proximal: float = 0.0
    stop: RuleTable | None = None  # of the training alone; None: every scheduled round
    keep: Literal["best"] | None = None  # of the training alone; None: the last model
    record: tuple[Recorded, ...] | None = None  # of the training alone; None: what its rule needs
    keep_models: int | str | None = None  # the bytes that models for rollbacks may take, such as "1GiB"

    __pydantic_config__ = FORBID

    def local(self, federation: Federation) -> Local:
        """Return how a client of a federation trains."""
        return replace(self._make_local(), loss=federation.loss, augment=federation.augment)

    def _make_local(self) -> Local:
        return Local(**{name: getattr(self, name) for name in ("batch_size", "lr", "l2", *ADDED)})

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds)
        check_whole("epochs", self.epochs, least=0)
        if self.clients_per_round is not None:
            check_whole("clients_per_round", self.clients_per_round)
        if not self._make_local().is_plain and self.epochs == 0:
            raise ConfigError(
                "epochs=0 asks for full-batch gradients, which take no optimiser; give epochs of 1 or more, or plain sgd"
            )
        if not (isinstance(self.keep_history, bool) or self.keep_history == "float16"):
            raise ConfigError(f"keep_history is {self.keep_history!r}; give true, false or 'float16'")
        if self.keep_models is not None:
            parse_size(self.keep_models)
            if self.clients_per_round is None:
                raise ConfigError(KEEPS_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearnSettings:
    """[unlearn]: what a run has forgotten, and by which method. Written into the folder of an unlearning run."""

    forget: str
    method: str = "feduhb"
    rounds: int = 40
    settings: Mapping[str, float | int | str] = field(default_factory=dict)
    stop: RuleTable | None = None  # None: every scheduled round
    own_stop: bool | None = None  # true: the rule is the method's own code
    code: str | None = None  # "module:name" or "file.py:name" of a method of the user's own
    keep: Literal["best"] | None = None  # None: the last model
    record: tuple[Recorded, ...] | None = None  # None: what the rule needs
    restart_round: int | None = None  # at which a rollback continued the training; None: at the fresh model
    restart_sha256: str | None = None  # of the model that was kept before that round

    __pydantic_config__ = FORBID

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, least=0)  # methods that start from the old model may stay there


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A config file. It has no [federation] table if the data comes from Python code."""

    seed: int = 0
    federation: FederationSettings | None = None
    train: TrainSettings = field(default_factory=TrainSettings)
    unlearn: UnlearnSettings | None = None
    start: StartSettings | None = None  # None: everything was drawn
    loss: str | None = None  # None: cross-entropy, or a run of an earlier version, which did not record it
    augment: str | None = None
    layers: str | None = (
        None  # a digest of the model's layers and their settings, if the model is not one of this package
    )
    made_by: str = ""  # engine, device, precision and version of torch, on which equal bits depend
    # How many clients were computed together, or "recorded", if bits depend on it.
    block: BlockSize | None = None
    remote: bool | None = None  # true: the clients' data stays with the clients
    clients: Mapping[str, str] = field(default_factory=dict)  # size and digest of each client's data
    # The scores that were given, by name, and whether more or less is better.
    scores: Mapping[str, Best] | None = None
    public: str | None = None  # a digest of the server's unlabelled data, if the method used it

    __pydantic_config__ = FORBID


def read_config(path: Path) -> Config:
    """Return the config in a file. Paths of tables are relative to its folder."""
    config = parse_config(read_toml(path), str(path))
    if config.federation is None or config.federation.table is None:
        return config
    if not config.federation.table.path:
        raise ConfigError(f"{path}: federation.table.path is missing; add it")
    table = config.federation.table.resolve(path.parent)
    return replace(config, federation=replace(config.federation, table=table))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no config file {path}; check the path, or write one: feduhb train --help shows an example"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not TOML: {error}; correct it: feduhb train --help shows an example"
        ) from None


def parse_config(values: Mapping[str, Any], where: str) -> Config:
    """Return the config that these values describe; ``where`` names their file in errors."""
    found = upgrade(values)
    _check_own_data(found.get("federation"), where)
    return validate(Config, found, where)


def _check_own_data(federation: object, where: str) -> None:
    """Raise ConfigError if [federation] names code of the user's own and settings that do not apply to it."""
    if not isinstance(federation, Mapping) or not is_code(str(federation.get("data", ""))):
        return
    if other := [key for key in federation if key != "data"]:
        raise ConfigError(
            f"{where}: federation.{other[0]} does not apply to data from code, {federation['data']!r}, "
            "which returns the whole federation; remove it"
        )


def upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config file with the fields that earlier versions wrote as text."""
    found, clients = dict(values), values.get("clients", {})
    if block := re.search(r", blocks of (\d+),", str(values.get("made_by", ""))):
        found.setdefault("block", int(block[1]))
    texts = [*map(str, clients.values())] if isinstance(clients, Mapping) else []
    if texts and all(text.startswith("remote") for text in texts):
        found.setdefault("remote", True)
    return found


def validate(kind: type[C], values: Mapping[str, Any], where: str) -> C:
    """Return a dataclass made of the values of a file; raise ConfigError for an unknown key or a wrong type."""
    from pydantic import ValidationError

    try:
        # In JSON, pydantic's strict mode accepts tables and lists, but not "40" or true for a number.
        return make_adapter(kind).validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        errors = error.errors()
        first = next((one for one in errors if one["type"] == UNKNOWN), errors[0])
        place = ".".join(str(part) for part in first["loc"] if part not in HIDDEN)
        if first["type"] == UNKNOWN:
            hint = _suggest(kind, first["loc"])
            place = ".".join(part for part in first["loc"] if isinstance(part, str) and part not in RULES)
            raise ConfigError(f"{where}: there is no setting {place}; {hint}") from None
        if first["type"] == "missing":
            raise ConfigError(f"{where}: {place} is missing; add it") from None
        reason = first["msg"].lower()
        raise ConfigError(f"{where}: {place} = {first['input']!r} is invalid: {reason}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _suggest(kind: type, path: Sequence[str | int]) -> str:
    """Return a hint with the setting most similar to an unknown one, or with all settings of its table."""
    *tables, key = (part for part in path if isinstance(part, str))
    table: Any = kind
    for name in tables:
        table = RULES.get(name) or _find_dataclass(get_type_hints(table)[name])
    known = [each.name for each in fields(table)]
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"it knows {', '.join(known)}"


def _find_dataclass(hint: Any) -> Any:
    """Return the dataclass in a type such as ``tuple[Part, ...]`` or ``Settings | None``."""
    if is_dataclass(hint):
        return hint
    return next((found for part in get_args(hint) if (found := _find_dataclass(part))), None)


def to_toml(config: Config) -> str:
    """Return a config as TOML, without the settings that are None, and without unused ones that were added later."""
    values = asdict(config)
    unused = [name for name in ADDED if values["train"][name] == getattr(TrainSettings(), name)]
    values["train"] = {key: value for key, value in values["train"].items() if key not in unused}
    if config.federation is not None:
        values["federation"] = _list_values(config.federation)
    return tomli_w.dumps(drop_none(values))


def _list_values(federation: FederationSettings) -> dict[str, Any]:
    """Return the values of [federation], without those that do not apply to code or to a table."""
    values = asdict(federation)
    if is_code(federation.data):
        return {"data": federation.data}
    if federation.table is None:
        return values
    table = {
        key: value for key, value in values["table"].items() if value != {} and (key, value) != ("drop", ())
    }
    return {key: value for key, value in values.items() if key not in NOT_OF_TABLES} | {"table": table}


def drop_none(value: Any) -> Any:
    """Return a value for a TOML file, which knows no None: without the keys of tables that are None."""
    if isinstance(value, Mapping):
        return {key: drop_none(v) for key, v in value.items() if v is not None}
    return [drop_none(v) for v in value] if isinstance(value, list | tuple) else value


def find_difference(old: Mapping[str, Any], new: Mapping[str, Any], table: str = "") -> str | None:
    """Return the first difference between two configs in words; None if they are equal."""
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        name = f"{table}.{key}" if table else key
        if {type(a), type(b)} == {dict, type(None)}:
            return f"{'a' if a else 'no'} table [{name}], not {'one' if b else 'none'}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if inner := find_difference(a, b, name):
                return inner
        elif a != b:
            return f"{name} = {a!r}, not {b!r}"
    return None


def identify_run(config: Mapping[str, Any]) -> str:
    """Return the digest of a run's config, by which a history is assigned to its run."""
    return sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
