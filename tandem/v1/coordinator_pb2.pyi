from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acceptance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_UNSPECIFIED: _ClassVar[Acceptance]
    ACCEPTANCE_REJECTION: _ClassVar[Acceptance]
    ACCEPTANCE_COUPLED: _ClassVar[Acceptance]

class Lookahead(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOOKAHEAD_UNSPECIFIED: _ClassVar[Lookahead]
    LOOKAHEAD_OFF: _ClassVar[Lookahead]
    LOOKAHEAD_CHAIN: _ClassVar[Lookahead]
    LOOKAHEAD_BRANCHES: _ClassVar[Lookahead]

class Origin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORIGIN_UNSPECIFIED: _ClassVar[Origin]
    ORIGIN_DRAFT: _ClassVar[Origin]
    ORIGIN_CORRECTION: _ClassVar[Origin]
    ORIGIN_BONUS: _ClassVar[Origin]
    ORIGIN_PLAIN: _ClassVar[Origin]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_END_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_MAX_TOKENS: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT_FULL: _ClassVar[FinishReason]
ACCEPTANCE_UNSPECIFIED: Acceptance
ACCEPTANCE_REJECTION: Acceptance
ACCEPTANCE_COUPLED: Acceptance
LOOKAHEAD_UNSPECIFIED: Lookahead
LOOKAHEAD_OFF: Lookahead
LOOKAHEAD_CHAIN: Lookahead
LOOKAHEAD_BRANCHES: Lookahead
ORIGIN_UNSPECIFIED: Origin
ORIGIN_DRAFT: Origin
ORIGIN_CORRECTION: Origin
ORIGIN_BONUS: Origin
ORIGIN_PLAIN: Origin
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_END_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_MAX_TOKENS: FinishReason
FINISH_REASON_CONTEXT_FULL: FinishReason

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "text", "token_ids", "chat", "sampling", "stopping", "speculation", "prior_output", "target_fingerprint", "cache_salt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    PRIOR_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    text: str
    token_ids: TokenIds
    chat: Chat
    sampling: SamplingParams
    stopping: StoppingParams
    speculation: SpeculationParams
    prior_output: TokenIds
    target_fingerprint: str
    cache_salt: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[StoppingParams, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationParams, _Mapping]] = ..., prior_output: _Optional[_Union[TokenIds, _Mapping]] = ..., target_fingerprint: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ...) -> None: ...

class StoppingParams(_message.Message):
    __slots__ = ("max_tokens", "stop", "stop_token_ids", "ignore_eos", "min_tokens")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_tokens: int
    def __init__(self, max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., min_tokens: _Optional[int] = ...) -> None: ...

class SpeculationParams(_message.Message):
    __slots__ = ("num_tokens", "acceptance", "lookahead")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    acceptance: Acceptance
    lookahead: Lookahead
    def __init__(self, num_tokens: _Optional[int] = ..., acceptance: _Optional[_Union[Acceptance, str]] = ..., lookahead: _Optional[_Union[Lookahead, str]] = ...) -> None: ...

class GenerateChunk(_message.Message):
    __slots__ = ("request_id", "offset", "token_ids", "text", "logprobs", "origins", "finish", "seed", "target_fingerprint", "prompt_token_ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    origins: _containers.RepeatedScalarFieldContainer[Origin]
    finish: Finish
    seed: int
    target_fingerprint: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., origins: _Optional[_Iterable[_Union[Origin, str]]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., seed: _Optional[int] = ..., target_fingerprint: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "stop", "stop_token_id", "num_prompt_tokens", "num_output_tokens", "speculation", "timing", "num_reused_prompt_tokens")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    NUM_REUSED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    stop: str
    stop_token_id: int
    num_prompt_tokens: int
    num_output_tokens: int
    speculation: SpeculationStats
    timing: Timing
    num_reused_prompt_tokens: int
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., stop: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., speculation: _Optional[_Union[SpeculationStats, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., num_reused_prompt_tokens: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("num_verifies", "num_draft_tokens", "num_accepted_tokens", "num_accepted_per_position", "num_rollbacks", "num_ahead_hits", "num_wasted_draft_tokens", "num_fallbacks")
    class NumFallbacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_VERIFIES_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_WASTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    num_verifies: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    num_rollbacks: int
    num_ahead_hits: int
    num_wasted_draft_tokens: int
    num_fallbacks: _containers.ScalarMap[str, int]
    def __init__(self, num_verifies: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_accepted_per_position: _Optional[_Iterable[int]] = ..., num_rollbacks: _Optional[int] = ..., num_ahead_hits: _Optional[int] = ..., num_wasted_draft_tokens: _Optional[int] = ..., num_fallbacks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_ns", "first_token_ns", "total_ns", "verify_ns", "draft_wait_ns", "prompt_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    first_token_ns: int
    total_ns: int
    verify_ns: int
    draft_wait_ns: int
    prompt_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., first_token_ns: _Optional[int] = ..., total_ns: _Optional[int] = ..., verify_ns: _Optional[int] = ..., draft_wait_ns: _Optional[int] = ..., prompt_ns: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("model", "version", "workers", "num_running", "num_waiting")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    num_running: int
    num_waiting: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("role", "address", "ready", "model", "fingerprint", "tensor_parallel_size", "num_sessions", "kv_used", "reason")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    KV_USED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    role: str
    address: str
    ready: bool
    model: str
    fingerprint: str
    tensor_parallel_size: int
    num_sessions: int
    kv_used: float
    reason: str
    def __init__(self, role: _Optional[str] = ..., address: _Optional[str] = ..., ready: _Optional[bool] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., num_sessions: _Optional[int] = ..., kv_used: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...
