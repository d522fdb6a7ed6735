from tandem.v1 import coordinator_pb2 as _coordinator_pb2
from tandem.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[VerifyItem]
    def __init__(self, items: _Optional[_Iterable[_Union[VerifyItem, _Mapping]]] = ...) -> None: ...

class VerifyItem(_message.Message):
    __slots__ = ("verify", "cancel", "release")
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    verify: Verify
    cancel: _worker_pb2.Cancel
    release: _worker_pb2.Release
    def __init__(self, verify: _Optional[_Union[Verify, _Mapping]] = ..., cancel: _Optional[_Union[_worker_pb2.Cancel, _Mapping]] = ..., release: _Optional[_Union[_worker_pb2.Release, _Mapping]] = ...) -> None: ...

class Verify(_message.Message):
    __slots__ = ("call", "prefix", "block", "ahead_round")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    AHEAD_ROUND_FIELD_NUMBER: _ClassVar[int]
    call: _worker_pb2.Call
    prefix: _worker_pb2.Prefix
    block: _worker_pb2.Block
    ahead_round: int
    def __init__(self, call: _Optional[_Union[_worker_pb2.Call, _Mapping]] = ..., prefix: _Optional[_Union[_worker_pb2.Prefix, _Mapping]] = ..., block: _Optional[_Union[_worker_pb2.Block, _Mapping]] = ..., ahead_round: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[VerifyReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[VerifyReply, _Mapping]]] = ...) -> None: ...

class VerifyReply(_message.Message):
    __slots__ = ("session_id", "call", "verdict", "refusal", "queue_ns", "compute_ns")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    call: int
    verdict: Verdict
    refusal: _worker_pb2.Refusal
    queue_ns: int
    compute_ns: int
    def __init__(self, session_id: _Optional[bytes] = ..., call: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., refusal: _Optional[_Union[_worker_pb2.Refusal, _Mapping]] = ..., queue_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("num_accepted", "next_token", "logprobs", "num_reused")
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_REUSED_FIELD_NUMBER: _ClassVar[int]
    num_accepted: int
    next_token: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_coordinator_pb2.TokenLogprobs]
    num_reused: int
    def __init__(self, num_accepted: _Optional[int] = ..., next_token: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_coordinator_pb2.TokenLogprobs, _Mapping]]] = ..., num_reused: _Optional[int] = ...) -> None: ...
