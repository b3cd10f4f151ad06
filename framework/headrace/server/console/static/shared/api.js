/** Calls of the public API. Everything that the console shows and does goes through here. */

/** The root of the API, next to the console. */
export const ROOT = new URL("../v1/", document.baseURI);

/** The URL of the server, as other clients name it. */
export const SERVER = new URL("..", document.baseURI).href.replace(/\/$/, "");

/** An answer that is no success, or none at all (`status` 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} summary what is wrong, for people
   * @param {string} code for programs
   * @param {Record<string, string[]>} [fields] what is wrong with which field
   */
  constructor(status, summary, code, fields = {}) {
    super(summary);
    this.status = status;
    this.code = code;
    this.fields = fields;
  }
}

/** Emits `signed-out` when the server wants a session, and `contact` after each answer or failure. */
export const events = new EventTarget();

const HEADERS = { accept: "application/json", "x-headrace-console": "1" };

/**
 * The path of an object of the API, with its names encoded.
 * @param {TemplateStringsArray} strings
 * @param {...(string | number)} names
 */
export function path(strings, ...names) {
  return strings.reduce((text, part, index) => text + encodeURIComponent(String(names[index - 1])) + part);
}

/**
 * A query string of the values that are given.
 * @param {Record<string, unknown>} values
 */
export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") found.append(name, String(one));
    }
  }
  const text = found.toString();
  return text ? `?${text}` : "";
}

/**
 * Sends a request.
 * @param {string} method
 * @param {string} target path and query below the API's root
 * @param {{body?: unknown, signal?: AbortSignal, etag?: string, poll?: boolean}} [options] `poll`: it asks again, and may wait
 * @returns {Promise<{status: number, body: any, etag: string | null}>} `status` is 304 if nothing has changed
 */
export async function request(method, target, { body, signal, etag, poll = false } = {}) {
  const headers = { ...HEADERS };
  if (poll) headers["x-headrace-console"] = "poll";
  if (body !== undefined) headers["content-type"] = "application/json";
  if (etag) headers["if-none-match"] = etag;
  let answer;
  try {
    answer = await (early(method, target) ?? fetch(new URL(target, ROOT), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    }));
  } catch (error) {
    if (signal?.aborted) throw error;
    contact(false);
    throw new ApiError(0, "The server does not answer.", "no_contact");
  }
  contact(true);
  if (answer.status === 304) return { status: 304, body: undefined, etag: etag ?? null };
  const text = await answer.text();
  const found = text ? parsed(text) : undefined;
  if (answer.ok) return { status: answer.status, body: found, etag: answer.headers.get("etag") };
  if (answer.status === 401) globalThis.headraceEarly = {};
  if (answer.status === 401) events.dispatchEvent(new Event("signed-out"));
  throw new ApiError(
    answer.status,
    found?.summary ?? `The server has answered with ${answer.status}.`,
    found?.code ?? "unknown",
    found?.validation_errors,
  );
}

/** The answer to what `early.js` asked before the modules were there, once and soon after. */
function early(method, target) {
  const answers = globalThis.headraceEarly ?? {};
  const answer = method === "GET" && performance.now() < 5000 ? answers[target] : undefined;
  delete answers[target];
  return answer;
}

/** Integers beyond 2^53 in messages stay as they are written, in browsers that can do so. */
function whole(_key, value, context) {
  const lost = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "");
  return lost && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

/** JSON as a value. Raises `SyntaxError`. @param {string} text */
export const parse = (text) => (/\d{16}/.test(text) ? JSON.parse(text, whole) : JSON.parse(text));

/** @param {string} text */
function parsed(text) {
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

/** @param {boolean} answered */
function contact(answered) {
  events.dispatchEvent(new CustomEvent("contact", { detail: answered }));
}

/** @param {string} target @param {AbortSignal} [signal] */
export const get = async (target, signal) => (await request("GET", target, { signal })).body;

/** @param {string} target @param {unknown} [body] @param {AbortSignal} [signal] */
export const post = async (target, body, signal) => (await request("POST", target, { body: body ?? {}, signal })).body;

/** @param {string} target @param {unknown} body */
export const patch = async (target, body) => (await request("PATCH", target, { body })).body;

/** @param {string} target */
export const remove = async (target) => (await request("DELETE", target)).body;

/**
 * A request as a curl command.
 * @param {string} method
 * @param {string} target
 * @param {unknown} [body]
 */
export function curl(method, target, body) {
  const parts = ["curl"];
  if (method !== "GET") parts.push("-X", method);
  parts.push(quoted(new URL(target, ROOT).href));
  parts.push("-H", '"Authorization: Bearer $HEADRACE_TOKEN"');
  if (body !== undefined) parts.push("-H", "'Content-Type: application/json'", "-d", quoted(JSON.stringify(body)));
  return parts.join(" ");
}

/**
 * A command of the command line. Values that are undefined are left out with their option.
 * @param {string} command
 * @param {(string | number)[]} words
 * @param {Record<string, any>} [options] an array repeats its option
 */
export function cli(command, words, options = {}) {
  const parts = ["headrace", command, ...words.map(quoted)];
  for (const [name, given] of Object.entries(options)) {
    for (const value of Array.isArray(given) ? given : [given]) {
      if (value === true) parts.push(`--${name}`);
      else if (value !== undefined && value !== null && value !== false && value !== "") parts.push(`--${name}`, quoted(value));
    }
  }
  parts.push("--server", quoted(SERVER));
  return parts.join(" ");
}

/** @param {string | number} word */
export function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
