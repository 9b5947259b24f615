"""`flyball model`: the versions of models in the registry of a node or domain."""

from __future__ import annotations

import enum
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, WRONG_USE, AsJson, Url, fail, run
from flyball.client.api import DEFAULT_URL, Api
from flyball.client.http import path_of

app = typer.Typer(
    name="model", help="List, compare, publish and choose versions of models in the registry.", no_args_is_help=True
)


class Kind(enum.StrEnum):
    """Kinds of models."""

    PLANT = "plant"
    DESIGN = "design"
    PROFILE = "profile"
    CAPACITY = "capacity"
    SERVICE_TIMES = "service-times"


class State(enum.StrEnum):
    """States of versions."""

    CANDIDATE = "candidate"
    SHADOW = "shadow"
    IN_FORCE = "in_force"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    QUARANTINED = "quarantined"


class FirstState(enum.StrEnum):
    """States that a version may be published in."""

    CANDIDATE = "candidate"
    SHADOW = "shadow"
    IN_FORCE = "in_force"


KindName = Annotated[Kind, typer.Argument(metavar="KIND", help="plant, design, profile, capacity or service-times.")]
ScopeName = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE", help="domain, node:NAME, queue:NAME, queue:VHOST/NAME, application:NAME or loop:NAME."
    ),
]
VersionNumber = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Number of the version.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason for the log of changes.")]
Force = Annotated[
    bool, typer.Option("--force", help="Overrule that the version is unsound, rejected or quarantined.")
]

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
        # A model without a version in use is shown by its newest one.
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
    document = _read(file)
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


def _read(file: str) -> Any:
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


# Commands


@app.command("list")
def list_(
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only models of this kind.")] = None,
    scope: Annotated[
        str | None, typer.Option("--scope", metavar="SCOPE", help="Only the models for this scope.")
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only versions in this state.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All kept versions, not only those in use.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the models in force and in shadow.

    Example: flyball model list --kind capacity
    """
    query = {"kind": kind and kind.value, "scope": scope, "state": state and state.value}
    chosen = {name: value for name, value in query.items() if value is not None}
    run(url, as_json, lambda api, out: list_models(api, chosen, is_all, out))


@app.command()
def show(
    kind: KindName,
    scope: ScopeName,
    version: Annotated[
        int | None, typer.Option("--version", min=1, metavar="NUMBER", help="Show this version only.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show a model: versions, evidence, and why each one came and went.

    Example: flyball model show capacity queue:orders
    """
    run(url, as_json, lambda api, out: show_model(api, kind.value, scope, version, out))


@app.command()
def diff(
    kind: KindName,
    scope: ScopeName,
    earlier: Annotated[
        int | None, typer.Argument(metavar="[FROM]", min=1, help="The earlier version; default: the previous one.")
    ] = None,
    later: Annotated[
        int | None, typer.Argument(metavar="[TO]", min=1, help="The later version; default: the one in force.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two versions: each parameter, with its change in percent.

    Example: flyball model diff capacity queue:orders 1 2
    """
    given = {"from": earlier, "to": later}
    chosen = {name: number for name, number in given.items() if number is not None}
    run(url, as_json, lambda api, out: diff_versions(api, kind.value, scope, chosen, out))


@app.command("import")
def import_(
    kind: KindName,
    scope: ScopeName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON file of the model; - is standard input.")],
    evidence: Annotated[
        str | None, typer.Option("--evidence", metavar="FILE", help="JSON file: traces, samples and tests.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="FILE", help="JSON file with is_sound and reasons.")
    ] = None,
    state: Annotated[FirstState, typer.Option("--state", help="State of the new version.")] = FirstState.IN_FORCE,
    reason: Reason = "",
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Publish a file as a new version, by default in force at once.

    Example: flyball model import capacity queue:orders capacity.json
    """
    files = {"evidence": evidence, "certificate": certificate}
    fields = {name: _read(path) for name, path in files.items() if path is not None}
    fields |= {"state": state.value, "reason": reason, "force": force}
    run(url, as_json, lambda api, out: import_file(api, kind.value, scope, file, fields, out))


@app.command()
def export(
    kind: KindName,
    scope: ScopeName,
    version: Annotated[
        int | None, typer.Option("--version", min=1, metavar="NUMBER", help="Default: the version in force.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write the document of a version, as the file that it was published from.

    Example: flyball model export capacity queue:orders --out capacity.json
    """
    run(url, as_json, lambda api, out: export_file(api, kind.value, scope, version, file, out))


@app.command()
def activate(
    kind: KindName,
    scope: ScopeName,
    version: VersionNumber,
    shadow: Annotated[bool, typer.Option("--shadow", help="Run it in shadow first.")] = False,
    reason: Reason = "",
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put a version in force.

    Example: flyball model activate capacity queue:orders 2
    """
    body = {"state": "shadow" if shadow else "in_force", "reason": reason, "force": force}
    run(url, as_json, lambda api, out: change_state(api, kind.value, scope, version, body, out))


@app.command()
def reject(
    kind: KindName,
    scope: ScopeName,
    version: VersionNumber,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Reject a version that is not in force: nothing puts it in force again without --force.

    Example: flyball model reject capacity queue:orders 3 --reason "measured during a backup"
    """
    body = {"state": "rejected", "reason": reason}
    run(url, as_json, lambda api, out: change_state(api, kind.value, scope, version, body, out))


@app.command()
def pin(
    kind: KindName,
    scope: ScopeName,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", min=1, help="Number of the version; default: in force.")
    ] = None,
    reason: Reason = "",
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put a version in force and keep it there until `flyball model unpin`.

    Example: flyball model pin capacity queue:orders 1
    """
    body = {"version": version, "reason": reason, "force": force}
    run(url, as_json, lambda api, out: pin_version(api, kind.value, scope, body, out))


@app.command()
def unpin(
    kind: KindName, scope: ScopeName, reason: Reason = "", url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Let newer versions take over again.

    Example: flyball model unpin capacity queue:orders
    """
    run(url, as_json, lambda api, out: unpin_version(api, kind.value, scope, reason, out))


@app.command()
def rollback(
    kind: KindName,
    scope: ScopeName,
    to: Annotated[
        int | None, typer.Option("--to", min=1, metavar="VERSION", help="Default: the version in force before.")
    ] = None,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Quarantine the version in force and return to the one before it.

    Example: flyball model rollback capacity queue:orders --reason "members are overloaded"
    """
    body = {"to": to, "reason": reason}
    run(url, as_json, lambda api, out: roll_back(api, kind.value, scope, body, out))


@app.command()
def delete(
    kind: KindName,
    scope: ScopeName,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion.")] = False,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a model with all of its versions; consumers use their defaults.

    Example: flyball model delete capacity queue:orders --yes
    """
    if not yes:
        fail(f"all versions of {kind} {shown(scope)} are deleted. Use --yes to confirm.", WRONG_USE)
    run(url, as_json, lambda api, out: delete_model(api, kind.value, scope, reason, out))
