/** Sources: webhooks and captured tables. */

import { html } from "../vendor/preact.js";
import { cli } from "../shared/api.js";
import { figureColumns } from "../shared/figures.js";
import { useLive } from "../shared/live.js";
import { sourceAt, streamAt } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { BackfillsUnderWay, Copies, Empty, Failure, Heading, Loading, State } from "../shared/ui.js";

const COLUMNS = [
  { name: "name", title: "Source", cell: (row) => html`<a href=${sourceAt(row.name)}>${row.name}</a>` },
  { name: "kind", title: "Kind", cell: (row) => (row.kind === "postgres" ? "tables" : row.kind) },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state ?? "active"} title=${row.reason} />` },
  { name: "stream", title: "Fills", cell: (row) => html`<a href=${streamAt(row.stream)}>${row.stream}</a>` },
  ...figureColumns("source"),
  { name: "backfills", title: "Backfills", cell: (row) => html`<${BackfillsUnderWay} rows=${row.backfills} />` },
  { name: "reason", title: "Reason", cell: (row) => row.reason ?? "–", width: "wide" },
];

export default function Sources() {
  const live = useLive("live/sources");
  const rows = live.data?.data;
  return html`
    <${Heading} title="Sources"><${Copies} target="sources" command=${cli("source ls", [])} /><//>
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!rows
      ? live.error ? null : html`<${Loading} />`
      : rows.length
        ? html`<${Table} caption="Sources" columns=${COLUMNS} rows=${rows} id=${(row) => row.name} />`
        : html`<${Empty} title="No sources">
            Capture the tables of a database with <code>headrace source postgres add</code>, or receive webhooks with <code>headrace source webhook add</code>.
          <//>`}
  `;
}
