/** `<bump-chart>`: ranks of the same results in two rankings, on the screen. */

import { html, render } from '../core/html.js';
import { CanvasSurface } from '../draw/canvas-and-svg.js';
import { oncePerFrame, sharpContext } from '../draw/canvas.js';
import { themeColours } from '../draw/colours.js';
import { bumpHeight, drawBumps } from '../draw/ranking-chart.js';

/** @typedef {{rows: import('../draw/ranking-chart.js').Bumps, names: string[], theme: string}} Data */

export class BumpChart extends HTMLElement {
  /** @type {Data|null} */
  #data = null;
  #observer = new ResizeObserver(() => this.#redraw());
  #redraw = oncePerFrame(() => this.#draw());

  connectedCallback() {
    this.#observer.observe(this);
  }

  disconnectedCallback() {
    this.#observer.disconnect();
  }

  /** @param {Data} data */
  set data(data) {
    if (data === this.#data) return;
    this.#data = data;
    const label = `Ranks in ${data.names.join(' and in ')}; the list has the numbers.`;
    render(html`<canvas role="img" aria-label=${label}></canvas>`, this);
    this.#redraw();
  }

  #draw() {
    const canvas = this.querySelector('canvas');
    if (!this.#data || !canvas || !this.clientWidth) return;
    const { rows, names } = this.#data;
    const context = sharpContext(canvas, this.clientWidth, bumpHeight(rows));
    drawBumps(new CanvasSurface(context), themeColours(), rows, names, this.clientWidth);
  }
}

customElements.define('bump-chart', BumpChart);
