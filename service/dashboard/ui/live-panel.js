/** Panel with the current load of the service, from /metrics. */

import { metrics } from '../api/client.js';
import { html, painted } from '../core/html.js';
import { parse, quantile, rate, select, total } from '../core/prometheus.js';
import { sharpContext } from '../draw/canvas.js';
import { theme, themeColours } from '../draw/colours.js';

const EVERY_MS = 1000;
const KEPT = 60;
const WINDOW = 8;
const INFERENCE = ['/encode', '/attention', '/attention/scores', '/explain', '/rank', '/verify'];
/** @param {Object<string, string>} labels */
const answers = ({ route }) => INFERENCE.includes(route);

/** @param {(value: number) => string} write @returns {(value: number|null) => string} */
const orDash = (write) => (value) => (value === null ? '–' : write(value));
const whole = orDash((value) => Math.round(value).toLocaleString('en'));
const tenths = orDash((value) => value.toFixed(1));
const milliseconds = orDash((seconds) =>
  seconds < 0.01 ? `${(1000 * seconds).toFixed(1)} ms` : `${Math.round(1000 * seconds)} ms`,
);

const TILES = [
  { key: 'requests', name: 'Requests a second', show: tenths },
  { key: 'tokens', name: 'Tokens a second', show: whole },
  { key: 'median', name: 'Latency, median', show: milliseconds },
  { key: 'slowest', name: 'Latency, 99th percentile', show: milliseconds },
  { key: 'wait', name: 'Time in queue, median', show: milliseconds },
  { key: 'queue', name: 'Tokens in queue', show: whole },
  { key: 'batch', name: 'Texts a batch', show: tenths },
  { key: 'failures', name: 'Errors a second', show: tenths },
];

/** @typedef {{[name: string]: number|null}} Entry of the tiles */

export class LivePanel {
  /** @type {import('../core/prometheus.js').Scrape[]} */
  #scrapes = [];
  /** @type {Entry[]} */
  #history = [];
  #timer = 0;
  /** @type {AbortController|null} */
  #controller = null;
  #says = '';
  /** Name of the page's model, once it is known. */
  #model = /** @type {string|undefined} */ (undefined);
  #open = false;

  /** @param {() => void} onChange told when there is more to show */
  constructor(onChange) {
    this.onChange = onChange;
    document.addEventListener('visibilitychange', () => this.#poll());
  }

  /** @param {boolean} open @param {string} [model] the page's */
  draw(open, model) {
    this.#model = model;
    if (open !== this.#open) this.#toggle(open);
    const last = this.#history.at(-1);
    const tile = (/** @type {typeof TILES[number]} */ { key, name, show }) => html`<div><dt>${name}</dt>
      <dd data-live=${key}>${last ? show(last[key]) : '–'}</dd>
      <canvas aria-hidden="true" ${painted(spark, this.#history, key, theme())}></canvas></div>`;
    return html`<section id="live" class="card live" aria-label="Live" ?hidden=${!open}><h2>Live</h2>
      <p class="says">${this.#says}</p><dl class="tiles">${TILES.map(tile)}</dl></section>`;
  }

  /** @param {boolean} open */
  #toggle(open) {
    this.#open = open;
    clearTimeout(this.#timer);
    this.#controller?.abort();
    this.#scrapes = [];
    this.#history = [];
    this.#poll();
  }

  async #poll() {
    clearTimeout(this.#timer);
    if (!this.#open || document.hidden) return;
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      const samples = parse(await metrics(controller.signal));
      this.#take({ seconds: performance.now() / 1000, samples });
    } catch (error) {
      if (controller.signal.aborted) return;
      this.#scrapes = [];
      this.#history = [];
      this.#says = `${error instanceof Error ? error.message : error} Trying again.`;
    }
    if (controller.signal.aborted) return;
    this.#timer = window.setTimeout(() => this.#poll(), EVERY_MS);
    this.onChange();
  }

  /** @param {import('../core/prometheus.js').Scrape} now */
  #take(now) {
    this.#scrapes = [...this.#scrapes, now].slice(-WINDOW);
    const [before] = this.#scrapes;
    const engines = select(now.samples, 'headscope_engine_info').map(({ labels }) => labels);
    const own = engines.find(({ model }) => model === this.#model);
    const others = engines.length > 1 ? ` Numbers are of all ${engines.length} models of the service.` : '';
    this.#says = own ? `${own.model} · ${own.engine} · ${own.provider} · ${own.precision}.${others}` : others;
    if (before !== now) this.#history = [...this.#history, entryOf(before, now)].slice(-KEPT);
  }
}

/** @param {import('../core/prometheus.js').Scrape} before @param {import('../core/prometheus.js').Scrape} now @returns {Entry} */
function entryOf(before, now) {
  const batches = rate(before, now, 'headscope_batch_texts_count');
  const failed = (/** @type {Object<string, string>} */ labels) => answers(labels) && labels.status >= '400';
  return {
    requests: rate(before, now, 'headscope_requests_total', answers),
    tokens: rate(before, now, 'headscope_tokens_total'),
    median: quantile(before, now, 'headscope_request_seconds', 0.5, answers),
    slowest: quantile(before, now, 'headscope_request_seconds', 0.99, answers),
    wait: quantile(before, now, 'headscope_queue_seconds', 0.5),
    queue: total(now.samples, 'headscope_queue_tokens'),
    batch: batches ? rate(before, now, 'headscope_batch_texts_sum') / batches : null,
    failures: rate(before, now, 'headscope_requests_total', failed),
  };
}

/** @param {HTMLCanvasElement} canvas @param {Entry[]} history @param {string} key */
function spark(canvas, history, key) {
  const [width, height] = [120, 28];
  const values = history.map((entry) => entry[key] ?? 0);
  const context = sharpContext(canvas, width, height);
  const most = Math.max(...values, 1e-9);
  context.strokeStyle = themeColours().line;
  context.lineWidth = 1.5;
  context.beginPath();
  values.forEach((value, i) => {
    const x = (width * (i + KEPT - values.length)) / (KEPT - 1);
    context.lineTo(x, height - 2 - (value / most) * (height - 4));
  });
  context.stroke();
}
