/** What the service is doing now, from /metrics, while this panel is open. */

import { metrics } from './api.js';
import { themeColours } from './colours.js';
import { element, sharpContext } from './dom.js';
import { parse, quantile, rate, select, total } from './prometheus.js';

const EVERY_MS = 1000;
const KEPT = 60;
const WINDOW = 8;
const INFERENCE = ['/encode', '/attention', '/explain', '/align', '/verify'];
const answers = ({ route }) => INFERENCE.includes(route);

const TILES = [
  { key: 'requests', name: 'Requests a second', show: (value) => value.toFixed(1) },
  { key: 'tokens', name: 'Tokens a second', show: (value) => Math.round(value).toLocaleString('en') },
  { key: 'median', name: 'Latency, median', show: milliseconds },
  { key: 'slowest', name: 'Latency, 99th percentile', show: milliseconds },
  { key: 'wait', name: 'Time in queue, median', show: milliseconds },
  { key: 'queue', name: 'Tokens in queue', show: (value) => value.toLocaleString('en') },
  { key: 'batch', name: 'Texts a batch', show: (value) => (value === null ? '–' : value.toFixed(1)) },
  { key: 'failures', name: 'Errors a second', show: (value) => value.toFixed(1) },
];

function milliseconds(seconds) {
  if (seconds === null) return '–';
  return seconds < 0.01 ? `${(1000 * seconds).toFixed(1)} ms` : `${Math.round(1000 * seconds)} ms`;
}

export class Live {
  #scrapes = [];
  #history = [];
  #timer = 0;
  #controller = null;
  #tiles;
  #engine = element('p', { class: 'says' });

  constructor(place) {
    this.place = place;
    this.#tiles = TILES.map((tile) => {
      const value = element('dd', { data: { live: tile.key } }, '–');
      const canvas = element('canvas', { 'aria-hidden': 'true' });
      return {
        ...tile,
        value,
        canvas,
        element: element('div', {}, element('dt', {}, tile.name), value, canvas),
      };
    });
    place.append(
      element('h2', {}, 'Live'),
      this.#engine,
      element('dl', { class: 'tiles' }, ...this.#tiles.map((tile) => tile.element)),
    );
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden && !place.hidden) this.#poll();
    });
  }

  show(open) {
    if (this.place.hidden === !open) return;
    this.place.hidden = !open;
    clearTimeout(this.#timer);
    this.#controller?.abort();
    if (open) {
      this.#scrapes = [];
      this.#history = [];
      this.#poll();
    }
  }

  redraw() {
    if (!this.place.hidden) this.#draw();
  }

  async #poll() {
    clearTimeout(this.#timer);
    if (this.place.hidden || document.hidden) return;
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      const samples = parse(await metrics(controller.signal));
      this.#take({ seconds: performance.now() / 1000, samples });
    } catch (error) {
      if (error.name === 'AbortError') return;
      this.#engine.textContent = `${error.message} Trying again.`;
    }
    if (!controller.signal.aborted) this.#timer = setTimeout(() => this.#poll(), EVERY_MS);
  }

  #take(now) {
    this.#scrapes = [...this.#scrapes, now].slice(-WINDOW);
    const [before] = this.#scrapes;
    const engine = select(now.samples, 'headscope_engine_info')[0]?.labels;
    if (engine)
      this.#engine.textContent = `${engine.model} · ${engine.engine} · ${engine.provider} · ${engine.precision}`;
    if (before === now) return;
    const batches = rate(before, now, 'headscope_batch_texts_count');
    this.#history = [
      ...this.#history,
      {
        requests: rate(before, now, 'headscope_requests_total', answers),
        tokens: rate(before, now, 'headscope_tokens_total'),
        median: quantile(before, now, 'headscope_request_seconds', 0.5, answers),
        slowest: quantile(before, now, 'headscope_request_seconds', 0.99, answers),
        wait: quantile(before, now, 'headscope_queue_seconds', 0.5),
        queue: total(now.samples, 'headscope_queue_tokens'),
        batch: batches ? rate(before, now, 'headscope_batch_texts_sum') / batches : null,
        failures: rate(
          before,
          now,
          'headscope_requests_total',
          (labels) => answers(labels) && labels.status >= '400',
        ),
      },
    ].slice(-KEPT);
    this.#draw();
  }

  #draw() {
    const last = this.#history.at(-1);
    if (!last) return;
    for (const { key, value, canvas, show } of this.#tiles) {
      value.textContent = show(last[key]);
      this.#spark(
        canvas,
        this.#history.map((entry) => entry[key] ?? 0),
      );
    }
  }

  #spark(canvas, values) {
    const [width, height] = [120, 28];
    const context = sharpContext(canvas, width, height);
    const most = Math.max(...values, 1e-9);
    context.strokeStyle = themeColours().line;
    context.lineWidth = 1.5;
    context.beginPath();
    values.forEach((value, i) =>
      context.lineTo(
        (width * (i + KEPT - values.length)) / (KEPT - 1),
        height - 2 - (value / most) * (height - 4),
      ),
    );
    context.stroke();
  }
}
