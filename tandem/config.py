"""One frozen tree of settings: a YAML file, environment variables above it, command-line flags above both.

`TANDEM_TARGET__THREADS=2` sets `target.threads`. Unknown keys are refused. Nothing is written back: values that follow
from others are functions, not fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from tandem.addresses import split_address
from tandem.errors import ConfigError

PROMPT_LOOKUP = "prompt-lookup"
Port = int


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _as_addresses(value: Any) -> Any:
    """A text is a JSON list, or addresses with commas between them."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return [part.strip() for part in value.split(",") if part.strip()]


def _checked(address: str) -> str:
    split_address(address)
    return address


Address = Annotated[str, AfterValidator(_checked)]
# NoDecode: an environment variable is text here, too.
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_as_addresses), NoDecode]


class ModelConfig(Section):
    target: str = Field("", description="target model: a Hugging Face folder, a hub name, a GGUF file or package:NAME")
    draft: str = Field("", description=f"draft model, the same kinds, a folder of draft layers, or {PROMPT_LOOKUP}")
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = Field("float32", description="of weights and KV")
    device: str = Field("cpu", description="torch device of both models")
    cuda_graphs: bool = Field(False, description="record and replay steps of few rows; on a CUDA device only")

    @model_validator(mode="after")
    def _graphs_have_a_device(self) -> ModelConfig:
        if self.cuda_graphs and not self.device.startswith("cuda"):
            raise ValueError(f"cuda_graphs: wants a CUDA device, and device is {self.device}")
        return self


class CoordinatorConfig(Section):
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(7070, ge=0, le=65535, description="gRPC port; 0: any free one")
    metrics_port: Port = Field(9090, ge=0, le=65535, description="metrics port; 0: any free one")
    vllm_metric_names: bool = Field(False, description="also count speculation under vLLM's metric names")
    targets: Addresses = Field(("127.0.0.1:7072",), min_length=1, description="target workers, a list of HOST:PORT")
    drafts: Addresses = Field(("127.0.0.1:7071",), description="draft workers, a list of HOST:PORT; empty: none")
    resolve_s: float = Field(3.0, gt=0, description="pause between two look-ups of a host that is a name")
    draft_wait_s: float = Field(2.0, gt=0, description="longest wait for a block that a verify could already use")
    draft_retry_s: float = Field(5.0, gt=0, description="pause before a failing draft worker is tried again")
    target_wait_s: float = Field(30.0, gt=0, description="longest wait for a target worker when all are lost")
    target_retry_s: float = Field(5.0, gt=0, description="pause before a failing target worker is tried again")
    max_running: int = Field(64, ge=1, description="requests that run at once")
    max_waiting: int = Field(256, ge=0, description="requests that may wait for a slot")
    max_waiting_tokens: int = Field(1 << 20, ge=1, description="tokens, prompts and outputs, that may wait for a slot")
    answer_wait_s: float = Field(600.0, gt=0, description="longest wait for one verdict of a target worker that lives")
    memory_wait_s: float = Field(120.0, gt=0, description="longest wait for memory on the target worker")


class WorkerConfig(Section):
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(0, ge=0, le=65535, description="gRPC port; 0: any free one")
    metrics_port: Port = Field(0, ge=0, le=65535, description="metrics port; 0: any free one")
    threads: int = Field(0, ge=0, description="torch threads; 0: all cores (`up` splits them between its services)")
    kv_tokens: int = Field(0, ge=0, description="KV budget in tokens; 0: from free memory")
    block_size: int = Field(16, ge=1, description="tokens per KV block")
    max_step_tokens: int = Field(512, ge=1, description="rows of one forward pass, prompts included")
    lease_s: float = Field(60.0, gt=0, description="idle time after which a session may be dropped")
    stall_s: float = Field(60.0, gt=0, description="time without progress of the step loop that ends liveness")


class DraftConfig(WorkerConfig):
    port: Port = Field(7071, ge=0, le=65535, description="gRPC port; 0: any free one")
    metrics_port: Port = Field(9091, ge=0, le=65535, description="metrics port; 0: any free one")


class TargetConfig(WorkerConfig):
    port: Port = Field(7072, ge=0, le=65535, description="gRPC port; 0: any free one")
    metrics_port: Port = Field(9092, ge=0, le=65535, description="metrics port; 0: any free one")
    tensor_parallel_size: int = Field(1, ge=1, description="ranks that share the model")
    ray_address: str = Field("", description="Ray cluster that holds the ranks; empty: one of our own on this machine")
    ray_wait_s: float = Field(30.0, gt=0, description="longest wait for Ray to have room for all ranks")
    cpus_per_rank: float = Field(1.0, gt=0, description="CPUs that each rank reserves in Ray; fractions are allowed")
    step_timeout_s: float = Field(10.0, gt=0, description="longest step of the ranks before their group is rebuilt")


class RpcConfig(Section):
    keepalive_s: float = Field(10.0, gt=0, description="pause between keep-alive pings on an idle connection")
    keepalive_timeout_s: float = Field(5.0, gt=0, description="silence after a ping that ends the connection")
    drain_s: float = Field(10.0, ge=0, description="time running requests get when a service is asked to stop")
    max_message_bytes: int = Field(64 << 20, ge=1 << 20, description="largest message between services")


class LimitsConfig(Section):
    max_public_message_bytes: int = Field(1 << 20, ge=1 << 10, description="largest request of a client")
    default_max_tokens: int = Field(256, ge=1, description="max_tokens where a request does not say")


class LogConfig(Section):
    format: Literal["text", "json"] = Field("text", description="of log lines, which go to standard error")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severity that is logged")


class Config(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="TANDEM_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    model: ModelConfig = ModelConfig()
    coordinator: CoordinatorConfig = CoordinatorConfig()
    draft: DraftConfig = DraftConfig()
    target: TargetConfig = TargetConfig()
    rpc: RpcConfig = RpcConfig()
    limits: LimitsConfig = LimitsConfig()
    log: LogConfig = LogConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


def load_config(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Config:
    """Reads `path`, then the environment, then `flags` ({"target": {"threads": 2}}), the later above the earlier.

    Raises ConfigError naming the file and the field.
    """
    try:
        tree = yaml.safe_load(path.read_text()) if path else {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(tree or {}, dict):
        raise ConfigError(f"{path}: not a mapping of sections")
    try:
        below = Config(**(tree or {}))
        return Config.model_construct(None, **_with_flags(below, flags)) if flags else below
    except ValidationError as error:
        raise _refusal(error, path or "configuration") from error


def _with_flags(config: Config, flags: Mapping[str, Any]) -> dict[str, Any]:
    sections: dict[str, Section] = {name: getattr(config, name) for name in Config.model_fields}
    for name, values in flags.items():
        section = sections[name]
        try:
            sections[name] = type(section)(**{**section.model_dump(), **values})
        except ValidationError as error:
            raise _refusal(error, "flags", name) from error
    return sections


def _refusal(error: ValidationError, source: object, *section: str) -> ConfigError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in (*section, *first["loc"]))
    return ConfigError(f"{source}: {field}: {first['msg']}")


def cache_folder() -> Path:
    """Where converted models lie: $TANDEM_CACHE, else the XDG cache + /tandem."""
    if explicit := os.environ.get("TANDEM_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
