/** One message: what it contains, and its journey through the consumers. */

import { html } from "../vendor/preact.js";
import { cli, path } from "../shared/api.js";
import { open } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { consumerAt, messageAt, streamAt } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { number, pretty, sentence } from "../shared/text.js";
import { Copies, Copy, Empty, Facts, Failure, Heading, Loading, Section, State, Time, may } from "../shared/ui.js";
import { Cancel } from "./consumer_messages.js";
import { Publish } from "./publish.js";

const COLUMNS = (stream) => [
  { name: "consumer", title: "Consumer", cell: (row) => html`<a href=${consumerAt(stream, row.consumer)}>${row.consumer}</a>` },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} />` },
  { name: "what", title: "What happens", cell: (row) => html`<${Standing} stream=${stream} row=${row} />`, width: "wide" },
  { name: "attempt", title: "Attempts", cell: (row) => attempts(row), number: true },
];

/** The states in which a consumer may still handle it, or does. */
const UNDONE = ["waiting", "parked", "blocked", "replaying", "in_flight"];

/** A column to cancel the message for a consumer. */
const ACTS = (stream, seq, done) => ({
  name: "acts", title: "Acts",
  cell: (row) => (UNDONE.includes(row.state) && !row.cancelled_at
    ? html`<span class="row-acts"><button type="button" class="small danger" onClick=${() => open(Cancel, { stream, consumer: row.consumer, seq, done })}>Cancel</button></span>`
    : null),
});

const attempts = (row) => (row.attempt ?? row.attempts ?? null) === null ? "–" : `${number(row.attempt ?? row.attempts)}`;

const COMPLETED = { acked: "Acked", expired: "Expired", dropped: "Dropped", dead_letter: "Made a dead letter", cancelled: "Cancelled" };

/** The state in words. */
function Standing({ stream, row }) {
  const parts = [];
  if (row.state === "waiting") parts.push("It has not been delivered yet.");
  if (row.state === "filtered") parts.push("The consumer's filters leave it out.");
  if (row.state === "skipped") parts.push("The consumer began after it, or was moved past it.");
  if (row.state === "cancelled") parts.push(html`Cancelled <${Time} at=${row.cancelled_at} ago=${true} /> by ${row.cancelled_by}. `);
  if (row.state === "in_flight" && row.cancelled_at) parts.push(html`Its cancellation was requested <${Time} at=${row.cancelled_at} ago=${true} />. `);
  if (row.state === "replaying") parts.push("It is delivered again soon.");
  if (row.owner) parts.push(html`In flight in process ${row.owner.pid ?? ""} on ${row.owner.host ?? row.owner.process_id ?? row.owner}. `);
  if (row.lease_until) parts.push(html`Its lease ends <${Time} at=${row.lease_until} ago=${true} />. `);
  if (row.until) parts.push(html`It is redelivered <${Time} at=${row.until} ago=${true} />. `);
  if (row.behind) parts.push(html`It waits for <a href=${messageAt(stream, row.behind)}>message ${number(row.behind)}</a> of the same key. `);
  if (row.state === "acked" && !row.history.length) parts.push(row.acked_by ? html`Done by <${Time} at=${row.acked_by} />. ` : "Done.");
  if (row.state === "dead_letter") parts.push(html`<a href=${`${consumerAt(stream, row.consumer)}/dead-letters`}>Dead letter</a>${row.reason ? `: ${sentence(row.reason)}` : ". "}`);
  for (const one of row.history) parts.push(html`<div>${COMPLETED[one.outcome]} <${Time} at=${one.at} /> by ${one.process ?? "a client"}, attempt ${number(one.attempts)}${one.seconds === null ? "" : `, after ${one.seconds.toFixed(3)} s`}.</div>`);
  if (row.failed_at) parts.push(html`Its last attempt failed <${Time} at=${row.failed_at} ago=${true} />${row.failed_by ? ` in ${row.failed_by}` : ""}. `);
  if (row.error) parts.push(html`<code class="error-code">${row.error}</code>`);
  return html`<span>${parts.length ? parts : "–"}</span>`;
}

export default function Message({ names: [stream, seq] }) {
  const target = path`streams/${stream}/journeys/${seq}`;
  const live = useLive(target, 3000);
  const trail = [["Streams", "streams"], [stream, streamAt(stream)]];
  const title = `Message ${number(Number(seq))}`;
  const found = live.data?.data;
  if (!found) return html`<${Heading} title=${title} trail=${trail} />${live.error ? html`<${Failure} error=${live.error} again=${live.again} />` : html`<${Loading} />`}`;
  const { message, consumers } = found;
  const history = `${streamAt(stream)}?key=${encodeURIComponent(message.key)}`;
  return html`
    <${Heading} title=${title} trail=${trail}>
      <a class="button" href=${history}>History of its key</a>
      <a class="button" href=${`${streamAt(stream)}?from=${seq}`}>From here on</a>
      ${may("publish", stream) ? html`<button type="button" onClick=${() => open(Publish, { stream, consumers: consumers.map((one) => ({ name: one.consumer })), key: message.key, data: pretty(message.data) })}>Publish a copy</button>` : null}
    <//>
    <${Facts} facts=${[
      ["Key", html`<code class="key">${message.key}</code>`],
      ["Published", html`<${Time} at=${message.inserted_at ?? message.created_at} />`],
      message.expires_at ? ["Expires", html`<${Time} at=${message.expires_at} ago=${true} />`] : null,
      message.trace ? ["Trace", html`${message.trace.url ? html`<a href=${message.trace.url} target="_blank" rel="noopener noreferrer"><code>${message.trace.trace_id}</code></a>` : html`<code>${message.trace.trace_id}</code>`} <${Copy} text=${message.trace.trace_id}>Copy<//>`] : null,
    ]} />
    <${Section} title="Journey" id="journey" acts=${html`<${Copies} target=${target} command=${cli("stream view", [stream], { from: seq, first: 1 })} />`}>
      ${consumers.length
        ? html`<${Table} caption="The state of the message in each consumer" columns=${may("admin", stream) ? [...COLUMNS(stream), ACTS(stream, Number(seq), live.again)] : COLUMNS(stream)} rows=${consumers} id=${(row) => row.consumer} />`
        : html`<${Empty} title="The stream has no consumers">Create one with <code>headrace consumer add ${stream} NAME</code>.<//>`}
    <//>
    <${Section} title="Data" id="data" acts=${html`<${Copy} text=${pretty(message.data)}>Copy<//>`}>
      <pre class="json" tabindex="0" role="region" aria-label="Data">${pretty(message.data)}</pre>
    <//>
    <${Section} title="Headers" id="headers">
      ${message.headers ? html`<pre class="json" tabindex="0" role="region" aria-label="Headers">${pretty(message.headers)}</pre>` : html`<p class="quiet">None.</p>`}
    <//>
  `;
}
