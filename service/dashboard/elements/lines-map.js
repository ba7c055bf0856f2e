/**
 * `<lines-map>`: a map as lines on the screen. Dispatches `point` (a cell, and whether by key) and `pick` (a
 * cell whose column is −1).
 */

import { html, nothing, render } from '../core/html.js';
import { NOTHING } from '../draw/heatmap.js';
import { drawLines, drawnLinks, heightOf, rowHeight, VIEWPORT } from '../draw/lines.js';
import { DrawnElement } from './drawn.js';

/** @typedef {import('../draw/heatmap.js').Cell} Cell */
/** @typedef {{map: import('../core/maps.js').NamedMap, options: import('../draw/lines.js').LinesOptions}} LinesData */

export class LinesMap extends DrawnElement {
  /** @type {LinesData|null} */
  #data = null;
  /** @type {Cell} */
  #pointed = NOTHING;

  /** @param {LinesData} data */
  set data(data) {
    this.#data = data;
    this.#render(data);
    this.redraw();
  }

  /** @param {Cell} cell what any form of the map is pointed at */
  set pointed(cell) {
    this.#pointed = cell;
    this.redraw();
  }

  /** @param {LinesData} data */
  #render({ map, options }) {
    const height = heightOf(map);
    const label =
      `${options.name} as lines, ${map.rows.length} to ${map.columns.length}. ` +
      'Up and down move between tokens, Enter holds one, Escape lets go.';
    const { drawn, all } = drawnLinks(map, options.min, options.unit);
    const on = (/** @type {(event: any) => void} */ act) => act;
    render(
      html`<div class="lines-heads"><span>this token …</span><span>… looks at</span></div>
        <div class="lines-scroll" .style=${`height: ${Math.min(VIEWPORT, height)}px`} @scroll=${this.redraw}>
          <div class="lines-space" .style=${`height: ${height}px`}><canvas tabindex="0" role="img" aria-label=${label}
            @pointermove=${on((event) => this.#move(event))} @pointerleave=${() => this.#point(NOTHING, false)}
            @click=${on((event) => this.#pick(this.#hit(event)))} @keydown=${on((event) => this.#key(event))}></canvas></div>
        </div>
        ${drawn < all ? html`<p class="says">The ${drawn} strongest of ${all.toLocaleString('en')} links are drawn; those of a token that you point at are all.</p>` : nothing}`,
      this,
    );
  }

  #scroller() {
    return /** @type {HTMLElement} */ (this.querySelector('.lines-scroll'));
  }

  /** @override */
  draw() {
    const scroller = this.#scroller();
    if (!this.#data || !scroller.clientWidth) return;
    const frame = { width: scroller.clientWidth, height: scroller.clientHeight, top: scroller.scrollTop };
    this.canvas.style.cursor = this.#pointed.row >= 0 ? 'pointer' : 'default';
    const surface = this.surface(frame.width, frame.height);
    drawLines(surface, this.#data.map, this.#data.options, frame, this.#pointed);
  }

  /** @param {MouseEvent} event @returns {Cell} */
  #hit(event) {
    const { map } = /** @type {LinesData} */ (this.#data);
    const box = this.canvas.getBoundingClientRect();
    const place = Math.floor((event.clientY - box.top + this.#scroller().scrollTop) / rowHeight(map));
    const isLeft = event.clientX - box.left < box.width / 2;
    const there = place >= 0 && place < (isLeft ? map.rows : map.columns).length ? place : -1;
    return isLeft ? { row: there, column: -1 } : { row: -1, column: there };
  }

  /** @param {Cell} cell @param {boolean} byKey */
  #point(cell, byKey) {
    this.tell('point', { cell, byKey });
  }

  /** @param {Cell} cell */
  #pick(cell) {
    if (cell.row >= 0 || cell.column >= 0) this.tell('pick', cell);
  }

  /** @param {PointerEvent} event */
  #move(event) {
    const cell = this.#hit(event);
    if (cell.row !== this.#pointed.row || cell.column !== this.#pointed.column) this.#point(cell, false);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { map } = /** @type {LinesData} */ (this.#data);
    /** @type {Object<string, number>} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (steps[event.key]) {
      const row = Math.max(0, Math.min(map.rows.length - 1, this.#pointed.row + steps[event.key]));
      this.#reveal(row * rowHeight(map), rowHeight(map));
      this.#point({ row, column: -1 }, true);
    } else if (event.key === 'Enter' && this.#pointed.row >= 0)
      this.#pick({ row: this.#pointed.row, column: -1 });
    else return;
    event.preventDefault();
  }

  /** @param {number} top @param {number} height pixels of what is to be seen */
  #reveal(top, height) {
    const scroller = this.#scroller();
    const { scrollTop, clientHeight } = scroller;
    if (top < scrollTop || top + height > scrollTop + clientHeight)
      scroller.scrollTop = top - clientHeight / 2;
  }
}

customElements.define('lines-map', LinesMap);
