/** Changing the settings of a stream or a consumer: what changes, and when it counts. */

import { html, useState } from "../vendor/preact.js";
import { cli, patch } from "../shared/api.js";
import { Act, say } from "../shared/dialog.js";
import { Field } from "../shared/ui.js";

/**
 * @typedef {object} Setting
 * @property {string} name in the API
 * @property {string} label
 * @property {string} hint
 * @property {"number" | "text" | "list" | "choice" | "seconds"} kind
 * @property {string[]} [choices]
 * @property {boolean} [optional] may be empty, which means none
 * @property {string} [option] the option of the command line, if it differs
 */

/** @type {{kind: string, counts: string, settings: Setting[]}} */
export const CONSUMER_SETTINGS = {
  kind: "consumer",
  counts: "A change counts at once in new deliveries, and within seconds in workers that run. Messages that are in flight stay as they are. A changed filter or condition counts for messages that are not yet delivered.",
  settings: [
    { name: "filters", label: "Filters of keys", kind: "list", hint: "One a line. * matches one token, and > the rest." },
    { name: "where", label: "Condition", kind: "text", optional: true, hint: "Such as data.total > 100. Empty: none." },
    { name: "ack_wait", label: "Visibility timeout in seconds", kind: "seconds", hint: "A lease expires after it unless it is extended." },
    { name: "max_ack_pending", label: "Most messages in flight", kind: "number", hint: "Over all processes." },
    { name: "max_deliver", label: "Most attempts", kind: "number", hint: "After these a message is exhausted." },
    { name: "on_exhausted", label: "Exhausted messages", kind: "choice", choices: ["dead_letter", "block", "drop"], hint: "block: its key waits until you redrive or discard it." },
    { name: "rate_limit", label: "Deliveries per second", kind: "number", optional: true, hint: "Over all processes. Empty: no limit." },
    { name: "max_waiting", label: "Most waiting requests", kind: "number", hint: "HTTP requests that wait for messages, at each server process." },
  ],
};

/** @type {{kind: string, counts: string, settings: Setting[]}} */
export const STREAM_SETTINGS = {
  kind: "stream",
  counts: "A change counts at once. What a shorter retention no longer keeps is removed within a minute, and can't be brought back.",
  settings: [
    { name: "retention", label: "Policy", kind: "choice", choices: ["limits", "interest"], hint: "interest: kept until every consumer is done with it." },
    { name: "retain_up_to", label: "Kept for at most, in seconds", kind: "seconds", optional: true, hint: "Older messages are removed. Empty: no limit." },
    { name: "retain_at_least", label: "Kept for at least, in seconds", kind: "seconds", optional: true, hint: "Whatever the size. Empty: no limit." },
    { name: "max_storage", label: "Most bytes on disk", kind: "number", optional: true, hint: "The oldest messages are removed above it. Empty: no limit." },
    { name: "dedupe_window", label: "Message ids are remembered for, in seconds", kind: "seconds", hint: "A repeated publish has no effect meanwhile." },
  ],
};

/** @param {Setting} setting @param {any} value */
const shown = (setting, value) => (value === null || value === undefined ? "" : setting.kind === "list" ? value.join("\n") : String(value));

/** @param {Setting} setting @param {string} text */
function value(setting, text) {
  const trimmed = text.trim();
  if (setting.kind === "list") return text.split("\n").map((one) => one.trim()).filter(Boolean);
  if (!trimmed) return setting.optional ? null : trimmed;
  return setting.kind === "number" || setting.kind === "seconds" ? Number(trimmed) : trimmed;
}

/** @param {any} props `info` has the settings as they are, `target` is the path of the object */
export function EditSettings({ kind, counts, settings, target, info, command, done, close }) {
  const before = Object.fromEntries(settings.map((one) => [one.name, shown(one, info[one.name])]));
  const [draft, setDraft] = useState(before);
  const changed = settings.filter((one) => draft[one.name].trim() !== before[one.name].trim());
  const body = Object.fromEntries(changed.map((one) => [one.name, value(one, draft[one.name])]));
  const options = Object.fromEntries(changed.map((one) => [one.name === "filters" ? "filter" : one.name.replaceAll("_", "-"), shown(one, body[one.name]) || "none"]));
  return html`<${Act} title=${`Settings of the ${kind} ${info.name}`} verb=${changed.length ? "Change" : "Nothing changed"} ready=${changed.length > 0} close=${close}
    act=${() => patch(target, body)}
    done=${() => {
      say(`The settings of ${info.name} were changed.`);
      done?.();
    }}
    request=${changed.length ? { method: "PATCH", target, body, command: cli(command[0], command[1], options) } : undefined}>
    <p>${counts}</p>
    <div class="grid">
      ${settings.map((one) => html`<${Field} id=${`set-${one.name}`} label=${one.label} hint=${one.hint}><${Input} setting=${one} text=${draft[one.name]} onText=${(text) => setDraft({ ...draft, [one.name]: text })} /><//>`)}
    </div>
    ${changed.length ? html`<ul class="changes" aria-label="Changes">${changed.map((one) => html`<li><strong>${one.label}</strong>: <s>${before[one.name] || "none"}</s> → ${draft[one.name] || "none"}</li>`)}</ul>` : null}
  <//>`;
}

function Input({ setting, text, onText }) {
  const shared = { id: `set-${setting.name}`, value: text, onInput: (event) => onText(event.target.value), "aria-describedby": `set-${setting.name}-hint` };
  if (setting.kind === "choice") return html`<select ...${shared}>${setting.choices.map((one) => html`<option value=${one}>${one}</option>`)}</select>`;
  if (setting.kind === "list") return html`<textarea rows="3" spellcheck="false" ...${shared}></textarea>`;
  if (setting.kind === "number" || setting.kind === "seconds") return html`<input type="number" step="any" min="0" required=${!setting.optional} ...${shared} />`;
  return html`<input ...${shared} />`;
}
