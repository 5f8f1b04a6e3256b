"""Settings of the laptop's command: options, environment, a TOML file, defaults, in this order."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from draftwire_edge.controller import GammaPolicy
from draftwire_protocol.commit import check_limits
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import Mode
from draftwire_protocol.params import SamplingParams

ENV_PREFIX = "DRAFTWIRE_"
#: Where the environment names another file.
CONFIG_VARIABLE = "DRAFTWIRE_CONFIG"
Origin = Literal["option", "environment", "file", "default"]


def config_file() -> Path:
    """The TOML file: DRAFTWIRE_CONFIG, else the platform's folder."""
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else Path(platformdirs.user_config_dir("draftwire")) / "config.toml"


class EdgeSettings(BaseSettings):
    """Everything the laptop's side can be told; immutable once built."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    cloud: str = "127.0.0.1:50051"
    pair: str = "qwen2.5-coder"
    draft_model: Path | None = None
    drafter: Literal["model", "ngram"] = "model"
    gamma: int | Literal["auto"] = "auto"
    mode: Literal["auto", "lockstep", "cloud"] = "auto"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    context_length: int = 4096
    threads: int | None = None
    wait_s: float = 0.0

    @field_validator("cloud")
    @classmethod
    def _is_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{value!r} is not HOST:PORT, e.g. 127.0.0.1:50051")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the library's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Options beat the environment, the environment beats the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())

    @property
    def policy(self) -> GammaPolicy:
        """What was said about gamma and mode."""
        gamma = None if self.gamma == "auto" else self.gamma
        mode = None if self.mode == "auto" else Mode(self.mode)
        return GammaPolicy(gamma, mode)

    def sampling(self, seed: int) -> SamplingParams:
        """Sampling parameters with this seed."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p, seed)


def load_settings(**options: Any) -> EdgeSettings:
    """Settings with these options; None means that the option was not given.

    Raises:
        UserInputError: naming the option, the variable or the file's key that is wrong.
    """
    given = {name: value for name, value in options.items() if value is not None}
    _read_file()
    try:
        settings = EdgeSettings(**given)
    except SettingsError as error:
        raise UserInputError(
            "DRAFTWIRE_STOP", f"it is not a JSON list ({error})", """Write e.g. '["stop here"]'"""
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        where = _name_of(name, origin_of(name, given))
        raise UserInputError(where, first["msg"], "See `draftwire generate --help`") from error
    # Built once here so that a wrong value is refused before anything is loaded.
    _ = settings.policy, settings.sampling(settings.seed or 0)
    check_limits(settings.stop, settings.max_tokens)
    return settings


def origin_of(name: str, given: dict[str, Any] | None = None) -> Origin:
    """Where a setting's value comes from."""
    if given and name in given:
        return "option"
    # As pydantic-settings reads it: in any case.
    if ENV_PREFIX + name.upper() in {variable.upper() for variable in os.environ}:
        return "environment"
    return "file" if name in _read_file() else "default"


def _read_file() -> dict[str, Any]:
    """What the TOML file says; empty when there is none.

    Raises:
        UserInputError: it is not TOML.
    """
    try:
        return TomlConfigSettingsSource(EdgeSettings, config_file())()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserInputError(
            str(config_file()), f"it is not valid TOML ({error})", "Correct or remove it"
        ) from error


def _name_of(name: str, origin: Origin) -> str:
    """A setting as the user wrote it."""
    if origin == "environment":
        return ENV_PREFIX + name.upper()
    if origin == "file":
        return f"{name} in {config_file()}"
    return "--" + name.replace("_", "-")
