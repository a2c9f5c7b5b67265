"""Stored records, and how a node treats what a newer release wrote into them.

During an upgrade nodes of two releases read and rewrite the same records. A record therefore only ever
gains fields, each with a default, and a node that rewrites a record keeps the fields it does not know.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of stored records: maps, absent field = default."""


class Document(Record, frozen=True, kw_only=True):
    """A record that is stored by itself, in a field or an entry of its own."""

    newer: dict[str, Any] = {}
    """Fields that a newer release wrote, by name; they are written back as they were."""


D = TypeVar("D", bound=Document)


class Format:
    """A way to write records: msgpack, or JSON where people read along."""

    def __init__(self, module: ModuleType) -> None:
        self.encoder = module.Encoder()
        self.decoder = module.Decoder
        self._plain = module.Decoder()

    def encode(self, value: object) -> bytes:
        """Bytes of a document or of any other value of plain types and records."""
        raw: bytes = self.encoder.encode(value)
        if isinstance(value, Document) and value.newer:
            fields = self.fields(raw)
            del fields["newer"]
            raw = self.encoder.encode({**value.newer, **fields})
        return raw

    def fields(self, raw: bytes) -> dict[str, Any]:
        """What stands in a record, whatever its type."""
        found: dict[str, Any] = self._plain.decode(raw)
        return found


class Reader(Generic[D]):
    """Reads documents of one type."""

    def __init__(self, kind: type[D], form: Format) -> None:
        self._decode = form.decoder(kind).decode
        self._format = form
        self._known = frozenset(kind.__struct_encode_fields__)

    def __call__(self, raw: bytes) -> D:
        """The document in ``raw``. Raises msgspec.DecodeError."""
        document: D = self._decode(raw)
        # Fields with their default are never written, so a document of this release has this length.
        if len(self._format.encoder.encode(document)) == len(raw):
            return document
        newer = {name: value for name, value in self._format.fields(raw).items() if name not in self._known}
        return replace(document, newer=newer) if newer else document


MSGPACK: Final = Format(msgspec.msgpack)
JSON: Final = Format(msgspec.json)
