/** `<wait-bar>`: progress of work with the time that is left, by what has been done or by a forecast. */

import { html, nothing, render } from '../core/html.js';

const TICK_MS = 500;

/**
 * @typedef {Object} Wait
 * @property {string} label
 * @property {number} began time by `performance.now()`
 * @property {number} [done] share of the work, 0 … 1
 * @property {number|null} [seconds] that the work is expected to take; null when unknown
 */

/**
 * Return the share of the work that is done and the seconds that are left, as far as they are known.
 *
 * @param {Wait} wait
 * @param {number} now
 */
export function progressOf({ began, done, seconds }, now) {
  const past = (now - began) / 1000;
  if (done !== undefined) return { share: done, left: done > 0 ? (past * (1 - done)) / done : null };
  if (!seconds || past >= seconds) return { share: null, left: null };
  return { share: past / seconds, left: seconds - past };
}

export class WaitBar extends HTMLElement {
  /** @type {Wait|null} */
  #data = null;
  #timer = 0;

  connectedCallback() {
    this.#timer = window.setInterval(() => this.#render(), TICK_MS);
  }

  disconnectedCallback() {
    clearInterval(this.#timer);
  }

  /** @param {Wait} data */
  set data(data) {
    this.#data = data;
    this.#render();
  }

  #render() {
    if (!this.#data) return;
    const { share, left } = progressOf(this.#data, performance.now());
    const told = left === null ? '' : left < 1 ? 'about 1 s left' : `about ${Math.round(left)} s left`;
    render(
      html`<progress aria-label=${this.#data.label} max="1" value=${share ?? nothing}></progress> <span class="says">${told}</span>`,
      this,
    );
  }
}

customElements.define('wait-bar', WaitBar);
