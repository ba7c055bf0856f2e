/** Panel with the state of the service and its load, from `/health/ready` and `/metrics`. */

import { health, metrics } from '../api/client.js';
import { html } from '../core/html.js';

const EVERY_MS = 1000;
/** Number of scrapes between which rates are computed. */
const WINDOW = 8;
/** Samples of the time of requests by route: their number, and the sum of their seconds. */
const SAMPLE = /^headscope_request_seconds_(count|sum)\{route="([^"]*)"\} (\S+)$/gm;
/** Routes that compute nothing, which this page itself asks. */
const IDLE = /^\/(?:$|metrics|health|dashboard|info|docs|openapi|models|v1\/models|unmatched)/;

/** @typedef {{at: number, count: number, sum: number}} Scrape of all requests that compute; `at` is in milliseconds */

/** @type {Scrape} */
const NONE = { at: 0, count: 0, sum: 0 };

export class LivePanel {
  /** @type {Scrape[]} */
  #scrapes = [];
  #timer = 0;
  /** @type {AbortController|null} */
  #controller = null;
  #says = '';
  #open = false;

  /** @param {() => void} onChange told when there is more to show */
  constructor(onChange) {
    this.onChange = onChange;
    document.addEventListener('visibilitychange', () => this.#poll());
  }

  /** @param {boolean} open */
  draw(open) {
    if (open !== this.#open) this.#toggle(open);
    const [first, last] = [this.#scrapes[0] ?? NONE, this.#scrapes.at(-1) ?? NONE];
    const [count, seconds] = [last.count - first.count, (last.at - first.at) / 1000];
    const rate = seconds > 0 ? (count / seconds).toFixed(1) : '–';
    const each = count > 0 ? `${((1000 * (last.sum - first.sum)) / count).toFixed(1)} ms` : '–';
    return html`<section id="live" class="card live" aria-label="Live" ?hidden=${!open}><h2>Live</h2>
      <p class="says">${this.#says}</p><p><b data-live="requests">${rate}</b> requests a second,
      <b data-live="time">${each}</b> each on average</p></section>`;
  }

  /** @param {boolean} open */
  #toggle(open) {
    this.#open = open;
    this.#scrapes = [];
    this.#poll();
  }

  async #poll() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
    if (!this.#open || document.hidden) return;
    this.#controller = new AbortController();
    const { signal } = this.#controller;
    try {
      const [state, text] = await Promise.all([health(signal), metrics(signal)]);
      this.#says = `The service is ${state}.`;
      this.#scrapes = [...this.#scrapes, scrapeOf(text)].slice(-WINDOW);
    } catch (error) {
      if (signal.aborted) return;
      this.#scrapes = [];
      this.#says = `${error instanceof Error ? error.message : error} Trying again.`;
    }
    if (signal.aborted) return;
    this.#timer = window.setTimeout(() => this.#poll(), EVERY_MS);
    this.onChange();
  }
}

/** @param {string} text of `/metrics` @returns {Scrape} */
function scrapeOf(text) {
  const scrape = { at: performance.now(), count: 0, sum: 0 };
  for (const [, name, route, value] of text.matchAll(SAMPLE))
    if (!IDLE.test(route)) scrape[/** @type {'count'|'sum'} */ (name)] += Number(value);
  return scrape;
}
