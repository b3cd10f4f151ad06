/** The running processes, and what each consumer does in them. */

import { html } from "../vendor/preact.js";
import { figureFacts } from "../shared/figures.js";
import { useLive } from "../shared/live.js";
import { consumerAt } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { duration, number, rate, short } from "../shared/text.js";
import { Copies, Empty, Facts, Failure, Heading, Loading, State, Time } from "../shared/ui.js";

const COLUMNS = [
  { name: "name", title: "Consumer", cell: (row) => html`<a href=${consumerAt(row.stream, row.name)}><span class="quiet">${row.stream} /</span> ${row.name}</a>` },
  { name: "rate", title: "Handled/s", cell: (row) => rate(row.rate), number: true },
  { name: "latency", title: "A message takes", cell: (row) => duration(row.latency), number: true },
  { name: "actors", title: "Actors", cell: (row) => `${short(row.busy)}/${short(row.actors)}`, number: true, hint: "busy / all" },
  { name: "leased", title: "Leased", cell: (row) => short(row.leased), number: true },
  { name: "acked", title: "Acked", cell: (row) => short(row.acked), number: true },
  { name: "failed", title: "Failed", cell: (row) => html`<span class=${row.failed ? "bad" : ""}>${short(row.failed)}</span>`, number: true },
  { name: "breaker", title: "Breaker", cell: (row) => (row.breaker ? html`<${State} state=${row.breaker} title=${row.breaker_reason ?? ""} />` : "–") },
  { name: "reason", title: "Why so many actors", cell: (row) => row.reason || "–", width: "wide" },
];

export default function Processes() {
  const live = useLive("live/processes");
  const rows = live.data?.data;
  return html`
    <${Heading} title="Processes"><${Copies} target="live/processes" command="headrace observe" /><//>
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!rows
      ? live.error ? null : html`<${Loading} />`
      : rows.length
        ? rows.map((row) => html`<${Process} key=${row.process_id ?? row.id} row=${row} />`)
        : html`<${Empty} title="No process runs">Start a worker with <code>headrace run app.py</code>.<//>`}
  `;
}

const KINDS = { run: "Worker", serve: "Server", embedded: "Embedded" };

function Process({ row }) {
  const consumers = row.consumers ?? [];
  return html`<section class="card process" aria-label=${`Process ${row.pid} on ${row.host}`}>
    <div class="section-head">
      <h2>${KINDS[row.kind] ?? row.kind} ${row.pid} <span class="quiet">on ${row.host}</span></h2>
      <${State} state=${row.gone ? "gone" : row.blocked ? "blocked" : "running"} title=${row.gone ? "It has sent no heartbeat for 15 seconds, and did not shut down cleanly." : (row.blocked ?? "")} />
    </div>
    <${Facts} facts=${[
      ["Version", row.version],
      ["Started", html`<${Time} at=${row.started_at} ago=${true} />`],
      ["Last heartbeat", html`<${Time} at=${row.seen_at} ago=${true} />`],
      row.blocked ? ["Blocked by", row.blocked] : null,
      ...figureFacts("process", row),
    ]} />
    ${consumers.length
      ? html`<${Table} caption=${`Consumers in process ${row.pid}`} columns=${COLUMNS} rows=${consumers} id=${(one) => `${one.stream} ${one.name}`} />`
      : null}
    ${row.more_consumers ? html`<p class="quiet">And ${number(row.more_consumers)} more consumers.</p>` : null}
  </section>`;
}
