/** The access tokens of the server: list, create and revoke. */

import { html, useState } from "../vendor/preact.js";
import { cli, path, post, query, remove } from "../shared/api.js";
import { Act, open, say } from "../shared/dialog.js";
import { useLive } from "../shared/live.js";
import { streamAt, useFilters } from "../shared/router.js";
import { Further, Table } from "../shared/table.js";
import { Copies, Copy, Empty, Failure, Field, Heading, Loading, State, Time, may, session } from "../shared/ui.js";

const LIMIT = 100;
const ACTIONS = ["publish", "consume", "admin"];
const LIFETIMES = [["", "never"], ["1d", "in a day"], ["30d", "in 30 days"], ["90d", "in 90 days"], ["365d", "in a year"]];
const DAY = 86_400_000;

const stateOf = (row) => (row.revoked_at ? "revoked" : row.expires_at && Date.parse(row.expires_at) <= Date.now() ? "expired" : "valid");

/** Scopes as words, with links to their streams. */
const Scopes = ({ scopes }) => html`<span class="scopes">${scopes.map((scope) => {
  const [action, stream] = scope.split(":");
  return html`<span class="count" key=${scope}>${action}${stream ? html` <a href=${streamAt(stream)}>${stream}</a>` : ""}</span> `;
})}</span>`;

const COLUMNS = (revoke) => [
  { name: "name", title: "Token", cell: (row) => row.name },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${stateOf(row)} />` },
  { name: "scopes", title: "Scopes", cell: (row) => html`<${Scopes} scopes=${row.scopes} />`, width: "wide" },
  { name: "expires", title: "Expires", cell: (row) => (row.expires_at ? html`<${Time} at=${row.expires_at} ago=${true} />` : "never") },
  { name: "created", title: "Created", cell: (row) => html`<${Time} at=${row.created_at} />` },
  { name: "revoked", title: "Revoked", cell: (row) => html`<${Time} at=${row.revoked_at} />` },
  { name: "id", title: "Id", cell: (row) => html`<code>${row.id}</code>`, hide: "phone" },
  { name: "acts", title: "Acts", cell: (row) => (row.revoked_at ? null : html`<button type="button" class="small danger" aria-label=${`Revoke ${row.name}`} onClick=${() => revoke(row)}>Revoke</button>`) },
];

export default function Tokens() {
  const [filters, change] = useFilters({ after: "" });
  const target = `tokens${query({ ...filters, limit: LIMIT })}`;
  const allowed = may("admin");
  const live = useLive(allowed ? target : null, 3000);
  const rows = live.data?.data;
  const revoke = (row) => open(Revoke, { row, done: live.again });
  const create = () => open(Create, { first: session.me.via === "open", done: live.again });
  return html`
    <${Heading} title="Tokens">
      ${allowed ? html`<button type="button" class="primary" onClick=${create}>Create a token</button>` : null}
      <${Copies} target=${target} command=${cli("token ls", [])} />
    <//>
    ${allowed ? null : html`<${Empty} title="Your token may not see tokens">The scope <code>admin</code> for all streams is needed.<//>`}
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!rows
      ? live.error || !allowed ? null : html`<${Loading} />`
      : rows.length
        ? html`<${Table} caption="Access tokens" columns=${COLUMNS(revoke)} rows=${rows} id=${(row) => row.id} />`
        : html`<${Empty} title="No tokens">Everyone who reaches the server may do everything, until the first token exists.<//>`}
    <${Further} answer=${live.data} after=${filters.after} change=${change} />
  `;
}

const EMPTY = { name: "", action: "consume", stream: "", expires: "" };

/** @param {any} props `first`: whether the server needs no token so far */
function Create({ first, done, close }) {
  const [draft, setDraft] = useState({ ...EMPTY, action: first ? "admin" : EMPTY.action });
  const [added, setAdded] = useState([]);
  const [created, setCreated] = useState(null);
  const edit = (name) => (event) => setDraft({ ...draft, [name]: event.target.value.trim() });
  if (created) return html`<${Created} created=${created} close=${close} />`;
  const scope = draft.stream ? `${draft.action}:${draft.stream}` : draft.action;
  const scopes = [...new Set([...added, ...(added.length && !draft.stream ? [] : [scope])])];
  const body = { name: draft.name, scopes, ...(draft.expires ? { expires_in_ms: parseInt(draft.expires, 10) * DAY } : {}) };
  const add = () => {
    setAdded([...new Set([...added, scope])]);
    setDraft({ ...draft, stream: "" });
  };
  return html`<${Act} title="Create a token" verb="Create the token" ready=${Boolean(draft.name)} close=${close} stays=${true}
    act=${() => post("tokens", body)} done=${(answer) => { setCreated(answer); done(); }}
    request=${draft.name ? { method: "POST", target: "tokens", body, command: cli("token add", [draft.name], { scope: scopes, expires: draft.expires }) } : undefined}>
    <p>${first
      ? "It is the first token. From then on, every request to the server needs one, and you sign in with it. Give it the scope admin, to be able to create others."
      : "Programs and people use the server with it. It is shown once."}</p>
    <${Field} id="token-name" label="Name" hint="Letters, digits, and . _ @ - . A name can't be used twice."><input id="token-name" required maxlength="64" autocomplete="off" value=${draft.name} onInput=${edit("name")} aria-describedby="token-name-hint" /><//>
    <div class="grid">
      <${Field} id="token-action" label="May"><select id="token-action" value=${draft.action} onChange=${edit("action")}>${ACTIONS.map((one) => html`<option value=${one}>${one}</option>`)}</select><//>
      <${Field} id="token-stream" label="Stream" hint="Empty for all streams."><input id="token-stream" value=${draft.stream} onInput=${edit("stream")} aria-describedby="token-stream-hint" /><//>
      <${Field} id="token-expires" label="Expires"><select id="token-expires" value=${draft.expires} onChange=${edit("expires")}>${LIFETIMES.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select><//>
    </div>
    <ul class="changes" aria-label="Scopes">${scopes.map((one) => html`<li key=${one}><code>${one}</code>${added.includes(one) ? html` <button type="button" class="quiet small" aria-label=${`Remove ${one}`} onClick=${() => setAdded(added.filter((other) => other !== one))}>×</button>` : null}</li>`)}</ul>
    <p><button type="button" class="small" onClick=${add}>Add a scope</button></p>
  <//>`;
}

function Created({ created, close }) {
  return html`<h2 id="dialog-title">The token ${created.name}</h2>
    <p>Save it now. It can't be shown again, since the server stores only its digest.</p>
    <pre class="secret" tabindex="0" role="region" aria-label="The new token">${created.token}</pre>
    <div class="act-buttons"><${Copy} text=${created.token} kind="primary">Copy<//><button type="button" onClick=${close}>Close</button></div>`;
}

function Revoke({ row, done, close }) {
  const target = path`tokens/${row.id}`;
  return html`<${Act} title=${`Revoke ${row.name}`} verb="Revoke the token" danger=${true} close=${close} act=${() => remove(target)} done=${() => { say(`The token ${row.name} is revoked.`); done(); }}
    request=${{ method: "DELETE", target, command: cli("token revoke", [row.id]) }}>
    <p>Servers refuse requests with it within two seconds, and sessions that were begun with it end.${row.name === session.me?.name ? " It is the token of your own session, so you are signed out." : ""} It stays in the list, and its name can't be used again.</p>
  <//>`;
}
