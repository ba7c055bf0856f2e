/** `<bump-chart>`: ranks of the same results in two rankings, on the screen. */

import { html, render } from '../core/html.js';
import { themeColours } from '../draw/colours.js';
import { bumpHeight, drawBumps } from '../draw/ranking-chart.js';
import { DrawnElement } from './drawn.js';

/** @typedef {{rows: import('../draw/ranking-chart.js').Bumps, names: string[], theme: string}} Data */

export class BumpChart extends DrawnElement {
  /** @type {Data|null} */
  #data = null;

  /** @param {Data} data */
  set data(data) {
    if (data === this.#data) return;
    this.#data = data;
    const label = `Ranks in ${data.names.join(' and in ')}; the list has the numbers.`;
    render(html`<canvas role="img" aria-label=${label}></canvas>`, this);
    this.redraw();
  }

  /** @param {number} width @override */
  draw(width) {
    const { rows, names } = /** @type {Data} */ (this.#data);
    drawBumps(this.surface(width, bumpHeight(rows)), themeColours(), rows, names, width);
  }
}

customElements.define('bump-chart', BumpChart);
