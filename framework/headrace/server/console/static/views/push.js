/** The recent requests of a push consumer, and their responses. */

import { html } from "../vendor/preact.js";
import { path } from "../shared/api.js";
import { useLive } from "../shared/live.js";
import { Table } from "../shared/table.js";
import { duration, number } from "../shared/text.js";
import { Copies, Empty, Facts, Failure, Loading, Section, State, Time } from "../shared/ui.js";

const COLUMNS = [
  { name: "at", title: "At", cell: (row) => html`<${Time} at=${row.at} />` },
  { name: "status", title: "Answer", cell: (row) => html`<${State} state=${row.status ?? "none"} tone=${row.status >= 200 && row.status < 300 ? "good" : "bad"} />` },
  { name: "ms", title: "Took", cell: (row) => duration(row.ms === null ? null : row.ms / 1000), number: true },
  { name: "messages", title: "Messages", cell: (row) => number(row.messages), number: true },
  { name: "error", title: "Error", cell: (row) => (row.error ? html`<code class="brief">${row.error}</code>` : "–"), width: "wide" },
];

export function Push({ stream, consumer }) {
  const target = path`streams/${stream}/consumers/${consumer}/push`;
  const live = useLive(target, 3000);
  const found = live.data?.data;
  if (!found) return live.error ? html`<${Failure} error=${live.error} again=${live.again} />` : html`<${Loading} />`;
  return html`
    <${Facts} facts=${[
      ["Sends to", html`<code>${found.url}</code>`],
      ["Breaker", found.breaker ? html`<${State} state=${found.breaker.state} /> ${found.breaker.until ? html`until <${Time} at=${found.breaker.until} />` : null}` : "none"],
      ["Answered well", number(found.counts.ok)],
      ["Failed", html`<span class=${found.counts.failed ? "bad" : ""}>${number(found.counts.failed)}</span>`],
    ]} />
    <${Section} title="Lately sent" id="sent" acts=${html`<${Copies} target=${target} />`}>
      ${found.recent.length
        ? html`<${Table} caption="Requests that were sent lately" columns=${COLUMNS} rows=${found.recent} id=${(row) => `${row.at} ${row.ms}`} />`
        : html`<${Empty} title="Nothing was sent yet">Publish a message that the consumer's filters match.<//>`}
    <//>
  `;
}
