"""Config files: TOML in, validated by pydantic, errors in one line; and TOML out."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from feduhb.data.backdoor import Backdoor
from feduhb.data.canaries import Canaries
from feduhb.errors import ConfigError
from feduhb.experiment.settings import Config, FederationSettings, TrainSettings, UnlearnSettings
from feduhb.stopping import DynamicStop

C = TypeVar("C")
TABLES: dict[str, type] = {
    "": Config,
    "federation": FederationSettings,
    "federation.backdoor": Backdoor,
    "federation.canaries": Canaries,
    "train": TrainSettings,
    "unlearn": UnlearnSettings,
    "unlearn.stop": DynamicStop,
}


def read_config(path: Path) -> Config:
    """Read a config file that a person wrote."""
    return parse_config(read_toml(path), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}; write one, docs/config.md shows how") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def parse_config(values: Mapping[str, Any], where: str) -> Config:
    """Validate a config."""
    return validated(Config, values, where, TABLES)


def validated(kind: type[C], values: Mapping[str, Any], where: str, tables: Mapping[str, type]) -> C:
    """Validate what a file says: unknown names get the nearest known one, wrong types are told with their place.

    Args:
        kind: the dataclass to make.
        where: the file, for errors.
        tables: the dataclass of every table, "" that of the whole.
    """
    from pydantic import TypeAdapter, ValidationError

    _refuse_unknown(values, where, tables)
    try:
        # Read as JSON, pydantic's strict mode takes tables and lists, yet no "40" or true for a number.
        return TypeAdapter(kind).validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in {"bool", "literal['float16']"})
        if first["type"] == "missing":
            raise ConfigError(f"{where}: {place} is missing; add it") from None
        raise ConfigError(
            f"{where}: {place} = {first['input']!r} will not do: {first['msg'].lower()}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _refuse_unknown(
    values: Mapping[str, Any], where: str, tables: Mapping[str, type], table: str = ""
) -> None:
    known = [f.name for f in fields(tables[table])] if is_dataclass(tables[table]) else []
    for key, value in values.items():
        name = f"{table}.{key}" if table else key
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it knows {', '.join(known)}"
            raise ConfigError(f"{where}: there is no setting {name}; {hint}")
        for inner in value if isinstance(value, list) else [value]:
            if name in tables and isinstance(inner, Mapping):
                _refuse_unknown(inner, where, tables, name)


def to_toml(config: Config) -> str:
    """Write a config as TOML, settings that are None left out."""
    return tomli_w.dumps(_plain(asdict(config)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
