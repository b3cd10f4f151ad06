/** Jobs: redrives and discards of many dead letters, which servers do in the background. */

import { html } from "../vendor/preact.js";
import { path, post } from "../shared/api.js";
import { Act, open, say } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { consumerAt, useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { counted, number } from "../shared/text.js";
import { Copies, Empty, Failure, Heading, Loading, State, Time, may } from "../shared/ui.js";

const KINDS = { redrive: "Redrive", purge: "Discard" };
const active = (job) => job.state === "waiting" || job.state === "running";

export default function Jobs() {
  const [filters] = useFilters({ id: "" });
  const live = useLive("jobs", 2000);
  const rows = live.data?.data;
  return html`
    <${Heading} title="Jobs"><${Copies} target="jobs" command="headrace job ls" /><//>
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!rows
      ? live.error ? null : html`<${Loading} />`
      : rows.length
        ? html`<${Table} caption="Jobs, the newest first" columns=${columns(live.again)} rows=${rows} id=${(row) => row.id} tone=${(row) => (String(row.id) === filters.id ? "current" : "")} />`
        : html`<${Empty} title="No jobs">When you redrive or discard many dead letters at once, it is done here in the background.<//>`}
  `;
}

const columns = (again) => [
  { name: "what", title: "Job", cell: (row) => html`${KINDS[row.kind] ?? row.kind} <span class="quiet">of</span> <a href=${`${consumerAt(row.stream, row.consumer)}/dead-letters`}>${row.stream} / ${row.consumer}</a>` },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} />` },
  { name: "progress", title: "Progress", cell: (row) => html`<${Progress} job=${row} />` },
  { name: "by", title: "By", cell: (row) => row.created_by ?? "–" },
  { name: "began", title: "Began", cell: (row) => html`<${Time} at=${row.created_at} />` },
  { name: "ended", title: "Ended", cell: (row) => html`<${Time} at=${row.finished_at} />` },
  { name: "error", title: "Error", cell: (row) => (row.error ? html`<code class="brief">${row.error}</code>` : "–"), width: "wide" },
  {
    name: "acts", title: "Acts",
    cell: (row) => (active(row) && may("admin", row.stream) ? html`<button type="button" class="small" onClick=${() => open(Cancel, { job: row, done: again })}>Cancel</button>` : null),
  },
];

function Progress({ job }) {
  const known = job.total !== null && job.total > 0;
  return html`<span class="progress">
    ${known && active(job) ? html`<progress max=${job.total} value=${job.done} aria-label="Done">${job.done}</progress>` : null}
    ${number(job.done)}${known ? ` of ${number(job.total)}` : ""}
  </span>`;
}

function Cancel({ job, done, close }) {
  const target = path`jobs/${job.id}/cancel`;
  return html`<${Act} title="Cancel the job" verb="Cancel the job" danger=${true} close=${close} act=${() => post(target)} done=${() => { say("The job ends after its current step."); done(); }}
    request=${{ method: "POST", target, body: {} }}>
    <p>It ends after its current step. The ${counted(job.done, "dead letter")} that it has ${job.kind === "purge" ? "discarded" : "redriven"} so far stay${job.done === 1 ? "s" : ""} so.</p>
  <//>`;
}
