/** Charts: small lines in tables, and uPlot for samples over time, which is loaded when the first chart is shown. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { useRead } from "./live.js";
import { query } from "./api.js";
import { duration, local, rate, short } from "./text.js";

const WIDTH = 96;
const HEIGHT = 22;

/** A line of the last values. @param {{values: (number | null)[], label: string}} props */
export function Sparkline({ values, label }) {
  const known = (values ?? []).map((value) => value ?? 0);
  if (known.length < 2) return html`<span class="quiet">–</span>`;
  const most = Math.max(...known, 1e-9);
  const step = WIDTH / (known.length - 1);
  const points = known.map((value, index) => `${(index * step).toFixed(1)},${(HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1)}`);
  return html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} width=${WIDTH} height=${HEIGHT} role="img" aria-label=${label}>
    <polyline points=${points.join(" ")} />
  </svg>`;
}

const FILES = document.body.dataset.files;
let loading = null;

/** Loads uPlot, once. It is no module, since only its classic form is small. */
function library() {
  loading ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = `${FILES}vendor/uplot.css`;
    const script = document.createElement("script");
    script.src = `${FILES}vendor/uplot.js`;
    script.onload = () => resolve(globalThis.uPlot);
    script.onerror = reject;
    document.head.append(style, script);
  });
  return loading;
}

/** Distances of the lines of a chart that counts: 1, 2, 5, 10 and so on. */
const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

const FORMATS = { rate, count: short, seconds: duration };
const SPANS = [
  ["15m", "15 min", 900],
  ["1h", "1 h", 3600],
  ["6h", "6 h", 21_600],
  ["24h", "24 h", 86_400],
];

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function options(series, width, height, format, onCursor) {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width,
    height,
    padding: [8, 20, 0, 0],
    cursor: { drag: { x: false, y: false } },
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)] },
    legend: { show: false },
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
    axes: [axis, { ...axis, size: 52, values: (_plot, ticks) => ticks.map(format), ...(format === FORMATS.count ? { incrs: WHOLE_STEPS } : {}) }],
    series: [
      {},
      ...series.map(([, label], index) => ({ label, stroke: colour(`--chart-${index + 1}`), width: 1.5, points: { show: false } })),
    ],
  };
}

/**
 * A chart of series over time.
 * @param {{title: string, data: {at: number[], series: Record<string, (number | null)[]>}, series: [string, string][], unit: "rate" | "count" | "seconds"}} props
 */
export function Chart({ title, data, series, unit }) {
  const place = useRef(null);
  const plot = useRef(null);
  const [theme, setTheme] = useState(0);
  const [shown, setShown] = useState(null);
  useEffect(() => {
    const onTheme = () => setTheme((round) => round + 1);
    addEventListener("headrace-theme", onTheme);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", onTheme);
    return () => {
      removeEventListener("headrace-theme", onTheme);
      media.removeEventListener("change", onTheme);
    };
  }, []);
  const rows = [data.at, ...series.map(([name]) => data.series[name] ?? [])];
  const latest = useRef(rows);
  latest.current = rows;
  useEffect(() => {
    let gone = false;
    let watcher;
    library().then((Plot) => {
      if (gone || !place.current) return;
      const width = () => Math.max(200, place.current.clientWidth);
      plot.current = new Plot(options(series, width(), 150, FORMATS[unit], setShown), latest.current, place.current);
      watcher = new ResizeObserver(() => plot.current?.setSize({ width: width(), height: 150 }));
      watcher.observe(place.current);
    });
    return () => {
      gone = true;
      watcher?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [theme]);
  useEffect(() => plot.current?.setData(latest.current), [data]);
  const at = (name) => FORMATS[unit](shown === null ? (data.series[name] ?? []).findLast((one) => one !== null) : data.series[name]?.[shown]);
  const last = series.map(([name, label]) => `${label} ${at(name)}`);
  return html`<figure class="chart">
    <figcaption>
      <strong>${title}</strong>
      ${series.map(([name, label], index) => html`<span class="legend"><i class=${`line-${index + 1}`} aria-hidden="true"></i>${label} <b>${at(name)}</b></span>`)}
      <span class="legend quiet">${shown === null || !data.at[shown] ? "" : local(new Date(data.at[shown] * 1000).toISOString())}</span>
    </figcaption>
    <div ref=${place} role="img" aria-label=${`${title}: ${last.join(", ")}`}></div>
  </figure>`;
}

/**
 * Charts of the samples of a stream, a consumer or everything, over a span that can be chosen.
 * @param {{kind: "total" | "stream" | "consumer", stream?: string, consumer?: string, charts: [string, [string, string][], "rate" | "count" | "seconds"][], span: string, onSpan: (span: string) => void}} props
 */
export function Samples({ kind, stream, consumer, charts, span, onSpan }) {
  const seconds = SPANS.find(([name]) => name === span)?.[2] ?? 3600;
  const [round, setRound] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setRound((old) => old + 1), Math.max(10_000, seconds * 4));
    return () => clearInterval(timer);
  }, [seconds]);
  const since = new Date(Date.now() - seconds * 1000).toISOString();
  const target = useRef({ key: "", value: "" });
  const key = `${kind} ${stream} ${consumer} ${seconds} ${round}`;
  if (target.current.key !== key) {
    target.current = { key, value: `samples${query({ kind, stream, consumer, since, points: 240 })}` };
  }
  const read = useRead(target.current.value, 0, round > 0);
  const kept = useRef(null);
  if (read.data) kept.current = read.data.data;
  if (read.error?.status === 404) return null;
  const data = kept.current;
  return html`<div class="samples">
    <div class="spans" role="group" aria-label="Time span of the charts">
      ${SPANS.map(
        ([name, label]) => html`<button type="button" class="small" aria-pressed=${name === span} onClick=${() => onSpan(name)}>${label}</button>`,
      )}
    </div>
    ${data && data.at.length > 1
      ? html`<div class="charts">
          ${charts.map(([title, series, unit]) => html`<${Chart} key=${title} title=${title} data=${data} series=${series} unit=${unit} />`)}
        </div>`
      : html`<p class="quiet">${read.loading ? "Loading…" : "There are no samples of this span yet. A server takes one every few seconds."}</p>`}
  </div>`;
}
