"""Documents as text: a model is kept as its published JSON text, so that its memory equals its size.

Pure. Parsed, a document of small objects would take thirty times its size in the memory of every node.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flyball.broker.models.history import Draft
from flyball.broker.models.kinds import certify, read_document
from flyball.errors import InvalidArgument

MAX_DOCUMENT_BYTES = 256 * 1024
# Limit of the evidence, and of the certificate.
MAX_EVIDENCE_BYTES = 32 * 1024
MAX_OUTCOME_BYTES = 4096
# Maximum nesting of lists and objects.
MAX_DEPTH = 32
MAX_REASON_LENGTH = 500
# Maximum number of objections kept of a certificate, and characters of each.
MAX_OBJECTIONS = 20
MAX_OBJECTION_LENGTH = 500


def draft_of(
    kind: str, document: Mapping[str, Any], evidence: Mapping[str, Any], certificate: Mapping[str, Any] | None
) -> Draft:
    """Validate a published document, and return it as a draft. Raises InvalidArgument."""
    text = json_text("document", document, MAX_DOCUMENT_BYTES)
    facts = certify(read_document(kind, document), certificate)
    return Draft(
        digest=_digest(document, evidence),
        document=text,
        evidence=json_text("evidence", evidence, MAX_EVIDENCE_BYTES),
        certificate=None if certificate is None else json_text("certificate", certificate, MAX_EVIDENCE_BYTES),
        summary=facts.summary[:MAX_REASON_LENGTH],
        is_sound=facts.is_sound,
        objections=tuple(reason[:MAX_OBJECTION_LENGTH] for reason in facts.objections[:MAX_OBJECTIONS]),
    )


def json_text(what: str, value: Mapping[str, Any], max_bytes: int) -> str:
    """Return a JSON object as text. Raises InvalidArgument if it is too large or cannot be encoded."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size_bytes = len(text.encode())
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidArgument(f"invalid {what}: {error}") from None
    if size_bytes > max_bytes:
        raise InvalidArgument(f"{what} of {size_bytes} bytes exceeds the maximum of {max_bytes}")
    _check_depth(what, value)
    return text


def _check_depth(what: str, value: Any) -> None:
    """Raise InvalidArgument for a document nested too deep for recursive functions."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [
            one.values() if isinstance(one, Mapping) else one for one in level if isinstance(one, Mapping | list)
        ]
        level = [part for parts in inner for part in parts]
        if not level:
            return
    raise InvalidArgument(f"{what} has more than {MAX_DEPTH} levels of lists and objects in each other")


def checked_reason(reason: str) -> str:
    """Return a reason given by a user, in one line. Raises InvalidArgument if it is too long."""
    text = " ".join(reason.split())
    if len(text) > MAX_REASON_LENGTH:
        raise InvalidArgument(f"reason of {len(text)} characters exceeds the maximum of {MAX_REASON_LENGTH}")
    return text


def _digest(document: Mapping[str, Any], evidence: Mapping[str, Any]) -> str:
    """Return the identity of a version: independent of the order of fields."""
    text = json.dumps([document, evidence], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
