/** What a consumer has in flight, parked, blocked and next, and the keys that are blocked. */

import { html } from "../vendor/preact.js";
import { cli, path, post, query } from "../shared/api.js";
import { Act, open, say } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { messageAt, useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { brief, counted, local, number } from "../shared/text.js";
import { Copies, Empty, Failure, Loading, State, Time, may } from "../shared/ui.js";
import { DeadLetterAct } from "./dead_letter_acts.js";

const STATES = [["", "all"], ["in_flight", "in flight"], ["parked", "parked"], ["blocked", "blocked"], ["next", "next"]];

const COLUMNS = (stream) => [
  { name: "seq", title: "Seq", cell: ({ message }) => html`<a href=${messageAt(stream, message.seq)}>${number(message.seq)}</a>` },
  { name: "state", title: "State", cell: ({ info }) => html`<${State} state=${info.state} />` },
  { name: "key", title: "Key", cell: ({ message }) => html`<code class="key">${message.key}</code>`, width: "key-column" },
  { name: "attempts", title: "Attempts", cell: ({ info }) => number(info.deliver_count), number: true },
  { name: "until", title: "Until", cell: ({ info }) => html`<${Time} at=${info.not_visible_until} ago=${true} />`, hint: "when its lease expires, or it is redelivered" },
  { name: "owner", title: "Held by", cell: ({ info }) => (info.owner ? html`<code title=${info.owner}>${info.owner.slice(0, 8)}</code>` : "–"), hide: "phone" },
  { name: "error", title: "Last error", cell: ({ info }) => (info.error ? html`<code class="brief" title=${failed(info)}>${info.error}</code>` : "–"), width: "wide" },
  { name: "data", title: "Data", cell: ({ message }) => html`<code class="brief">${brief(message.data)}</code>`, width: "wide" },
];

/** Has a consumer be done with a message without handling it. */
export function Cancel({ stream, consumer, seq, done, close }) {
  const target = path`streams/${stream}/consumers/${consumer}/cancel`;
  const body = { seqs: [seq] };
  const after = (answer) => {
    say(answer.cancelled ? `Message ${number(seq)} is cancelled.` : answer.stopping ? `The handler of message ${number(seq)} is being stopped.` : `Message ${number(seq)} is done already.`);
    done();
  };
  return html`<${Act} title=${`Cancel message ${number(seq)}`} verb="Cancel the message" danger=${true} close=${close}
    act=${() => post(target, body)} done=${after} request=${{ method: "POST", target, body, command: cli("consumer cancel", [stream, consumer], { seq }) }}>
    <p>The consumer <strong>${consumer}</strong> is done with it without handling it. If a handler is at work on it, that is stopped, and the next message of its key follows. Other consumers still get it.</p>
  <//>`;
}

/** Of what type the last error is, and where and when it was raised. */
const failed = (info) => [info.error_type, info.failed_by && `in ${info.failed_by}`, `at ${local(info.failed_at)}`].filter(Boolean).join(", ");

export function Peek({ stream, consumer }) {
  const [filters, change] = useFilters({ states: "" });
  const target = path`streams/${stream}/consumers/${consumer}/messages` + query({ limit: 25, states: filters.states, of_each: filters.states ? undefined : true });
  const live = useLive(target, 3000);
  const cancel = ({ message }) => open(Cancel, { stream, consumer, seq: message.seq, done: live.again });
  const acts = may("admin", stream)
    ? [{ name: "acts", title: "Acts", cell: (row) => html`<span class="row-acts"><button type="button" class="small danger" onClick=${() => cancel(row)}>Cancel</button></span>` }]
    : [];
  return html`
    <div class="list-head">
      <div class="spans" role="group" aria-label="States">
        ${STATES.map(([name, title]) => html`<button type="button" class="small" aria-pressed=${filters.states === name} onClick=${() => change({ states: name })}>${title}</button>`)}
      </div>
      <${Copies} target=${target} command=${cli("consumer peek", [stream, consumer])} />
    </div>
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!live.data
      ? live.error ? null : html`<${Loading} />`
      : live.data.data.length
        ? html`<${Table} caption="Messages that the consumer works on or gets next" columns=${[...COLUMNS(stream), ...acts]} rows=${live.data.data} id=${({ message }) => message.seq} />`
        : html`<${Empty} title="No messages here">The consumer has nothing ${filters.states ? `that is ${filters.states.replace("_", " ")}` : "to do"}.<//>`}
  `;
}

export function Blocked({ stream, consumer, row }) {
  const target = path`streams/${stream}/consumers/${consumer}/blocked_keys?limit=100`;
  const live = useLive(target, 3000);
  const act = (kind, one) => open(DeadLetterAct, { kind, stream, consumer, selection: { seqs: [one.seq] }, count: 1, what: `message ${number(one.seq)}, which blocks the key ${one.key}`, done: live.again });
  const columns = [
    { name: "key", title: "Key", cell: (one) => html`<code class="key">${one.key}</code>`, width: "key-column" },
    { name: "head", title: "Blocked by", cell: (one) => html`<a href=${messageAt(stream, one.seq)}>message ${number(one.seq)}</a>` },
    { name: "since", title: "Since", cell: (one) => html`<${Time} at=${one.since} ago=${true} />` },
    { name: "waiting", title: "Waiting behind it", cell: (one) => counted(one.waiting, "message"), number: true },
    { name: "error", title: "Error", cell: (one) => html`<code class="brief" title=${one.error_type ?? ""}>${one.error ?? "–"}</code>`, width: "wide" },
    ...(may("admin", stream)
      ? [{ name: "acts", title: "Acts", cell: (one) => html`<span class="row-acts"><button type="button" class="small" onClick=${() => act("redrive", one)}>Redrive</button> <button type="button" class="small danger" onClick=${() => act("purge", one)}>Discard</button></span>` }]
      : []),
  ];
  return html`
    <div class="list-head"><span>${row.parked ? `${counted(row.parked, "message")} parked, ${number(row.blocked)} of them blocked.` : ""}</span><${Copies} target=${target} command=${cli("consumer blocked", [stream, consumer])} /></div>
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!live.data
      ? live.error ? null : html`<${Loading} />`
      : live.data.data.length
        ? html`<${Table} caption="Blocked keys" columns=${columns} rows=${live.data.data} id=${(one) => one.key} />`
        : html`<${Empty} title="No key is blocked">With <code>on_exhausted = block</code>, a message that failed too often blocks its key until you redrive or discard it.<//>`}
  `;
}
