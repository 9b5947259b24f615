"""Documents are checked with the readers that files have, and say whether they are sound."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from flyball.broker.models import texts
from flyball.broker.models.kinds import READERS, certify, read_document
from flyball.broker.models.texts import draft_of
from flyball.control.model_file import model_to_json
from flyball.control.plant import Check, Diagnostics, Plant
from flyball.errors import InvalidArgument
from tests.broker.models import documents


def plant(*reasons: str) -> dict[str, Any]:
    tested = Diagnostics(tuple(Check("whiteness", 0.5, 0.1, reason) for reason in reasons or (None,)))
    return model_to_json([Plant(0.26, 59.73, loop="orders", diagnostics=tested)])


@pytest.mark.parametrize(
    ("kind", "document", "summary", "is_sound"),
    [
        ("capacity", documents.capacity, "capacity 1, producer weight 0.01, consumer weight 0.02", None),
        ("service-times", documents.service_times, "p50 2.5 ms, p99 9.5 ms of 1000 messages", None),
        ("profile", documents.profile, "1 classes of 1 kinds of requests, in ms", None),
        ("design", documents.design, "pi law of orders: kp 0.002, ki 0.006", True),
        ("plant", plant, "orders: a 0.26, b 59.7, delay 0", True),
    ],
)
def test_document_is_read_and_described(
    kind: str, document: Callable[[], dict[str, Any]], summary: str, is_sound: bool | None
) -> None:
    found = read_document(kind, document())
    assert (found.summary, found.is_sound, found.objections) == (summary, is_sound, ())


def test_every_kind_refuses_what_is_not_one() -> None:
    strange: list[Any] = [{}, {"kind": "capacity"}, {"version": 1, "kind": "plant", "plants": [{"a": "x"}]}]
    strange += [{"version": 1, "kind": kind} for kind in READERS]
    strange += [{"version": 1, "kind": "capacity", "targets": [{"producer_weight": [], "consumer_weight": {}}]}]
    for kind in READERS:
        for document in strange:
            with pytest.raises(InvalidArgument, match=f"invalid {kind} model: "):
                read_document(kind, document)
    with pytest.raises(InvalidArgument, match="unknown kind of model 'colour': use plant, design"):
        read_document("colour", {})


@pytest.mark.parametrize(
    "quantiles", [{}, {"0.5": -1}, {"2": 1.0}, {"0.5": 3.0, "0.9": 2.0}, {"x": 1.0}, {"0.5": True}, {"0.5": "1"}]
)
def test_service_times_must_be_quantiles(quantiles: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        read_document("service-times", {**documents.service_times(), "quantiles_ms": quantiles})


def test_design_is_as_sound_as_its_certificate() -> None:
    unsound = read_document("design", documents.design(is_sound=False))
    assert (unsound.is_sound, "unstable" in unsound.objections[0]) == (False, True)
    without = read_document("design", {**documents.design(), "certificate": None})
    assert (without.is_sound, without.objections) == (False, ("the design has no certificate",))


def test_certificate_of_other_gains_does_not_count() -> None:
    design = documents.design()
    design["law"]["ki"] = 0.5
    found = read_document("design", design)
    assert (found.is_sound, "its certificate is of other gains" in found.objections[0]) == (False, True)


def test_plant_that_failed_a_test_is_not_sound() -> None:
    found = read_document("plant", plant("its residuals are not white"))
    assert (found.is_sound, found.objections) == (False, ("its residuals are not white",))
    with pytest.raises(InvalidArgument, match="no plant was found in it"):
        read_document("plant", model_to_json([]))


def test_certificate_and_document_must_both_be_sound() -> None:
    capacity, unsound = (
        read_document("capacity", documents.capacity()),
        read_document("design", documents.design(is_sound=False)),
    )
    assert certify(capacity, {"is_sound": True}).is_sound is True
    refused = certify(capacity, {"is_sound": False, "reasons": ["it drifts"]})
    assert (refused.is_sound, refused.objections) == (False, ("it drifts",))
    assert certify(unsound, {"is_sound": True}).is_sound is False
    for certificate in ({}, {"is_sound": "yes"}):
        with pytest.raises(InvalidArgument, match='"is_sound" must be true or false'):
            certify(capacity, certificate)


def test_draft_is_the_same_for_the_same_document_and_evidence() -> None:
    first = documents.draft()
    reordered = dict(reversed(documents.capacity().items()))
    assert documents.draft(document=reordered).digest == first.digest
    assert documents.draft(source="b").digest != first.digest
    assert json.loads(first.document) == documents.capacity()


def test_oversized_and_deep_documents_are_refused() -> None:
    large = {**documents.capacity(), "note": "x" * texts.MAX_DOCUMENT_BYTES}
    with pytest.raises(InvalidArgument, match=r"document of 2622.. bytes exceeds the maximum of 262144"):
        draft_of("capacity", large, {}, None)
    with pytest.raises(InvalidArgument, match=r"evidence of .* exceeds the maximum of 32768"):
        draft_of("capacity", documents.capacity(), {"note": "x" * 40_000}, None)
    deep: Any = 1
    for _ in range(texts.MAX_DEPTH):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="more than 32 levels"):
        draft_of("capacity", {**documents.capacity(), "deep": deep}, {}, None)
    for _ in range(100_000):
        deep = [deep]
    for strange in (deep, float("nan"), "\ud800"):
        with pytest.raises(InvalidArgument, match="invalid document"):
            draft_of("capacity", {**documents.capacity(), "strange": strange}, {}, None)
