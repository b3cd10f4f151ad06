/** Backfills of a source: start, progress, cancel. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { cli, path, post } from "../shared/api.js";
import { Act, open, say } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { Table } from "../shared/table.js";
import { counted, duration, number } from "../shared/text.js";
import { Copies, Empty, Failure, Field, Section, State, Time, may } from "../shared/ui.js";

const ENDED = ["done", "failed", "cancelled"];

/** @param {{source: any, underWay: any[]}} props `underWay`: those that are queued or running, from the last snapshot */
export function Backfills({ source, underWay }) {
  const target = path`sources/${source.name}/backfills`;
  const live = useLive(target, 10_000);
  const newest = new Map(underWay.map((one) => [one.id, one]));
  const rows = (live.data?.data ?? []).map((one) => (ENDED.includes(one.state) ? one : newest.get(one.id) ?? one));
  const ids = [...newest.keys()].join(" ");
  useEffect(() => {
    if (live.data) live.again(); // one has begun or ended
  }, [ids]);
  const admin = may("admin");
  const columns = [
    { name: "table", title: "Table", cell: (row) => html`<code>${row.table}</code>` },
    { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} />` },
    { name: "rows", title: "Rows", cell: (row) => `${number(row.published)}${row.total ? ` of about ${number(row.total)}` : ""}`, number: true },
    { name: "progress", title: "Progress", cell: (row) => (row.done === null || ENDED.includes(row.state) ? "–" : html`<span class="progress"><progress max="1" value=${row.done} aria-label="Done"></progress> ${Math.round(row.done * 100)} %</span>`) },
    { name: "left", title: "Left", cell: (row) => (ENDED.includes(row.state) ? "–" : duration(row.time_left)), number: true },
    { name: "began", title: "Began", cell: (row) => html`<${Time} at=${row.started_at ?? row.created_at} />` },
    { name: "error", title: "Reason", cell: (row) => (row.reason ? html`<code class="brief">${row.reason}</code>` : "–"), width: "wide" },
    ...(admin ? [{ name: "acts", title: "Acts", cell: (row) => (ENDED.includes(row.state) ? null : html`<button type="button" class="small" onClick=${() => open(Cancel, { source, row, done: live.again })}>Cancel</button>`) }] : []),
  ];
  return html`<${Section} title="Backfills" id="backfills" acts=${html`
      ${admin ? html`<button type="button" onClick=${() => open(Start, { source, done: live.again })}>Start a backfill</button>` : null}
      <${Copies} target=${target} command=${cli("source backfill ls", [source.name])} />`}>
    <${Failure} error=${live.data ? null : live.error} />
    ${rows.length
      ? html`<${Table} caption=${`Backfills of ${source.name}`} columns=${columns} rows=${rows} id=${(row) => row.id} />`
      : html`<${Empty} title="No backfills">A backfill publishes the rows that a table already has, while its changes are captured.<//>`}
  <//>`;
}

function Start({ source, done, close }) {
  const [chosen, setChosen] = useState("");
  const target = path`sources/${source.name}/backfills`;
  const body = chosen ? { tables: [chosen] } : {};
  return html`<${Act} title=${`Backfill ${source.name}`} verb="Start" close=${close} act=${() => post(target, body)} done=${() => { say("The backfill begins."); done(); }}
    request=${{ method: "POST", target, body, command: cli("source backfill start", [source.name], { table: chosen || undefined }) }}>
    <p>Every row of the chosen tables becomes a message of the stream ${source.stream}, and so goes to its consumers. Changes of the tables are captured meanwhile. You can cancel it.</p>
    <${Field} id="backfill-table" label="Tables">
      <select id="backfill-table" value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
        <option value="">all of the source's (${counted((source.tables ?? []).length, "table")})</option>
        ${(source.tables ?? []).map((table) => html`<option value=${table}>${table}</option>`)}
      </select>
    <//>
  <//>`;
}

function Cancel({ source, row, done, close }) {
  const target = path`sources/${source.name}/backfills/cancel`;
  const body = { id: row.id };
  return html`<${Act} title=${`Cancel the backfill of ${row.table}`} verb="Cancel the backfill" danger=${true} close=${close} act=${() => post(target, body)}
    done=${() => { say("The backfill was cancelled."); done(); }} request=${{ method: "POST", target, body, command: cli("source backfill cancel", [source.name], { id: row.id }) }}>
    <p>The ${counted(row.published ?? 0, "row")} that were published stay in the stream. Changes of the table are captured as before. A later backfill begins anew.</p>
  <//>`;
}
