// Texts and badges of a model's version, shared by the list and the page of one model.

import { UNKNOWN, count, plural } from "../format.js";
import { badge } from "../ui.js";

const TONES = { in_force: "good", shadow: "info", candidate: "", superseded: "", rejected: "warn", quarantined: "bad" };

export const stateText = (state) => state.replaceAll("_", " ");
export const nameOf = ({ kind, scope }) => `${kind} ${scope}`;

/** Number, state, pin and soundness of a version. */
export function stateBadges(version) {
  const { state, version: number, is_pinned: isPinned, is_sound: isSound, is_forced: isForced } = version;
  return [
    badge(`version ${number}`),
    badge(stateText(state), TONES[state]),
    isPinned && badge("pinned", "info"),
    isForced && badge("forced", "warn"),
    isSound === false && badge("not sound", "bad"),
    isSound === true && badge("sound", "good"),
  ];
}

/** The evidence of a version: traces, samples, tests. */
export function evidenceText({ evidence_brief: { traces, source, samples, tests, tests_passed: passed } }) {
  const parts = [
    traces.join(", ") || source,
    samples !== null && plural(samples, "sample"),
    tests > 0 && `${count(passed)} of ${plural(tests, "test")} passed`,
  ];
  return parts.filter(Boolean).join("; ") || UNKNOWN;
}
