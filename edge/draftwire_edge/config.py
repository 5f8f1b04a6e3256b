"""Settings of the laptop's command: options, environment, a TOML file, defaults, in this order."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from draftwire_edge.controller import GammaPolicy, Prefer
from draftwire_protocol.commit import check_limits, check_text
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.grammar import check_grammar
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import Mode, Scheme, check_top_logprobs
from draftwire_protocol.params import SamplingParams

ENV_PREFIX = "DRAFTWIRE_"
#: Where the environment names another file.
CONFIG_VARIABLE = "DRAFTWIRE_CONFIG"
#: How variables that are not plain words are written.
_JSON_EXAMPLES = {
    "stop": """Write e.g. '["stop here"]'""",
    "bad_words": """Write e.g. '["very"]'""",
    "logit_bias": """Write e.g. '{"198": -5}'""",
}
#: Options that do not have their setting's name.
_OPTION_OF = {"bad_words": "--bad-word", "wait_s": "--wait"}
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
    drafter: Literal["auto", "model", "ngram"] = "auto"
    cross_vocab: bool = False
    gamma: int | Literal["auto"] = "auto"
    mode: Literal["auto", "lockstep", "pipelined", "duplex", "cloud"] = "auto"
    prefer: Prefer = Prefer.LATENCY
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}  # pydantic copies it
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    scheme: Scheme = Scheme.COUPLED
    #: Where it pays is measured in docs/exactness.md.
    draft_sharpness: float = Field(1.2, gt=0.0, le=10.0)
    logprobs: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    context_length: int = 4096
    threads: int | None = None
    wait_s: float = 0.0
    remember: bool = True

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
    def grammar(self) -> GrammarSpec | None:
        """What the text must match."""
        if self.json_schema is not None:
            return GrammarSpec("json_schema", self.json_schema)
        return None if self.regex is None else GrammarSpec("regex", self.regex)

    @property
    def policy(self) -> GammaPolicy:
        """What was said about gamma and mode."""
        gamma = None if self.gamma == "auto" else self.gamma
        mode = None if self.mode == "auto" else Mode(self.mode)
        return GammaPolicy(gamma, mode, self.prefer)

    def sampling(self, seed: int) -> SamplingParams:
        """Sampling parameters with this seed; bad words need a tokenizer and come later."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=seed,
            typical_p=self.typical_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            min_tokens=self.min_tokens,
        )


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
        name = str(error).partition('"')[2].partition('"')[0]
        fix = _JSON_EXAMPLES.get(name, "See `draftwire generate --help`")
        raise UserInputError(ENV_PREFIX + name.upper(), f"it is not JSON ({error})", fix) from error
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        where = _name_of(name, origin_of(name, given))
        raise UserInputError(where, first["msg"], "See `draftwire generate --help`") from error
    # Built once here so that a wrong value is refused before anything is loaded.
    _ = settings.policy, settings.sampling(settings.seed or 0)
    check_limits(settings.stop, settings.max_tokens)
    _check_together(settings)
    return settings


def _check_together(settings: EdgeSettings) -> None:
    """Refuse what makes no sense together, or beyond what the wire carries."""
    if settings.json_schema is not None and settings.regex is not None:
        raise UserInputError("--regex", "there is a --json-schema already", "Give one of them")
    if (grammar := settings.grammar) is not None:
        check_grammar(grammar)
    if settings.min_tokens > settings.max_tokens:
        problem = f"{settings.min_tokens} is more than --max-tokens {settings.max_tokens}"
        raise UserInputError("--min-tokens", problem, "Ask for fewer, or allow more")
    check_top_logprobs(settings.logprobs)
    if settings.mode in {"pipelined", "duplex"} and settings.scheme is not Scheme.COUPLED:
        problem = f"{settings.mode} does not go with --scheme {settings.scheme.value}"
        raise UserInputError("--mode", problem, "Use --scheme coupled, or --mode lockstep")
    if any(not word for word in settings.bad_words):
        raise UserInputError("--bad-word", "it is empty", "Leave it out, or give the text to avoid")
    for word in settings.bad_words:
        check_text("--bad-word", word)


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
    return _OPTION_OF.get(name, "--" + name.replace("_", "-"))
