from tandem.v1 import coordinator_pb2 as _coordinator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RULE_UNSPECIFIED: _ClassVar[Rule]
    RULE_GREEDY: _ClassVar[Rule]
    RULE_REJECTION: _ClassVar[Rule]
    RULE_COUPLED: _ClassVar[Rule]

class RefusalReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_REASON_UNSPECIFIED: _ClassVar[RefusalReason]
    REFUSAL_REASON_MISSING: _ClassVar[RefusalReason]
    REFUSAL_REASON_STALE: _ClassVar[RefusalReason]
    REFUSAL_REASON_FULL: _ClassVar[RefusalReason]
    REFUSAL_REASON_RELEASED: _ClassVar[RefusalReason]
    REFUSAL_REASON_INVALID: _ClassVar[RefusalReason]
    REFUSAL_REASON_ENDED: _ClassVar[RefusalReason]
    REFUSAL_REASON_FAULT: _ClassVar[RefusalReason]
    REFUSAL_REASON_PREEMPTED: _ClassVar[RefusalReason]
RULE_UNSPECIFIED: Rule
RULE_GREEDY: Rule
RULE_REJECTION: Rule
RULE_COUPLED: Rule
REFUSAL_REASON_UNSPECIFIED: RefusalReason
REFUSAL_REASON_MISSING: RefusalReason
REFUSAL_REASON_STALE: RefusalReason
REFUSAL_REASON_FULL: RefusalReason
REFUSAL_REASON_RELEASED: RefusalReason
REFUSAL_REASON_INVALID: RefusalReason
REFUSAL_REASON_ENDED: RefusalReason
REFUSAL_REASON_FAULT: RefusalReason
REFUSAL_REASON_PREEMPTED: RefusalReason

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model", "fingerprint", "context_length", "end_token_ids", "head_width", "num_pieces", "vocabulary_hash", "kv_budget_tokens", "max_block", "incarnation", "tensor_parallel_size", "num_sessions", "kv_used_tokens", "drafters")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HEAD_WIDTH_FIELD_NUMBER: _ClassVar[int]
    NUM_PIECES_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_HASH_FIELD_NUMBER: _ClassVar[int]
    KV_BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    KV_USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    fingerprint: str
    context_length: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    head_width: int
    num_pieces: int
    vocabulary_hash: str
    kv_budget_tokens: int
    max_block: int
    incarnation: str
    tensor_parallel_size: int
    num_sessions: int
    kv_used_tokens: int
    drafters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., context_length: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., head_width: _Optional[int] = ..., num_pieces: _Optional[int] = ..., vocabulary_hash: _Optional[str] = ..., kv_budget_tokens: _Optional[int] = ..., max_block: _Optional[int] = ..., incarnation: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., num_sessions: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., drafters: _Optional[_Iterable[str]] = ...) -> None: ...

class VocabularyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VocabularyResponse(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pieces: _Optional[_Iterable[str]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("session_id", "call", "round", "rule", "seed", "sampling", "min_tokens", "end_token_ids", "budget_ns", "max_length", "salt", "drafter", "reserve_whole")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    RESERVE_WHOLE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    call: int
    round: int
    rule: Rule
    seed: int
    sampling: _coordinator_pb2.SamplingParams
    min_tokens: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    budget_ns: int
    max_length: int
    salt: str
    drafter: str
    reserve_whole: bool
    def __init__(self, session_id: _Optional[bytes] = ..., call: _Optional[int] = ..., round: _Optional[int] = ..., rule: _Optional[_Union[Rule, str]] = ..., seed: _Optional[int] = ..., sampling: _Optional[_Union[_coordinator_pb2.SamplingParams, _Mapping]] = ..., min_tokens: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., budget_ns: _Optional[int] = ..., max_length: _Optional[int] = ..., salt: _Optional[str] = ..., drafter: _Optional[str] = ..., reserve_whole: _Optional[bool] = ...) -> None: ...

class Prefix(_message.Message):
    __slots__ = ("length", "num_committed", "num_prompt_tokens", "digest", "start", "tokens")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    length: int
    num_committed: int
    num_prompt_tokens: int
    digest: int
    start: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, length: _Optional[int] = ..., num_committed: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., digest: _Optional[int] = ..., start: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class SparseDistribution(_message.Message):
    __slots__ = ("ids", "weights")
    IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("tokens", "q", "drafter")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    q: _containers.RepeatedCompositeFieldContainer[SparseDistribution]
    drafter: str
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., q: _Optional[_Iterable[_Union[SparseDistribution, _Mapping]]] = ..., drafter: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("session_id", "call")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    call: int
    def __init__(self, session_id: _Optional[bytes] = ..., call: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "have", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: RefusalReason
    have: int
    message: str
    def __init__(self, reason: _Optional[_Union[RefusalReason, str]] = ..., have: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
