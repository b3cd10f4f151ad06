/** Backfills and verifications of a source: start, progress, result, cancel. */

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
    { name: "kind", title: "Kind", cell: (row) => row.kind },
    { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} />` },
    { name: "rows", title: "Rows", cell: (row) => `${number(row.published)}${row.total ? ` of about ${number(row.total)}` : ""}`, number: true },
    { name: "progress", title: "Progress", cell: (row) => (row.done === null || ENDED.includes(row.state) ? "–" : html`<span class="progress"><progress max="1" value=${row.done} aria-label="Done"></progress> ${Math.round(row.done * 100)} %</span>`) },
    { name: "left", title: "Left", cell: (row) => (ENDED.includes(row.state) ? "–" : duration(row.time_left)), number: true },
    { name: "began", title: "Began", cell: (row) => html`<${Time} at=${row.started_at ?? row.created_at} />` },
    { name: "error", title: "Result", cell: (row) => (row.reason ? html`<code class="brief">${row.reason}</code>` : html`<${Differences} row=${row} />`), width: "wide" },
    ...(admin ? [{ name: "acts", title: "Acts", cell: (row) => (ENDED.includes(row.state) ? null : html`<button type="button" class="small" onClick=${() => open(Cancel, { source, row, done: live.again })}>Cancel</button>`) }] : []),
  ];
  const verified = rows.find((row) => row.kind !== "backfill" && row.state === "done");
  return html`<${Section} title="Backfills" id="backfills" acts=${html`
      ${admin ? html`<button type="button" onClick=${() => open(Verify, { source, done: live.again })}>Verify</button>
        <button type="button" onClick=${() => open(Start, { source, done: live.again })}>Start a backfill</button>` : null}
      <${Copies} target=${target} command=${cli("source backfill ls", [source.name])} />`}>
    <${Failure} error=${live.data ? null : live.error} />
    ${verified ? html`<p>Last verified <${Time} at=${verified.finished_at} />, <code>${verified.table}</code>: <${Differences} row=${verified} /></p>` : null}
    ${rows.length
      ? html`<${Table} caption=${`Backfills of ${source.name}`} columns=${columns} rows=${rows} id=${(row) => row.id} />`
      : html`<${Empty} title="No backfills">A backfill publishes the rows that a table already has, while its changes are captured.<//>`}
  <//>`;
}

function Differences({ row }) {
  const found = row.differences;
  if (!found) return "–";
  const kinds = [["differs", "differ"], ["missing", "missing"], ["extra", "extra"]].filter(([name]) => found[name]);
  const others = [["kept", "kept"], ["unchecked", "not checked"]].filter(([name]) => found[name]);
  const parts = kinds.length ? kinds.map(([name, word]) => `${number(found[name])} ${word}`) : [row.state === "done" ? "equal" : "equal so far"];
  if (kinds.length && row.kind === "repair") parts.push("repaired");
  const text = [...parts, ...others.map(([name, word]) => `${number(found[name])} ${word}`)].join(", ");
  const title = (found.examples ?? []).map((one) => `${one.kind}: ${one.key}`).join("\n");
  return html`<span class=${kinds.length && row.kind === "verification" ? "warn" : null} title=${title || null}>${text}</span>`;
}

function Verify({ source, done, close }) {
  const [repair, setRepair] = useState(false);
  const target = path`sources/${source.name}/verify`;
  const body = { repair };
  return html`<${Act} title=${`Verify ${source.name}`} verb=${repair ? "Verify and repair" : "Verify"} close=${close} act=${() => post(target, body)} done=${() => { say("The verification begins."); done(); }}
    request=${{ method: "POST", target, body, command: cli("source postgres verify", [source.name], { repair: repair || undefined }) }}>
    <p>Every row of the source's tables is compared with the stream ${source.stream}. Changes of the tables are captured meanwhile. You can cancel it.</p>
    <label class="check" for="verify-repair"><input type="checkbox" id="verify-repair" checked=${repair} onChange=${(event) => setRepair(event.target.checked)} /> Publish what differs or is missing, and deletes of rows that are gone</label>
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
  return html`<${Act} title=${`Cancel the ${row.kind} of ${row.table}`} verb=${`Cancel the ${row.kind}`} danger=${true} close=${close} act=${() => post(target, body)}
    done=${() => { say(`The ${row.kind} was cancelled.`); done(); }} request=${{ method: "POST", target, body, command: cli("source backfill cancel", [source.name], { id: row.id }) }}>
    <p>The ${counted(row.published ?? 0, "row")} that were published stay in the stream. Changes of the table are captured as before. A later one starts from the first row.</p>
  <//>`;
}
