/** One stream: its messages, consumers, charts, retention and size. */

import { html } from "../vendor/preact.js";
import { cli, path, query } from "../shared/api.js";
import { Samples } from "../shared/chart.js";
import { open } from "../shared/dialog.js";
import { Figures } from "../shared/figures.js";
import { useKept, useLive } from "../shared/live.js";
import { streamAt, useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { counted, duration, number, size } from "../shared/text.js";
import { Copies, Empty, Facts, Failure, Heading, Loading, Section, State, Tabs, Time, may } from "../shared/ui.js";
import { consumerColumns } from "./consumers.js";
import { Publish } from "./publish.js";
import { EditSettings } from "./settings.js";
import { Messages } from "./messages.js";
import { Scheduled } from "./scheduled.js";

const CHARTS = [
  ["Published per second", [["publish_rate", "published"]], "rate"],
  ["Lag of its consumers", [["lag", "messages behind"]], "count"],
  ["Parked and blocked", [["parked", "parked"], ["blocked", "blocked"]], "count"],
  ["Dead letters", [["dead_letters", "dead letters"]], "count"],
];

export default function Stream({ names: [name] }) {
  const [filters, change] = useFilters({ tab: "messages", span: "1h" });
  const live = useLive(path`live/streams/${name}`);
  const consumers = useLive(`live/consumers${query({ stream: name, limit: 200, sort: "lag", desc: true })}`);
  const row = live.data?.data;
  const info = useKept(row?.info);
  if (!row) return html`<${Heading} title=${name} trail=${[["Streams", "streams"]]} />${live.error ? html`<${Failure} error=${live.error} again=${live.again} />` : html`<${Loading} />`}`;
  const found = consumers.data?.data ?? [];
  return html`
    <${Heading} title=${name} trail=${[["Streams", "streams"]]} state=${html`<${State} state=${row.state} />`}>
      ${may("admin", name) && info ? html`<button type="button" onClick=${() => open(EditSettings, { kind: "stream", target: path`streams/${name}`, info, command: ["stream edit", [name]], done: live.again })}>Edit settings</button>` : null}
      ${may("publish", name) ? html`<button type="button" class="primary" onClick=${() => open(Publish, { stream: name, consumers: found })}>Publish</button>` : null}
    <//>
    <${Figures} kind="stream" row=${row} label="State of the stream" />
    <${Tabs} label="Parts of the stream" current=${filters.tab} href=${(tab) => `${streamAt(name)}${tab === "messages" ? "" : `?tab=${tab}`}`}
      tabs=${[["messages", "Messages"], ["consumers", "Consumers", row.consumers], ["scheduled", "Scheduled", row.scheduled], ["charts", "Charts"], ["settings", "Retention and size"]]} />
    ${filters.tab === "messages" ? html`<${Messages} stream=${name} lastSeq=${row.last_seq} />` : null}
    ${filters.tab === "consumers" ? html`<${Consumers} stream=${name} rows=${consumers.data ? found : null} />` : null}
    ${filters.tab === "scheduled" ? html`<${Scheduled} stream=${name} />` : null}
    ${filters.tab === "charts" ? html`<${Samples} kind="stream" stream=${name} charts=${CHARTS} span=${filters.span} onSpan=${(span) => change({ span }, { replace: true })} />` : null}
    ${filters.tab === "settings" && info ? html`<${Settings} info=${info} />` : null}
  `;
}

function Consumers({ stream, rows }) {
  if (!rows) return html`<${Loading} />`;
  return html`<${Section} title="Consumers" id="consumers" acts=${html`<${Copies} target=${path`streams/${stream}/consumers`} command=${cli("consumer ls", [stream])} />`}>
    ${rows.length
      ? html`<${Table} caption=${`Consumers of ${stream}`} columns=${consumerColumns(false)} rows=${rows} id=${(row) => row.id} />`
      : html`<${Empty} title="The stream has no consumers">Its messages are kept as its retention says. Create one with <code>headrace consumer add ${stream} NAME</code>.<//>`}
  <//>`;
}

function Settings({ info }) {
  const room = info.max_storage ? Math.min(1, info.size / info.max_storage) : null;
  return html`<div class="two">
    <${Section} title="Retention" id="retention">
      <${Facts} facts=${[
        ["Policy", info.retention === "interest" ? "Kept until every consumer is done with it" : "Limits"],
        ["Kept for at most", info.retain_up_to === null ? "no limit" : duration(info.retain_up_to)],
        ["Kept for at least", info.retain_at_least === null ? "no limit" : duration(info.retain_at_least)],
        ["Size on disk at most", info.max_storage === null ? "no limit" : size(info.max_storage)],
        info.full ? ["Full", html`<${State} state="full" tone="bad" /> Publishing is refused until messages may go.`] : null,
        ["One message per key", info.one_message_per_key ? "yes" : "no"],
        ["Repeated message ids", `ignored for ${duration(info.dedupe_window)}`],
        info.index_keys ? ["Index of keys", "yes"] : null,
      ]} />
    <//>
    <${Section} title="Size" id="size">
      <${Facts} facts=${[
        ["Messages", number(info.messages), info.messages >= 10_000 ? "estimated" : "exact"],
        ["On disk", size(info.size)],
        ["Segments", number(info.segments)],
        ["First seq", number(info.first_seq)],
        ["Last seq", number(info.last_seq)],
        ["Scheduled for later", info.scheduled ? html`${counted(info.scheduled, "message")}, the next <${Time} at=${info.next_scheduled} ago=${true} />` : "none"],
        ["Created", html`<${Time} at=${info.created_at} />`],
        ["Changed", html`<${Time} at=${info.updated_at} />`],
        ["Id", html`<code>${info.id}</code>`],
      ]} />
      ${room === null ? null : html`<meter min="0" max="1" high="0.9" value=${room} aria-label="Part of the largest size that is used"></meter>`}
    <//>
  </div>`;
}
