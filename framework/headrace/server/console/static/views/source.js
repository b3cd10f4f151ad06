/** One source: its state with the fix, backfills, failed changes, or the webhooks received and refused. */

import { html } from "../vendor/preact.js";
import { cli, path, post } from "../shared/api.js";
import { Act, open, say } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { messageAt, streamAt } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { counted, duration, number, rate, size } from "../shared/text.js";
import { Copies, Copy, Empty, Facts, Failure, Heading, Loading, Section, State, Time, may } from "../shared/ui.js";
import { Backfills } from "./backfills.js";

export default function Source({ names: [name] }) {
  const source = useLive(path`sources/${name}`, 5000);
  const sources = useLive("live/sources");
  const found = source.data;
  const trail = [["Sources", "sources"]];
  if (!found) return html`<${Heading} title=${name} trail=${trail} />${source.error ? html`<${Failure} error=${source.error} again=${source.again} />` : html`<${Loading} />`}`;
  const row = sources.data?.data.find((one) => one.name === name) ?? {};
  const captures = found.kind === "postgres";
  return html`
    <${Heading} title=${name} trail=${trail} state=${html`<${State} state=${row.state ?? found.state ?? "active"} />`}>
      ${captures && may("admin") ? html`<${Acts} source=${found} again=${source.again} />` : null}
    <//>
    ${captures ? html`<${Capture} source=${found} row=${row} />` : html`<${Webhook} source=${found} />`}
  `;
}

function Acts({ source, again }) {
  const paused = source.state === "paused";
  return html`<button type="button" onClick=${() => open(PauseOrResume, { name: source.name, paused, done: again })}>${paused ? "Resume" : "Pause"}</button>`;
}

function PauseOrResume({ name, paused, done, close }) {
  const target = path`sources/${name}` + (paused ? "/resume" : "/pause");
  const verb = paused ? "Resume" : "Pause";
  return html`<${Act} title=${`${verb} ${name}`} verb=${verb} close=${close} act=${() => post(target)} done=${() => { say(`${name} ${paused ? "is resumed" : "is paused"}.`); done(); }}
    request=${{ method: "POST", target, body: {}, command: cli(`source postgres ${verb.toLowerCase()}`, [name]) }}>
    <p>${paused ? "Capturing continues from where it was paused." : "Changes are no longer captured. The captured server keeps its WAL for the source meanwhile, which takes disk space there, until it is resumed."}</p>
  <//>`;
}

function Capture({ source, row }) {
  const reason = row.reason ?? source.reason;
  const mend = row.mend ?? source.mend;
  return html`
    ${reason ? html`<p class="reason">${reason}</p>` : null}
    ${mend ? html`<div class="mend"><p>To fix it:</p><pre tabindex="0" role="region" aria-label="The statement that fixes it">${mend}</pre><${Copy} text=${mend}>Copy<//></div>` : null}
    <${Facts} facts=${[
      ["Fills", html`<a href=${streamAt(source.stream)}>${source.stream}</a>`],
      ["Tables", html`<code>${(source.tables ?? []).join(", ") || "–"}</code>`],
      ["Replication slot", html`<code>${source.replication_slot}</code>`],
      ["Position", source.capture.position ? html`<code>${source.capture.position}</code>` : "–", "in the WAL of the captured server. All that was committed up to it is in the stream."],
      ["Captured", `${number(source.capture.captured)}, ${rate(row.changes_rate)}/s`, "changes"],
      ["Behind", size(row.behind_bytes), "WAL that is not captured yet"],
      ["WAL held", size(row.wal_held_bytes), "that the slot keeps at the captured server"],
      ["Last commit", html`<${Time} at=${source.capture.facts?.committed_at} />`],
      ["Changed", html`<${Time} at=${source.updated_at} />`],
    ]} />
    <${Backfills} source=${source} underWay=${row.backfills ?? []} />
    <${Failures} source=${source} />
  `;
}

const FAILURES = [
  { name: "key", title: "Change", cell: (row) => html`<code class="key">${row.key}</code>` },
  { name: "at", title: "Failed", cell: (row) => html`<${Time} at=${row.failed_at} />` },
  { name: "attempts", title: "Attempts", cell: (row) => number(row.attempts), number: true },
  { name: "error", title: "Error", cell: (row) => html`<code class="brief">${row.error}</code>${row.retry ? html` <span class="quiet">It is tried again soon.</span>` : null}`, width: "wide" },
  { name: "data", title: "Data", cell: (row) => html`<code class="brief">${JSON.stringify(row.data)}</code>`, width: "wide", hide: "phone" },
];

function Failures({ source }) {
  const target = path`sources/${source.name}/failures`;
  const live = useLive(target, 5000);
  const rows = live.data?.data;
  if (!rows?.length) return live.error && !live.data ? html`<${Failure} error=${live.error} />` : null;
  const more = live.data.next ?? null;
  const act = (kind, ids = null) => open(FailureAct, { kind, source, ids, count: ids ? ids.length : rows.length, more: !ids && more !== null, done: live.again });
  const columns = may("admin") ? [...FAILURES, { name: "acts", title: "Acts", cell: (row) => html`<span class="acts">
    <button type="button" class="small" onClick=${() => act("retry", [row.id])}>Retry</button>
    <button type="button" class="small danger" onClick=${() => act("drop", [row.id])}>Drop</button></span>` }] : FAILURES;
  return html`<${Section} title="Failed changes" id="failures" acts=${html`
      ${may("admin") ? html`<button type="button" onClick=${() => act("retry")}>Retry all</button><button type="button" class="danger" onClick=${() => act("drop")}>Drop all</button>` : null}
      <${Copies} target=${target} command=${cli("source postgres failures ls", [source.name])} />`}>
    <${Table} caption="Changes that could not become messages" columns=${columns} rows=${rows} id=${(row) => row.id} />
  <//>`;
}

function FailureAct({ kind, source, ids, count, more, done, close }) {
  const target = path`sources/${source.name}/failures` + `/${kind}`;
  const body = ids ? { ids } : {};
  const words = `${kind === "retry" ? "Retry" : "Drop"} ${ids ? counted(count, "failed change") : "all failed changes"}`;
  const which = `${counted(count, "change")}${more ? " or more" : ""} ${count === 1 && !more ? "is" : "are"}`;
  return html`<${Act} title=${words} verb=${words} danger=${kind === "drop"} close=${close} act=${() => post(target, body)}
    done=${(answer) => { say(`${counted(answer.data.retried ?? answer.data.dropped, "change")} ${kind === "retry" ? "will be tried again" : "dropped"}.`); done(); }}
    request=${{ method: "POST", target, body, command: cli(`source postgres failures ${kind}`, [source.name], { id: ids ?? undefined }) }}>
    <p>${kind === "retry" ? `${which} made into messages again, at the end of the stream.` : `${which} deleted, and never in the stream.`}</p>
  <//>`;
}

const DELIVERIES = (stream) => [
  { name: "at", title: "At", cell: (row) => html`<${Time} at=${row.at} />` },
  { name: "accepted", title: "Result", cell: (row) => html`<${State} state=${row.accepted ? "accepted" : "refused"} />` },
  { name: "status", title: "Status", cell: (row) => row.status, number: true },
  { name: "key", title: "Key", cell: (row) => (row.key ? html`<code class="key">${row.key}</code>` : "–") },
  { name: "seq", title: "Message", cell: (row) => (row.seq ? html`<a href=${messageAt(stream, row.seq)}>${number(row.seq)}</a>` : "–"), number: true },
  { name: "bytes", title: "Size", cell: (row) => size(row.bytes), number: true },
  { name: "remote", title: "From", cell: (row) => row.remote ?? "–" },
  { name: "reason", title: "Reason", cell: (row) => row.reason ?? "–", width: "wide" },
];

function Webhook({ source }) {
  const target = path`sources/${source.name}/deliveries?limit=100`;
  const live = useLive(target, 3000);
  const rows = live.data?.data;
  const address = new URL(`..${source.path}`, document.baseURI).href;
  return html`
    <${Facts} facts=${[
      ["Fills", html`<a href=${streamAt(source.stream)}>${source.stream}</a>`],
      ["Address", html`<code>${address}</code> <${Copy} text=${address}>Copy<//>`],
      ["Signature", source.secret ? "checked" : html`<span class="warn">none: everyone who reaches the server can send</span>`],
      ["Template of keys", html`<code>${source.key}</code>`],
      source.tolerance ? ["Tolerance", duration(source.tolerance)] : null,
    ]} />
    <${Section} title="Lately received and refused" id="deliveries" acts=${html`<${Copies} target=${target} />`}>
      ${rows?.length
        ? html`<${Table} caption="Deliveries, the newest first" columns=${DELIVERIES(source.stream)} rows=${rows} id=${(row) => `${row.at} ${row.seq} ${row.status}`} />`
        : live.error && !live.data ? html`<${Failure} error=${live.error} /> ` : rows ? html`<${Empty} title="Nothing was delivered yet">Give the address above to the sender.<//>` : html`<${Loading} />`}
    <//>
  `;
}
