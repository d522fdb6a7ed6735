"""Mutated protobuf messages, of the right shape with wrong values or of no shape at all; seeded: they come again."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field

INTS = (0, 1, 2, 3, 7, 16, 17, 23, 24, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 2.5, 100.0, -100.0, 1e-45, 1e-5, 1e30, -1e30, math.inf, -math.inf, math.nan)
STRINGS = ("", "a", "ab", "\0", "é漢🙂", "x" * 300, "user", "scripted", "../../etc/passwd", "\n", "�")
HUGE = 50_000  # entries; still below the limit of a public message
_BITS = {Field.TYPE_UINT32: 32, Field.TYPE_UINT64: 64, Field.TYPE_FIXED64: 64}


def mutate(message: Any, draw: random.Random) -> bytes:
    """Bytes of a copy of `message` with a few wrong fields, and perhaps a few wrong bytes."""
    mutant = type(message)()
    mutant.CopyFrom(message)
    for _ in range(draw.choice((0, 1, 1, 2, 3, 6))):
        _change_field(mutant, draw)
    encoded: bytes = mutant.SerializeToString()
    return _damage(encoded, draw) if draw.random() < 0.35 else encoded


def _change_field(message: Any, draw: random.Random) -> None:
    """One field of `message`, or of a message in it."""
    fields = [field for field in message.DESCRIPTOR.fields if _is_likely(message, field) or draw.random() < 0.1]
    field = draw.choice([*fields, *(field for field in fields if field.message_type is not None for _ in range(3))])
    if draw.random() < 0.1:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(getattr(message, field.name), field, draw)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, draw)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        _change_field(inner, draw)
    else:
        setattr(message, field.name, _value(field, draw))


def _is_likely(message: Any, field: Any) -> bool:
    """Whether a change of `field` keeps the message the kind that it is."""
    return field.containing_oneof is None or message.WhichOneof(field.containing_oneof.name) in (None, field.name)


def _change_map(entries: Any, field: Any, draw: random.Random) -> None:
    key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    for _ in range(draw.choice((1, 3, 1100))):
        entries[_value(key, draw) if draw.random() < 0.7 else draw.getrandbits(10)] = _value(value, draw)


def _change_list(items: Any, field: Any, draw: random.Random) -> None:
    if len(items) and draw.random() < 0.4:
        del items[draw.randrange(len(items)) :]
    elif field.message_type is not None:
        inner = draw.choice(items) if len(items) else items.add()
        if len(items) and draw.random() < 0.3:
            items.add().CopyFrom(inner)
        _change_field(inner, draw)
    elif draw.random() < 0.005:
        items.extend([_value(field, draw)] * (HUGE if field.type != Field.TYPE_STRING else 3_000))
    elif len(items) and draw.random() < 0.5:
        items[draw.randrange(len(items))] = _value(field, draw)
    else:
        items.extend(_value(field, draw) for _ in range(draw.randrange(4)))


def _value(field: Any, draw: random.Random) -> Any:
    if field.type in _BITS:
        return (draw.choice(INTS) if draw.random() < 0.7 else draw.getrandbits(5)) % (1 << _BITS[field.type])
    if field.type == Field.TYPE_ENUM:
        return draw.choice((-1, 0, 1, 2, 3, 4, 99, (1 << 31) - 1))
    if field.type == Field.TYPE_FLOAT:
        return draw.choice(FLOATS)
    if field.type == Field.TYPE_BOOL:
        return draw.random() < 0.5
    if field.type == Field.TYPE_BYTES:
        return draw.randbytes(draw.choice((0, 1, 15, 16, 16, 17, 1000)))
    return draw.choice(STRINGS)


def _damage(encoded: bytes, draw: random.Random) -> bytes:
    """Flips, cuts, repeats or adds bytes."""
    damaged = bytearray(encoded or b"\0")
    kind = draw.randrange(4)
    if kind == 0:
        for _ in range(draw.choice((1, 1, 2, 8))):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del damaged[draw.randrange(len(damaged)) :]
    elif kind == 2:
        start = draw.randrange(len(damaged))
        damaged += damaged[start : start + draw.randrange(40)]
    else:
        place = draw.randrange(len(damaged))
        damaged[place:place] = draw.randbytes(draw.randrange(1, 20))
    return bytes(damaged)
