"""Implementation of `flyball model`: calls the node's API and prints the answer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, fail
from flyball.client.api import Api
from flyball.client.http import path_of

# Characters of a reason in a table.
SHOWN_REASON = 60


def list_models(api: Api, query: Mapping[str, str], is_all: bool, out: Output) -> int:
    """List the versions in use; with `is_all`, or if a state is requested, all of them."""
    found = api.get("flyball", "models", **query)
    if not is_all and "state" not in query:
        in_use = {(row["kind"], row["scope"]) for row in found if row["state"] in ("in_force", "shadow")}
        newest: dict[tuple[str, str], int] = {}
        for row in found:
            place = row["kind"], row["scope"]
            newest[place] = max(newest.get(place, 0), row["version"])
        # A model without a version in use is represented by its newest one.
        found = [
            row
            for row in found
            if row["state"] in ("in_force", "shadow")
            or ((row["kind"], row["scope"]) not in in_use and row["version"] == newest[row["kind"], row["scope"]])
        ]
    if out.is_json:
        for row in found:
            out.json(row)
    elif found:
        headings = ("kind", "scope", "version", "state", "since", "sound", "samples", "model")
        out.table(headings, [_row(row) for row in found])
    return DONE


def _row(row: Mapping[str, Any]) -> tuple[object, ...]:
    samples = row["evidence_brief"]["samples"]
    return (
        row["kind"],
        row["scope"],
        row["version"],
        _state(row),
        _moment(row["since"]),
        _soundness(row),
        "-" if samples is None else samples,
        row["summary"],
    )


def _state(row: Mapping[str, Any]) -> str:
    pinned = ", pinned" if row["is_pinned"] else ""
    return f"{row['state'].replace('_', ' ')}{pinned}"


def _soundness(row: Mapping[str, Any]) -> str:
    word = {True: "yes", False: "no", None: "-"}[row["is_sound"]]
    return f"{word}, forced" if row["is_forced"] else word


def _moment(unix_s: float | None) -> str:
    return "-" if unix_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def show_model(api: Api, kind: str, scope: str, version: int | None, out: Output) -> int:
    """Show a model with its versions and log of changes, or one version with its evidence."""
    place = ("flyball", "models", kind, scope)
    if version is not None:
        found = api.get(*place, "versions", str(version))
        if out.is_json:
            out.json(found)
        else:
            _show_version(found, out)
        return DONE
    model, versions = api.get(*place), api.get(*place, "versions")
    if out.is_json:
        out.json({**model, "versions": versions})
        return DONE
    out.table(
        ("version", "state", "since", "in force from", "until", "sound", "why"),
        [
            (
                row["version"],
                _state(row),
                _moment(row["since"]),
                _moment(row["valid_from"]),
                _moment(row["valid_until"]),
                _soundness(row),
                _short(row["reason"] or "; ".join(row["objections"])),
            )
            for row in versions
        ],
    )
    for title, name in (("in force", "in_force"), ("in shadow", "shadow")):
        if model[name] is not None:
            out.show(f"\n{title}:", None)
            _show_version(model[name], out)
    if model["in_force"] is None:
        out.show("\nno version is in force: consumers use their defaults", None)
    out.show("\nchanges, newest first:", None)
    out.table(
        ("at", "by", "version", "from", "to", "reason"),
        [
            (
                _moment(entry["at"]),
                entry["by"],
                entry["version"],
                (entry["before"] or "-").replace("_", " "),
                entry["after"].replace("_", " "),
                _short(entry["reason"]),
            )
            for entry in model["log"]
        ],
    )
    return DONE


def _show_version(version: Mapping[str, Any], out: Output) -> None:
    brief = version["evidence_brief"]
    tests = f"{brief['tests_passed']} of {brief['tests']} passed" if brief["tests"] else "-"
    rows = [
        ("version", f"{version['version']}, {_state(version)}"),
        ("model", version["summary"]),
        ("published", f"{_moment(version['published_at'])} by {version['published_by']}"),
        ("traces", ", ".join(brief["traces"]) or brief["source"] or "-"),
        ("samples", "-" if brief["samples"] is None else str(brief["samples"])),
        ("tests", tests),
        ("sound", _soundness(version)),
        *(("objection", objection) for objection in version["objections"]),
    ]
    out.table(("", ""), rows)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_REASON else text[: SHOWN_REASON - 1] + "…"


def diff_versions(api: Api, kind: str, scope: str, chosen: Mapping[str, int], out: Output) -> int:
    found = api.get("flyball", "models", kind, scope, "diff", **chosen)
    if out.is_json:
        out.json(found)
        return DONE
    earlier, later = found["from"], found["to"]
    out.show(f"version {earlier['version']} ({_state(earlier)}) → version {later['version']} ({_state(later)})", None)
    rows = [
        (one["path"], _value(one["before"]), _value(one["after"]), _percent(one["change_percent"]))
        for one in found["differences"]
    ]
    if rows:
        out.table(("parameter", "before", "after", "change"), rows)
    else:
        out.show("the documents are the same", None)
    return DONE


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _percent(change: float | None) -> str:
    return "" if change is None else f"{change:+.1f} %"


def import_file(api: Api, kind: str, scope: str, file: str, fields: Mapping[str, Any], out: Output) -> int:
    document = read_json(file)
    body = {"document": document, "evidence": {"source": Path(file).name}, **fields}
    result = api.post("flyball", "models", kind, scope, "versions", document=body)
    version = result["model"]
    if result["is_new"]:
        text = f"published version {result['version']} of {kind} {shown(scope)}: {_state(version)}"
    else:
        text = (
            f"version {result['version']} of {kind} {shown(scope)} has this document already: it is"
            f" {_state(version)}; see `flyball model activate`"
        )
    out.show(text, result)
    return DONE


def read_json(file: str) -> Any:
    """Return the JSON of a file; - is standard input."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}.")
    except (ValueError, RecursionError):
        fail(f"{file} is not valid JSON: give the file that `flyball pipeline` or `flyball control design` wrote.")


def export_file(api: Api, kind: str, scope: str, version: int | None, file: str | None, out: Output) -> int:
    place = ("flyball", "models", kind, scope)
    if version is None:
        present = api.get(*place)["in_force"]
        if present is None:
            fail(f"no version of {kind} {shown(scope)} is in force: name one.")
        version = present["version"]
    document = api.get(*place, "versions", str(version), "document")
    if file is None:
        text = json.dumps(document, ensure_ascii=False, indent=None if out.is_json else 2)
        out.show(text, document)
        return DONE
    try:
        Path(file).write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}.")
    out.show(f"wrote version {version} to {file}", {"version": version, "file": file})
    return DONE


def change_state(api: Api, kind: str, scope: str, version: int, body: Mapping[str, Any], out: Output) -> int:
    result = api.put(
        "flyball", "models", kind, scope, "versions", str(version), "state", document=dict(body)
    ).document
    out.show(f"version {version} of {kind} {shown(scope)} is {_state(result['model'])}", result)
    return DONE


def pin_version(api: Api, kind: str, scope: str, body: Mapping[str, Any], out: Output) -> int:
    result = api.put("flyball", "models", kind, scope, "pin", document=dict(body)).document
    out.show(f"version {result['version']} of {kind} {shown(scope)} is {_state(result['model'])}", result)
    return DONE


def unpin_version(api: Api, kind: str, scope: str, reason: str, out: Output) -> int:
    result = api.ask("DELETE", path_of("flyball", "models", kind, scope, "pin"), {"reason": reason}).document
    out.show(f"version {result['version']} of {kind} {shown(scope)} is no longer pinned", result)
    return DONE


def roll_back(api: Api, kind: str, scope: str, body: Mapping[str, Any], out: Output) -> int:
    result = api.post("flyball", "models", kind, scope, "rollback", document=dict(body))
    number = result["version"]
    after = (
        "no version is in force: consumers use their defaults" if number is None else f"version {number} is in force"
    )
    out.show(f"rolled back {kind} {shown(scope)}: {after}", result)
    return DONE


def delete_model(api: Api, kind: str, scope: str, reason: str, out: Output) -> int:
    api.ask("DELETE", path_of("flyball", "models", kind, scope), {"reason": reason})
    out.show(f"deleted {kind} {shown(scope)}", {"kind": kind, "scope": scope, "deleted": True})
    return DONE
