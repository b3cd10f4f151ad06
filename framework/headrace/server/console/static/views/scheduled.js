/** The messages of a stream that are published later, and their cancellation. */

import { html, useState } from "../vendor/preact.js";
import { cli, path, post, query } from "../shared/api.js";
import { Act, open, say } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { useFilters } from "../shared/router.js";
import { Further, Table } from "../shared/table.js";
import { brief, counted, number, pretty } from "../shared/text.js";
import { Copies, Empty, Failure, Loading, Time, may } from "../shared/ui.js";

const LIMIT = 50;

const COLUMNS = (shown, show) => [
  { name: "due", title: "Due", cell: (row) => html`<${Time} at=${row.deliver_at} ago=${true} />` },
  { name: "key", title: "Key", cell: (row) => html`<code class="key">${row.key}</code>`, width: "key-column" },
  { name: "unique", title: "Unique key", cell: (row) => (row.unique_key ? html`<code class="key">${row.unique_key}</code>` : "–"), width: "key-column" },
  { name: "id", title: "Id", cell: (row) => number(row.id), number: true },
  {
    name: "data", title: "Data", width: "wide",
    cell: (row) => html`<button type="button" class="link" aria-expanded=${row.id === shown} onClick=${() => show(row.id === shown ? null : row.id)}><code class="brief">${brief(row.data)}</code></button>`,
  },
];

export function Scheduled({ stream }) {
  const [filters, change] = useFilters({ after: "" });
  const [selected, setSelected] = useState(new Set());
  const [shown, show] = useState(null);
  const target = path`streams/${stream}/scheduled` + query({ ...filters, limit: LIMIT });
  const live = useLive(target, 3000);
  const rows = live.data?.data;
  const admin = may("admin", stream);
  const ids = (rows ?? []).map((row) => row.id).filter((id) => selected.has(id));
  const cancel = (chosen) => open(Unschedule, { stream, ids: chosen, done: () => { setSelected(new Set()); live.again(); } });
  return html`
    <div class="list-head">
      <span role="status">${ids.length ? `${number(ids.length)} selected` : rows?.length ? counted(rows.length, "message") + (live.data.next || filters.after ? " on this page" : "") : ""}</span>
      ${admin && ids.length ? html`<button type="button" class="small danger" onClick=${() => cancel(ids)}>Cancel the selected</button>` : null}
      ${admin && rows?.length && !ids.length ? html`<button type="button" class="small danger" onClick=${() => cancel(null)}>Cancel all</button>` : null}
      <${Copies} target=${target} command=${cli("stream scheduled", [stream])} />
    </div>
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!rows
      ? live.error ? null : html`<${Loading} />`
      : rows.length
        ? html`<${Table} caption=${`Scheduled messages of ${stream}`} columns=${COLUMNS(shown, show)} rows=${rows} id=${(row) => row.id}
            selected=${admin ? selected : undefined} onSelect=${setSelected} selectLabel=${(row) => `Select the message ${row.id}`}
            more=${(row) => (row.id === shown ? html`<${Contents} row=${row} />` : null)} />`
        : html`<${Empty} title="No message is scheduled">Schedule one with <code>delay</code> or <code>deliver_at</code> of <code>publish</code>, or with <code>headrace stream send ${stream} KEY JSON --in 5m</code>.<//>`}
    <${Further} answer=${live.data} after=${filters.after} change=${change} />
  `;
}

const Contents = ({ row }) => html`<div class="letter">
  <h3>Data</h3>
  <pre class="json" tabindex="0" role="region" aria-label="Data of the scheduled message">${pretty(row.data)}</pre>
  ${row.headers ? html`<h3>Headers</h3><pre class="json" tabindex="0" role="region" aria-label="Headers of the scheduled message">${pretty(row.headers)}</pre>` : null}
</div>`;

function Unschedule({ stream, ids, done, close }) {
  const target = path`streams/${stream}/unschedule`;
  const body = ids ? { ids } : {};
  const words = ids ? `Cancel ${counted(ids.length, "message")}` : "Cancel all scheduled messages";
  return html`<${Act} title=${words} verb=${words} danger=${true} close=${close} act=${() => post(target, body)}
    done=${(answer) => { say(`${counted(answer.data.cancelled, "message")} cancelled.`); done(); }}
    request=${{ method: "POST", target, body, command: cli("stream unschedule", [stream], { id: ids ?? undefined, yes: true }) }}>
    <p>${ids ? "They are" : "All scheduled messages of the stream, at most the first 10,000 that are due, are"} deleted before they are published, and no consumer of ${stream} gets them. They can't be brought back. Messages that are published in the meantime stay. Unique keys of cancelled messages are free.</p>
  <//>`;
}
