/** One schedule: when it is due, what it publishes, and what can be done about it. */

import { html } from "../vendor/preact.js";
import { cli, path, post, remove } from "../shared/api.js";
import { Act, open, say } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { go, streamAt } from "../shared/router.js";
import { number, pretty } from "../shared/text.js";
import { Copies, Copy, Facts, Failure, Heading, Loading, Section, State, Time, may } from "../shared/ui.js";
import { Every, Next } from "./schedules.js";

export default function Schedule({ names: [stream, name] }) {
  const target = path`schedules/${`${stream}:${name}`}`;
  const live = useLive(target, 2000);
  const trail = [["Schedules", "schedules"]];
  const row = live.data;
  if (!row) return html`<${Heading} title=${name} trail=${trail} />${live.error ? html`<${Failure} error=${live.error} again=${live.again} />` : html`<${Loading} />`}`;
  const { settings } = row;
  return html`
    <${Heading} title=${name} trail=${trail} state=${html`<${State} state=${row.state} />`}>
      ${may("admin", stream) ? html`<${Acts} row=${row} target=${target} again=${live.again} />` : null}
    <//>
    ${row.state === "idle" ? html`<p class="reason">No process that runs has declared it with these settings for 90 seconds, so nothing is published.</p>` : null}
    <${Section} title="Due times" id="due" acts=${html`<${Copies} target=${target} command=${cli("schedule info", [name])} />`}>
      <${Facts} facts=${[
        ["Every", html`<${Every} settings=${settings} />`],
        ["Next due", html`<${Next} at=${row.next_at} state=${row.state} />`],
        row.requested_at ? ["Requested", html`<${Time} at=${row.requested_at} ago=${true} />`, "A message that is not published yet"] : null,
        row.paused_at ? ["Paused", html`<${Time} at=${row.paused_at} ago=${true} />`] : null,
        ["Last due", html`<${Time} at=${row.last_due_at} />`],
        ["Last published", html`<${Time} at=${row.last_run_at} />`],
        ["Messages so far", number(row.messages)],
        ["Missed due times", settings.missed === "skip" ? "the latest one is made up for" : `at most ${number(settings.max_missed)} are made up for`],
        ["A process last asked", html`<${Time} at=${row.seen_at} ago=${true} />`, "Recorded every 30 seconds"],
        ["Created", html`<${Time} at=${row.created_at} />`],
        ["Changed", html`<${Time} at=${row.updated_at} />`],
      ]} />
    <//>
    <${Section} title="Messages" id="messages">
      <${Facts} facts=${[
        ["Published to", html`<a href=${streamAt(stream)}>${stream}</a>`],
        ["Key", html`<code class="key">${settings.functions.key ? `${settings.functions.key}()` : (settings.key ?? name)}</code>`],
        settings.functions.data ? ["Data", html`<code>${settings.functions.data}()</code>`] : null,
        settings.unique_key ? ["Unique key", html`<code>${settings.unique_key}</code>`, "Nothing is published while a message of it is pending"] : null,
      ]} />
      <p class="quiet">The app that declares the schedule with <code>app.every</code> has its settings. Change them there.</p>
    <//>
    ${settings.functions.data ? null : html`<${Json} title="Data" value=${settings.data} />`}
    ${Object.keys(settings.headers ?? {}).length ? html`<${Json} title="Headers" value=${settings.headers} />` : null}
  `;
}

const Json = ({ title, value }) => html`<${Section} title=${title} id=${title.toLowerCase()} acts=${html`<${Copy} text=${pretty(value)}>Copy<//>`}>
  <pre class="json" tabindex="0" role="region" aria-label=${title}>${pretty(value)}</pre>
<//>`;

function Acts({ row, target, again }) {
  const show = (act) => () => open(ScheduleAct, { row, target, act, done: act === "rm" ? () => go("schedules") : again });
  return html`
    <button type="button" class=${row.state === "paused" ? "primary" : ""} onClick=${show(row.state === "paused" ? "resume" : "pause")}>${row.state === "paused" ? "Resume" : "Pause"}</button>
    ${row.state === "paused" ? null : html`<button type="button" onClick=${show("run")}>Run now</button>`}
    <button type="button" class="danger" onClick=${show("rm")}>Delete</button>
  `;
}

/** The acts: the verb, what is said afterwards, and what happens. */
const ACTS = {
  pause: ["Pause", "is paused", () => "No process publishes its messages until it is resumed. The due times of the pause are not made up for."],
  resume: ["Resume", "is resumed", () => "Its first due time is counted from now. Those of the pause are not made up for."],
  run: ["Run now", "was asked for a message", (row) => `One message is published to ${row.stream}, besides those of the due times. ${row.state === "idle" ? "No process runs the schedule, so the request waits for one." : "A process that runs the schedule does it within two seconds."}`],
  rm: ["Delete", "was deleted", () => "Processes that run it stop, and the next one that starts declares it again. Remove it from the app as well. The messages that it has published stay."],
};

function ScheduleAct({ row, target, act, done, close }) {
  const [verb, past, effect] = ACTS[act];
  const deletes = act === "rm";
  const asked = deletes ? { method: "DELETE", target } : { method: "POST", target: `${target}/${act}`, body: {} };
  return html`<${Act} title=${`${verb}: ${row.name}`} verb=${verb} danger=${deletes} close=${close} act=${() => (deletes ? remove(target) : post(asked.target))}
    done=${() => { say(`${row.name} ${past}.`); done(); }}
    request=${{ ...asked, command: cli(`schedule ${act}`, [row.name], { yes: deletes }) }}>
    <p>${effect(row)}</p>
  <//>`;
}
