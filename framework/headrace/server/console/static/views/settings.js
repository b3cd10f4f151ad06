/** Changing the settings of a stream or a consumer: what changes, and when it counts. */

import { html, useState } from "../vendor/preact.js";
import { cli, patch } from "../shared/api.js";
import { SETTINGS } from "../shared/described.js";
import { Act, say } from "../shared/dialog.js";
import { Field, words } from "../shared/ui.js";

/** @typedef {import("../shared/described.js").Setting} Setting */

/** When a change of the settings of a stream or a consumer counts. */
const COUNTS = {
  consumer: "A change applies to new deliveries immediately, and in running workers within seconds. Messages in flight stay as they are. A changed filter or condition applies to messages that are not yet delivered.",
  stream: "A change applies immediately. Messages beyond a shorter retention are removed within a minute, and can't be restored.",
};

/** @param {Setting} setting */
const labelOf = ({ name, unit }) => `${name[0].toUpperCase()}${words(name.slice(1))}${unit ? `, in ${unit}` : ""}`;

/** @param {Setting} setting @param {any} value */
function shown(setting, value) {
  if (value === null || value === undefined) return "";
  if (setting.kind === "delays") return (value.delays ?? []).map((one) => `${one}s`).join("\n");
  return setting.kind === "list" ? value.join("\n") : String(value);
}

/** @param {Setting} setting @param {string} text */
function value({ kind, optional }, text) {
  const trimmed = text.trim();
  const lines = trimmed.split("\n").map((one) => one.trim()).filter(Boolean);
  if (kind === "list") return lines;
  if (kind === "delays") return lines.length ? lines : null;
  if (kind === "boolean") return trimmed === "true";
  if (!trimmed) return optional ? null : trimmed;
  return kind === "number" ? Number(trimmed) : trimmed;
}

/** The option of the command line and its value. @param {Setting} setting @param {any} value */
function optionOf({ name, kind }, value) {
  if (kind === "boolean") return [value ? name : name === "ordered" ? "unordered" : `no-${name}`, true];
  if (kind === "list") return [name === "filters" ? "filter" : name, value];
  return [name.replaceAll("_", "-"), kind === "delays" && value ? value.join(",") : (value ?? "none")];
}

/** @param {any} props `info` has the settings as they are, `target` is the path of the object */
export function EditSettings({ kind, target, info, command, done, close }) {
  const settings = SETTINGS[kind];
  const before = Object.fromEntries(settings.map((one) => [one.name, shown(one, info[one.name])]));
  const [draft, setDraft] = useState(before);
  const changed = settings.filter((one) => draft[one.name].trim() !== before[one.name].trim());
  const body = Object.fromEntries(changed.map((one) => [one.name, value(one, draft[one.name])]));
  const options = Object.fromEntries(changed.map((one) => optionOf(one, body[one.name])));
  return html`<${Act} title=${`Settings of the ${kind} ${info.name}`} verb=${changed.length ? "Change" : "Nothing changed"} ready=${changed.length > 0} close=${close}
    act=${() => patch(target, body)}
    done=${() => {
      say(`The settings of ${info.name} were changed.`);
      done?.();
    }}
    request=${changed.length ? { method: "PATCH", target, body, command: cli(command[0], command[1], options) } : undefined}>
    <p>${COUNTS[kind]}</p>
    <div class="grid">
      ${settings.map((one) => html`<${Field} id=${`set-${one.name}`} label=${labelOf(one)} hint=${one.about}><${Input} setting=${one} text=${draft[one.name]} onText=${(text) => setDraft({ ...draft, [one.name]: text })} /><//>`)}
    </div>
    ${changed.length ? html`<ul class="changes" aria-label="Changes">${changed.map((one) => html`<li><strong>${labelOf(one)}</strong>: <s>${before[one.name] || "none"}</s> → ${draft[one.name] || "none"}</li>`)}</ul>` : null}
  <//>`;
}

function Input({ setting, text, onText }) {
  const shared = { id: `set-${setting.name}`, value: text, onInput: (event) => onText(event.target.value), "aria-describedby": `set-${setting.name}-hint` };
  if (setting.kind === "choice" || setting.kind === "boolean") return html`<select ...${shared}>${setting.choices.map((one) => html`<option value=${one}>${one}</option>`)}</select>`;
  if (setting.kind === "list" || setting.kind === "delays") return html`<textarea rows="3" spellcheck="false" ...${shared}></textarea>`;
  if (setting.kind === "number") return html`<input type="number" step="any" required=${!setting.optional} ...${shared} />`;
  return html`<input ...${shared} />`;
}
