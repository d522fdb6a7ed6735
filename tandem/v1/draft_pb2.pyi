from tandem.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProposeRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ProposeItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ProposeItem, _Mapping]]] = ...) -> None: ...

class ProposeItem(_message.Message):
    __slots__ = ("propose", "cancel", "release")
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    propose: Propose
    cancel: _worker_pb2.Cancel
    release: _worker_pb2.Release
    def __init__(self, propose: _Optional[_Union[Propose, _Mapping]] = ..., cancel: _Optional[_Union[_worker_pb2.Cancel, _Mapping]] = ..., release: _Optional[_Union[_worker_pb2.Release, _Mapping]] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("call", "prefix", "num_tokens")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    call: _worker_pb2.Call
    prefix: _worker_pb2.Prefix
    num_tokens: int
    def __init__(self, call: _Optional[_Union[_worker_pb2.Call, _Mapping]] = ..., prefix: _Optional[_Union[_worker_pb2.Prefix, _Mapping]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[ProposeReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[ProposeReply, _Mapping]]] = ...) -> None: ...

class ProposeReply(_message.Message):
    __slots__ = ("session_id", "call", "drafted", "refusal", "queue_ns", "compute_ns")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    call: int
    drafted: Drafted
    refusal: _worker_pb2.Refusal
    queue_ns: int
    compute_ns: int
    def __init__(self, session_id: _Optional[bytes] = ..., call: _Optional[int] = ..., drafted: _Optional[_Union[Drafted, _Mapping]] = ..., refusal: _Optional[_Union[_worker_pb2.Refusal, _Mapping]] = ..., queue_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ...) -> None: ...

class Drafted(_message.Message):
    __slots__ = ("block", "done", "offset")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    block: _worker_pb2.Block
    done: bool
    offset: int
    def __init__(self, block: _Optional[_Union[_worker_pb2.Block, _Mapping]] = ..., done: _Optional[bool] = ..., offset: _Optional[int] = ...) -> None: ...
