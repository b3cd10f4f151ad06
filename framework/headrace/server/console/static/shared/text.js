/** Numbers, sizes, durations and times as text. Pure functions. */

const LOCALE = undefined;
const WHOLE = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const ONE = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat(LOCALE, { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(LOCALE, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(LOCALE, { year: "numeric", month: "short", day: "numeric" });
const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];
const NONE = "–";

/** @param {number | null | undefined} value */
export function number(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(value);
}

/** A number with at most five characters. @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  return value < 10_000 ? WHOLE.format(value) : COMPACT.format(value);
}

/** Something per second. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value >= 10_000 ? COMPACT.format(value) : value >= 10 || value === 0 ? WHOLE.format(value) : ONE.format(value);
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  let left = bytes;
  let unit = 0;
  while (left >= 1000 && unit < SIZES.length - 1) {
    left /= 1000;
    unit += 1;
  }
  return `${left >= 100 || unit === 0 ? WHOLE.format(left) : ONE.format(left)} ${SIZES[unit]}`;
}

/** A duration with its two largest units. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.0005) return seconds > 0 ? "<1 ms" : "0 s";
  if (seconds < 1) return `${WHOLE.format(seconds * 1000)} ms`;
  if (seconds < 10) return `${ONE.format(seconds)} s`;
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  let left = Math.round(seconds);
  const parts = [];
  for (const [name, length] of units) {
    const count = Math.floor(left / length);
    if (count > 0 && parts.length < 2) parts.push(`${WHOLE.format(count)} ${name}`);
    else if (parts.length) break;
    left -= count * length;
  }
  return parts.join(" ");
}

/** "1 message", "2 messages". @param {number} count @param {string} noun @param {string} [plural] */
export function counted(count, noun, plural = `${noun}s`) {
  return `${number(count)} ${count === 1 ? noun : plural}`;
}

/** A text of the server as a sentence, with one full stop. @param {string} text */
export const sentence = (text) => `${text.replace(/\.+$/, "")}. `;

/** How long ago a time was, or how long it is until then. @param {string} time @param {number} [now] */
export function relative(time, now = Date.now()) {
  const seconds = (now - Date.parse(time)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${duration(Math.floor(seconds))} ago` : `in ${duration(Math.ceil(-seconds))}`;
}

/** A time in the local zone. Today's times have no date. @param {string} time @param {number} [now] */
export function local(time, now = Date.now()) {
  const date = new Date(time);
  const sameDay = date.toDateString() === new Date(now).toDateString();
  return sameDay ? CLOCK.format(date) : `${DAY.format(date)} ${CLOCK.format(date)}`;
}

/** The exact time in UTC, as the server has sent it, for a title. @param {string} time */
export function exact(time) {
  return time.replace("T", " ").replace(/(\+00:00|Z)$/, " UTC");
}

/** Whether a pause has no end. @param {string | null} until */
export const isForever = (until) => until !== null && until.startsWith("9999-");

/** JSON with indentation. @param {unknown} value */
export const pretty = (value) => JSON.stringify(value, null, 2);

/** A message's data as a list shows it. @param {unknown} value @param {number} [length] */
export function brief(value, length = 160) {
  const text = JSON.stringify(value) ?? "";
  return text.length > length ? `${text.slice(0, length)}…` : text;
}
