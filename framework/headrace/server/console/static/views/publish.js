/** Publishing one message by hand. */

import { html, useState } from "../vendor/preact.js";
import { parse, path, post, quoted, SERVER } from "../shared/api.js";
import { Act, say } from "../shared/dialog.js";
import { streamAt } from "../shared/router.js";
import { counted } from "../shared/text.js";
import { Field } from "../shared/ui.js";

/** @param {string} text @returns {[any, string | null]} the value, or what is wrong */
function read(text) {
  try {
    return [parse(text), null];
  } catch (error) {
    return [undefined, `This is not JSON: ${error.message}`];
  }
}

export function Publish({ stream, consumers, key = "", data = "{\n  \n}", close }) {
  const [message, setMessage] = useState({ key, data, headers: "" });
  const edit = (name) => (event) => setMessage({ ...message, [name]: event.target.value });
  const [value, dataError] = read(message.data);
  const [headers, headersError] = message.headers.trim() ? read(message.headers) : [undefined, null];
  const body = { key: message.key, data: value, ...(headers === undefined ? {} : { headers }) };
  const target = path`streams/${stream}/publish`;
  const ready = Boolean(message.key) && !dataError && !headersError;
  return html`<${Act} title=${`Publish to ${stream}`} verb="Publish one message" ready=${ready} close=${close}
    act=${() => post(target, body)} done=${() => say(`One message with the key ${message.key} was published to ${stream}.`, streamAt(stream))}
    request=${ready ? { method: "POST", target, body, command: `echo ${quoted(JSON.stringify(body))} | headrace publish ${stream} --server ${SERVER}` } : undefined}>
    <p>${consumers.length
      ? html`The message goes to the end of the stream, and is delivered to ${consumers.length === 1 ? "its consumer" : `each of its ${counted(consumers.length, "consumer")}`} whose filters match: ${consumers.slice(0, 8).map((one) => one.name).join(", ")}${consumers.length > 8 ? " …" : ""}. It can't be taken back.`
      : "The stream has no consumers, so the message is only stored."}</p>
    <${Field} id="publish-key" label="Key" hint="Tokens separated by dots, such as orders.us.42. Messages of a key are delivered in order.">
      <input id="publish-key" required value=${message.key} onInput=${edit("key")} aria-describedby="publish-key-hint" autocomplete="off" />
    <//>
    <${Field} id="publish-data" label="Data (JSON)" error=${dataError}>
      <textarea id="publish-data" rows="8" spellcheck="false" value=${message.data} onInput=${edit("data")}></textarea>
    <//>
    <${Field} id="publish-headers" label="Headers (JSON, optional)" error=${headersError}>
      <textarea id="publish-headers" rows="2" spellcheck="false" value=${message.headers} onInput=${edit("headers")}></textarea>
    <//>
  <//>`;
}
