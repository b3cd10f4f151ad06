/** Acts on a consumer's position: pause, resume, seek with a preview, replay with a dry run. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { cli, path, post } from "../shared/api.js";
import { Act, say } from "../shared/dialog.js";
import { counted, number } from "../shared/text.js";
import { Failure, Field } from "../shared/ui.js";

const at = (row) => path`streams/${row.stream}/consumers/${row.name}`;

const ENDS = [["", "until it is resumed"], ["600", "for 10 minutes"], ["3600", "for an hour"], ["86400", "for a day"]];

export function Pause({ row, done, close }) {
  const [length, setLength] = useState("");
  const [now] = useState(Date.now);
  const until = length ? new Date(now + Number(length) * 1000).toISOString() : null;
  const target = `${at(row)}/pause`;
  return html`<${Act} title=${`Pause ${row.name}`} verb="Pause" close=${close} act=${() => post(target, { until })}
    done=${() => { say(`${row.name} is paused.`); done(); }}
    request=${{ method: "POST", target, body: { until }, command: cli("consumer pause", [row.stream, row.name], { for: length ? `${length}s` : undefined }) }}>
    <p>No message is delivered to ${row.name} any more, in all processes. The ${counted(row.in_flight, "message")} in flight can still be finished. Messages wait in the stream meanwhile, as long as its retention keeps them.</p>
    <${Field} id="pause-for" label="How long">
      <select id="pause-for" value=${length} onChange=${(event) => setLength(event.target.value)}>
        ${ENDS.map(([value, title]) => html`<option value=${value}>${title}</option>`)}
      </select>
    <//>
  <//>`;
}

export function Resume({ row, done, close }) {
  const target = `${at(row)}/resume`;
  return html`<${Act} title=${`Resume ${row.name}`} verb="Resume" close=${close} act=${() => post(target)}
    done=${() => { say(`${row.name} is resumed.`); done(); }}
    request=${{ method: "POST", target, body: {}, command: cli("consumer resume", [row.stream, row.name]) }}>
    <p>Delivery continues immediately where it stopped. ${counted(row.lag, "message")} wait above its position.</p>
  <//>`;
}

const PLACES = [["start", "the start of the stream"], ["end", "the end of the stream"], ["seq", "a seq"], ["time", "a time"]];

export function Seek({ row, done, close }) {
  const [place, setPlace] = useState("seq");
  const [text, setText] = useState("");
  const to = target(place, text);
  const preview = usePreview(`${at(row)}/seek`, to === null ? null : { to });
  const found = preview.data?.data;
  return html`<${Act} title=${`Move ${row.name}`} verb=${found ? "Move the consumer" : "Move"} danger=${true} ready=${Boolean(found)} close=${close}
    act=${() => post(`${at(row)}/seek`, { to })} done=${(answer) => { say(`${row.name} is now at seq ${number(answer.data.position)}.`); done(); }}
    request=${to === null ? undefined : { method: "POST", target: `${at(row)}/seek`, body: { to }, command: cli("consumer seek", [row.stream, row.name, to]) }}>
    <p>It is at seq ${number(row.info.position)} of ${number(row.info.last_seq)}. It reads on at the first message at or after the new place. A move back loses nothing that waits before it, a move forward passes over it. Dead letters stay.</p>
    <div class="grid">
      <${Field} id="seek-place" label="Move to">
        <select id="seek-place" value=${place} onChange=${(event) => setPlace(event.target.value)}>${PLACES.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select>
      <//>
      ${place === "seq" ? html`<${Field} id="seek-seq" label="Seq"><input id="seek-seq" type="number" min="1" value=${text} onInput=${(event) => setText(event.target.value)} /><//>` : null}
      ${place === "time" ? html`<${Field} id="seek-time" label="Time, in your zone"><input id="seek-time" type="datetime-local" step="1" value=${text} onInput=${(event) => setText(event.target.value)} /><//>` : null}
    </div>
    <${Failure} error=${preview.error} />
    <div role="status">
      ${found
        ? html`<p class="preview">From seq ${number(found.from)} to ${number(found.to)}: <strong>${found.again_exact ? "" : "at least "}${counted(found.again, "message")}</strong> are redelivered, <strong>${found.skipped_exact ? "" : "about "}${counted(found.skipped, "message")}</strong> are skipped, and ${counted(found.in_flight, "message")} in flight ${found.in_flight === 1 ? "loses its lease" : "lose their leases"}.</p>`
        : html`<p class="quiet">${to === null ? "Choose a place to see what would happen." : preview.error ? "" : "Counting …"}</p>`}
    </div>
  <//>`;
}

/** @param {string} place @param {string} text */
function target(place, text) {
  if (place === "start" || place === "end") return place;
  if (!text) return null;
  return place === "seq" ? Number(text) : new Date(text).toISOString();
}

/** The answer of a dry run, soon after the last change of what is asked. */
function usePreview(target, body) {
  const [state, setState] = useState({ data: null, error: null });
  const key = JSON.stringify(body);
  useEffect(() => {
    setState({ data: null, error: null });
    if (body === null) return undefined;
    const aborting = new AbortController();
    const timer = setTimeout(
      () => post(target, { ...body, dry_run: true }, aborting.signal).then(
        (data) => setState({ data, error: null }),
        (error) => aborting.signal.aborted || setState({ data: null, error }),
      ),
      300,
    );
    return () => {
      clearTimeout(timer);
      aborting.abort();
    };
  }, [target, key]);
  return state;
}

const EMPTY = { filter: "", where: "", start_seq: "", end_seq: "", start_time: "", end_time: "" };

export function Replay({ row, done, close }) {
  const [choice, setChoice] = useState(EMPTY);
  const edit = (name) => (event) => setChoice({ ...choice, [name]: event.target.value });
  const body = selection(choice);
  const preview = usePreview(`${at(row)}/replay`, body);
  const count = preview.data?.data.replayed;
  const options = { filter: body.filter, where: body.where, from: body.start_seq ?? body.start_time, to: body.end_seq ?? body.end_time };
  return html`<${Act} title=${`Replay to ${row.name}`} verb=${count === undefined ? "Replay" : `Replay ${counted(count, "message")}`} danger=${true} ready=${Boolean(count)} close=${close}
    act=${() => post(`${at(row)}/replay`, body)} done=${(answer) => { say(`${counted(answer.data.replayed, "message")} will be delivered again to ${row.name}.`); done(); }}
    request=${{ method: "POST", target: `${at(row)}/replay`, body, command: cli("consumer replay", [row.stream, row.name], options) }}>
    <p>Messages that it has handled are delivered again, before new ones. Its position stays. They must also match its own filters.</p>
    <div class="grid">
      <${Field} id="replay-filter" label="Keys"><input id="replay-filter" placeholder="orders.us.>" value=${choice.filter} onInput=${edit("filter")} /><//>
      <${Field} id="replay-where" label="Condition"><input id="replay-where" placeholder="data.total > 100" value=${choice.where} onInput=${edit("where")} /><//>
      <${Field} id="replay-from" label="From seq"><input id="replay-from" type="number" min="1" value=${choice.start_seq} onInput=${edit("start_seq")} /><//>
      <${Field} id="replay-to" label="To seq"><input id="replay-to" type="number" min="1" value=${choice.end_seq} onInput=${edit("end_seq")} /><//>
      <${Field} id="replay-since" label="From time, in your zone"><input id="replay-since" type="datetime-local" step="1" value=${choice.start_time} onInput=${edit("start_time")} /><//>
      <${Field} id="replay-until" label="To time, in your zone"><input id="replay-until" type="datetime-local" step="1" value=${choice.end_time} onInput=${edit("end_time")} /><//>
    </div>
    <${Failure} error=${preview.error} />
    <p class="preview" role="status">${count === undefined ? (preview.error ? "" : "Counting …") : count ? html`<strong>${counted(count, "message")}</strong> would be delivered again.` : "No message matches, so there is nothing to replay."}</p>
  <//>`;
}

/** @param {typeof EMPTY} choice */
function selection(choice) {
  const found = {};
  for (const name of ["filter", "where"]) if (choice[name].trim()) found[name] = choice[name].trim();
  for (const name of ["start_seq", "end_seq"]) if (choice[name]) found[name] = Number(choice[name]);
  for (const name of ["start_time", "end_time"]) if (choice[name]) found[name] = new Date(choice[name]).toISOString();
  return found;
}

