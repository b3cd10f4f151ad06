/** Redriving and discarding dead letters: a few immediately, all that match as a job in the background. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { cli, path, post } from "../shared/api.js";
import { Act, say } from "../shared/dialog.js";
import { counted } from "../shared/text.js";
import { Failure } from "../shared/ui.js";

/** Up to so many are done in one request. More are a job. */
const AT_ONCE = 1000;

const VERBS = { redrive: ["Redrive", "redriven"], purge: ["Discard", "discarded"] };
const EFFECTS = {
  redrive: "They are delivered again, in order, and their attempts are counted from zero. A key that one of them blocks continues.",
  purge: "They are deleted for good, with their errors and tracebacks. The messages stay in the stream. A key that one of them blocks continues with its next message.",
};

/** @param {Record<string, any>} selection as the API takes it */
const options = ({ seqs, error_type, ...others }) => ({ seq: seqs, "error-type": error_type, ...others });

/**
 * @param {{kind: "redrive" | "purge", stream: string, consumer: string, selection: Record<string, any>, count?: number, what?: string,
 *   done: () => void, close: () => void}} props `count` is left out where it must be counted first
 */
export function DeadLetterAct({ kind, stream, consumer, selection, count, what, done, close }) {
  const at = path`streams/${stream}/consumers/${consumer}/dead_letters/${kind}`;
  const [counting, setCounting] = useState({ count, error: null });
  useEffect(() => {
    if (count !== undefined) return;
    post(at, { ...selection, dry_run: true }).then(
      (answer) => setCounting({ count: answer.data.redriven ?? answer.data.purged, error: null }),
      (error) => setCounting({ count: undefined, error }),
    );
  }, []);
  const many = !selection.seqs && (counting.count ?? 0) > AT_ONCE;
  const asJob = many || (!selection.seqs && count === undefined);
  const [verb, past] = VERBS[kind];
  const words = counting.count === undefined ? "dead letters" : counted(counting.count, "dead letter");
  const job = { kind, stream, consumer, selection };
  const act = () => (asJob ? post("jobs", job) : post(at, selection));
  const after = (answer) => {
    if (asJob) say(`${words} are being ${past} in the background.`, `jobs?id=${answer.data.id}`);
    else say(`${counted(answer.data.redriven ?? answer.data.purged, "dead letter")} ${past}.`);
    done();
  };
  const command = cli(`consumer dead-letters ${kind}`, [stream, consumer], { ...options(selection), ...(kind === "purge" ? { yes: true } : {}) });
  return html`<${Act} title=${`${verb} ${words}`} verb=${`${verb} ${words}`} danger=${kind === "purge"} ready=${Boolean(counting.count)} close=${close}
    act=${act} done=${after} request=${asJob ? { method: "POST", target: "jobs", body: job, command } : { method: "POST", target: at, body: selection, command }}>
    <p>${what ? `This is about ${what}. ` : ""}${EFFECTS[kind]}</p>
    ${describe(selection)}
    <${Failure} error=${counting.error} />
    ${counting.count === undefined && !counting.error ? html`<p role="status">Counting …</p>` : null}
    ${counting.count === 0 ? html`<p>None match, so there is nothing to do.</p>` : null}
    ${asJob && counting.count ? html`<p>It is done in the background. You see its progress, and can cancel it, under <a href="jobs" onClick=${close}>jobs</a>.</p>` : null}
  <//>`;
}

function describe({ seqs, ...filters }) {
  const found = Object.entries(filters);
  if (!found.length) return null;
  return html`<ul class="changes" aria-label="Which">${found.map(([name, value]) => html`<li><strong>${name.replaceAll("_", " ")}</strong>: <code>${String(value) || "none"}</code></li>`)}</ul>`;
}
