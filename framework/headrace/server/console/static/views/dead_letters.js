/** The dead letters of a consumer: in groups, filtered, one by one, and what can be done with them. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { ROOT, cli, get, path, query } from "../shared/api.js";
import { open } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { consumerAt, messageAt, streamAt, useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { counted, number, pretty, relative } from "../shared/text.js";
import { Copies, Copy, Empty, Failure, Heading, Loading, State, Time, may } from "../shared/ui.js";
import { DeadLetterAct } from "./dead_letter_acts.js";

const LIMIT = 50;
const GROUPS = [["type", "type of error"], ["error", "error"], ["reason", "reason"], ["key", "key"], ["hour", "hour"], ["day", "day"]];
const FILTERS = { filter: "", where: "", key: "", error_type: "", error: "", reason: "", since: "", until: "" };

/** The filters that are set, as the API takes them. A value of `""` that is meant is written as `none`. */
function selection(filters) {
  const found = {};
  for (const name of Object.keys(FILTERS)) {
    if (!filters[name]) continue;
    found[name] = filters[name] === "none" && name.startsWith("error") ? "" : name === "since" || name === "until" ? new Date(filters[name]).toISOString() : filters[name];
  }
  return found;
}

const asQuery = (found) => {
  const text = new URLSearchParams(Object.entries(found).map(([name, value]) => [name, String(value)])).toString();
  return text ? `&${text}` : "";
};

export default function DeadLetters({ names: [stream, consumer] }) {
  const [filters, change] = useFilters({ ...FILTERS, by: "type" });
  const row = useLive(path`live/streams/${stream}/consumers/${consumer}`, 2000);
  const chosen = selection(filters);
  const at = path`streams/${stream}/consumers/${consumer}/dead_letters`;
  const total = row.data?.data.dead_letters;
  const [round, setRound] = useState(0);
  const again = () => setRound((old) => old + 1);
  const trail = [["Streams", "streams"], [stream, streamAt(stream)], [consumer, consumerAt(stream, consumer)]];
  const admin = may("admin", stream);
  const act = (kind) => open(DeadLetterAct, { kind, stream, consumer, selection: chosen, what: Object.keys(chosen).length ? "all that match the filters" : "all dead letters of the consumer", done: again });
  return html`
    <${Heading} title="Dead letters" trail=${trail} state=${total === undefined ? null : html`<span class=${`count ${total ? "bad" : ""}`}>${number(total)}</span>`}>
      <${Export} stream=${stream} consumer=${consumer} asked=${asQuery(chosen)}>Export<//>
      ${admin ? html`<button type="button" onClick=${() => act("redrive")}>Redrive all that match</button><button type="button" class="danger" onClick=${() => act("purge")}>Discard all that match</button>` : null}
    <//>
    <${Groups} at=${at} filters=${filters} chosen=${chosen} change=${change} round=${`${round} ${total}`} />
    <${Search} filters=${filters} change=${change} />
    <${List} key=${JSON.stringify(chosen)} stream=${stream} consumer=${consumer} at=${at} chosen=${chosen} total=${total} round=${round} again=${again} admin=${admin} />
  `;
}

/** A link that downloads dead letters as NDJSON. @param {{stream: string, consumer: string, asked: string, small?: boolean, children: any}} props */
function Export({ stream, consumer, asked, small = false, children }) {
  const target = path`streams/${stream}/consumers/${consumer}/dead_letters` + `/export?${asked.replace(/^[?&]/, "")}`;
  return html`<a class=${small ? "button small" : "button"} data-native download=${`${stream}.${consumer}.dead-letters.ndjson`} href=${new URL(target, ROOT).href}>${children}</a>`;
}

/** The filter that shows a group only. */
function narrowing(by, group) {
  if (by === "type") return { error_type: group.value ?? "none" };
  if (by === "error") return { error: group.value ?? "none" };
  if (by === "reason") return { reason: group.value };
  if (by === "key") return { key: group.value };
  return null;
}

function Groups({ at, filters, chosen, change, round }) {
  const target = `${at}/groups?by=${filters.by}&limit=12${asQuery(chosen)}`;
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    const aborting = new AbortController();
    get(target, aborting.signal).then(
      (data) => setState({ data, error: null }),
      (error) => aborting.signal.aborted || setState({ data: null, error }),
    );
    return () => aborting.abort();
  }, [target, round]);
  const groups = state.data?.data ?? [];
  if (!groups.length && !state.error) return null;
  return html`<section class="section" aria-labelledby="groups">
    <div class="section-head">
      <h2 id="groups">Groups</h2>
      <label>by <select value=${filters.by} onChange=${(event) => change({ by: event.target.value })}>${GROUPS.map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
    </div>
    <${Failure} error=${state.error} />
    <ul class="groups">
      ${groups.map((group) => {
        const next = narrowing(filters.by, group);
        return html`<li key=${group.value}>
          <span class="count">${number(group.messages)}</span>
          ${next ? html`<button type="button" class="link" onClick=${() => change(next)}>${group.value || "none"}</button>` : html`<span>${group.value}</span>`}
          <span class="quiet">last ${relative(group.last_died_at)}</span>
        </li>`;
      })}
    </ul>
  </section>`;
}

const FIELDS = [
  ["filter", "Keys", "orders.us.>", "search"],
  ["where", "Condition", "data.total > 100", "search"],
  ["key", "Exactly the key", "", "search"],
  ["since", "Died since", "", "datetime-local"],
  ["until", "Died before", "", "datetime-local"],
];

function Search({ filters, change }) {
  const [draft, setDraft] = useState(filters);
  useEffect(() => setDraft(filters), [JSON.stringify(filters)]);
  const onSubmit = (event) => {
    event.preventDefault();
    change(Object.fromEntries(FIELDS.map(([name]) => [name, draft[name].trim()])));
  };
  const set = ["error_type", "error", "reason"].filter((name) => filters[name]);
  const any = Object.keys(FILTERS).some((name) => filters[name]);
  return html`<form class="filters" role="search" aria-label="Filter dead letters" onSubmit=${onSubmit}>
    ${FIELDS.map(([name, title, example, type], index) => html`<label class=${index < 3 ? "grow" : ""}>${title} <input type=${type} placeholder=${example} data-search=${index === 0 ? "" : undefined} value=${draft[name]} onInput=${(event) => setDraft({ ...draft, [name]: event.target.value })} /></label>`)}
    <button type="submit" class="primary">Filter</button>
    ${any ? html`<button type="button" onClick=${() => change({ ...FILTERS })}>Clear</button>` : null}
    ${set.map((name) => html`<span class="chip" key=${name}>${name.replace("_", " ")}: <code>${filters[name]}</code><button type="button" aria-label=${`Remove the filter ${name}`} onClick=${() => change({ [name]: "" })}>×</button></span>`)}
  </form>`;
}

function List({ stream, consumer, at, chosen, total, round, again, admin }) {
  const [state, setState] = useState({ rows: [], next: null, loading: true, error: null });
  const [selected, setSelected] = useState(new Set());
  const [shown, setShown] = useState(null);
  const first = `${at}?limit=${LIMIT}${asQuery(chosen)}`;
  const known = useRef(undefined);
  const load = async (after) => {
    setState((old) => ({ ...old, loading: true }));
    try {
      const answer = await get(after === null ? first : `${first}&after=${after}`);
      setState((old) => ({ rows: after === null ? answer.data : [...old.rows, ...answer.data], next: answer.next ?? null, loading: false, error: null }));
    } catch (error) {
      setState((old) => ({ ...old, loading: false, error }));
    }
  };
  useEffect(() => {
    setSelected(new Set());
    load(null);
  }, [round]);
  // The list follows the number of dead letters, as long as nothing is selected or looked at.
  useEffect(() => {
    const changed = known.current !== undefined && total !== undefined && known.current !== total;
    known.current = total;
    if (changed && !selected.size && shown === null && state.rows.length <= LIMIT) load(null);
  }, [total]);
  const act = (kind, seqs) => open(DeadLetterAct, { kind, stream, consumer, selection: { seqs }, count: seqs.length, done: again });
  if (state.error) return html`<${Failure} error=${state.error} again=${() => load(null)} />`;
  if (!state.rows.length) {
    if (state.loading) return html`<${Loading} />`;
    return Object.keys(chosen).length
      ? html`<${Empty} title="No dead letter matches">Clear the filters to see all.<//>`
      : html`<${Empty} title="No dead letters">A message that fails <code>max_deliver</code> times, or is rejected, comes here with its error.<//>`;
  }
  const seqs = [...selected];
  return html`
    <div class="list-head">
      <span role="status">${selected.size ? `${number(selected.size)} selected` : counted(state.rows.length, "dead letter") + (state.next === null ? "" : " shown")}</span>
      ${selected.size && admin
        ? html`<button type="button" class="small" onClick=${() => act("redrive", seqs)}>Redrive the selected</button>
            <button type="button" class="small danger" onClick=${() => act("purge", seqs)}>Discard the selected</button>`
        : null}
      ${selected.size ? html`<${Export} stream=${stream} consumer=${consumer} asked=${query({ seqs })} small=${true}>Export the selected<//>` : null}
      ${selected.size ? html`<${Copy} text=${state.rows.filter((row) => selected.has(row.seq)).map((row) => JSON.stringify(row)).join("\n")}>Copy the selected<//>` : null}
      <${Copies} target=${first} command=${cli("consumer dead-letters ls", [stream, consumer], { ...chosen, error_type: undefined, "error-type": chosen.error_type })} />
    </div>
    <${Table} caption=${`Dead letters of ${consumer}`} rows=${state.rows} id=${(row) => row.seq} columns=${columns(stream, shown, setShown)}
      selected=${selected} onSelect=${setSelected} selectLabel=${(row) => `Select message ${row.seq}`}
      more=${(row) => (row.seq === shown ? html`<${Letter} stream=${stream} consumer=${consumer} row=${row} admin=${admin} act=${act} />` : null)} />
    ${state.next === null ? null : html`<p><button type="button" disabled=${state.loading} onClick=${() => load(state.next)}>Show more</button></p>`}
  `;
}

const columns = (stream, shown, setShown) => [
  { name: "seq", title: "Seq", cell: (row) => html`<a href=${messageAt(stream, row.seq)}>${number(row.seq)}</a>` },
  { name: "key", title: "Key", cell: (row) => html`<code class="key">${row.key}</code>`, width: "key-column" },
  { name: "reason", title: "Reason", cell: (row) => html`<${State} state=${row.reason} tone=${row.blocks ? "bad" : "plain"} />${row.blocks ? html` <span class="bad">blocks its key</span>` : null}` },
  { name: "attempts", title: "Attempts", cell: (row) => number(row.attempts), number: true },
  { name: "died", title: "Died", cell: (row) => html`<${Time} at=${row.died_at} />` },
  {
    name: "error", title: "Error", width: "wide",
    cell: (row) => html`<button type="button" class="link" aria-expanded=${row.seq === shown} onClick=${() => setShown(row.seq === shown ? null : row.seq)}><code class="brief">${row.error || row.error_type || "none"}</code></button>`,
  },
];

function Letter({ stream, consumer, row, admin, act }) {
  return html`<div class="letter">
    <div class="row-acts">
      ${admin ? html`<button type="button" class="small" onClick=${() => act("redrive", [row.seq])}>Redrive</button> <button type="button" class="small danger" onClick=${() => act("purge", [row.seq])}>Discard</button>` : null}
      <${Export} stream=${stream} consumer=${consumer} asked=${query({ seqs: [row.seq] })} small=${true}>Export<//>
      <${Copy} text=${pretty(row)}>Copy as JSON<//>
    </div>
    <h3>${row.error_type ?? "Error"}</h3>
    <pre tabindex="0" role="region" aria-label="Traceback">${row.traceback ?? row.error ?? "There is no traceback."}</pre>
    <h3>Data</h3>
    <pre class="json" tabindex="0" role="region" aria-label="Data of the dead letter">${pretty(row.data)}</pre>
    ${row.headers ? html`<h3>Headers</h3><pre class="json" tabindex="0" role="region" aria-label="Headers of the dead letter">${pretty(row.headers)}</pre>` : null}
  </div>`;
}

