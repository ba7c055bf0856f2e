/**
 * `<heat-map>`: a map on the screen that can be zoomed, dragged and walked through with the keys. Dispatches
 * `point` (a cell, and how), `pick` (a cell), `unpick` (the pick was the start of a double click) and `zoom`.
 * A tap points and stays; it picks nothing.
 */

import { html, nothing, render } from '../core/html.js';
import { drawHeatmap, layoutOf, NOTHING } from '../draw/heatmap.js';
import { DrawnElement } from './drawn.js';

/** @typedef {import('../draw/heatmap.js').Cell} Cell */
/** @typedef {{map: import('../core/maps.js').NamedMap, options: import('../draw/heatmap.js').HeatmapOptions, zooms: boolean}} HeatmapData */

const MAX_ZOOM = 64;

export class HeatMap extends DrawnElement {
  /** @type {HeatmapData|null} */
  #data = null;
  /** @type {Cell} */
  #pointed = NOTHING;
  /** @type {number[]} */
  #zoom = [1, 0, 0];
  /** @type {{x: number, y: number, zoom: number[], moved: boolean}|null} */
  #drag = null;
  #dragged = false;
  #byTouch = false;

  /** @param {HeatmapData} data */
  set data(data) {
    this.#data = data;
    if (!this.#drag) this.#zoom = data.zooms ? data.options.zoom : [1, 0, 0];
    this.#render(data);
    this.redraw();
  }

  /** @param {Cell} cell what any form of the map is pointed at */
  set pointed(cell) {
    this.#pointed = cell;
    this.redraw();
  }

  /** @param {HeatmapData} data */
  #render({ map, options, zooms }) {
    const label = `${options.name} as a heatmap, ${map.rows.length} by ${map.columns.length}. Arrow keys move between cells.`;
    const on = (/** @type {(event: any) => void} */ act) => act;
    render(
      html`<div class="heatmap-frame"><canvas tabindex="0" role="img" aria-label=${label}
        @pointerdown=${on((event) => this.#press(event))} @pointermove=${on((event) => this.#move(event))}
        @pointerup=${() => this.#release()} @pointercancel=${() => {
          this.#drag = null;
        }}
        @pointerleave=${() => this.#byTouch || (this.#drag ?? this.#point(NOTHING))} @keydown=${on((event) => this.#key(event))}
        @click=${on((event) => this.#click(event))} @dblclick=${on((event) => zooms && this.#doubled(event))}
        @wheel=${{ handleEvent: on((event) => this.#wheel(event)), passive: false }}></canvas></div>
      ${zooms ? this.#buttons() : nothing}`,
      this,
    );
  }

  #buttons() {
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) =>
      html`<button type="button" class="quiet" aria-label=${label} title=${label} @click=${act}>${text}</button>`;
    return html`<div class="zoom" role="group" aria-label="Zoom">
      ${button('−', 'Zoom out', () => this.#zoomAt(0.5))}${button('+', 'Zoom in', () => this.#zoomAt(2))}
      <button type="button" class="quiet" title="Show the whole map" @click=${() => this.#setZoom([1, 0, 0])}>Whole</button>
    </div>`;
  }

  #shown() {
    return /** @type {HeatmapData} */ (this.#data);
  }

  /** @param {number} [width] */
  #layout(width = this.canvas.clientWidth) {
    const { map, options } = this.#shown();
    return layoutOf(map, { ...options, zoom: this.#zoom }, width);
  }

  /** @param {number} width @override */
  draw(width) {
    const { map, options } = this.#shown();
    const view = this.#layout(width);
    drawHeatmap(this.surface(width, view.height), map, options, view, this.#pointed);
  }

  /** @param {MouseEvent} event @returns {Cell} */
  #cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const { left, top, cell, tall, wide, high, x, y } = this.#layout(box.width);
    const across = (event.clientX - box.left - left) / cell;
    const down = (event.clientY - box.top - top) / tall;
    if (across >= wide || down >= high || (across < 0 && down < 0)) return NOTHING;
    return { row: down < 0 ? -1 : Math.floor(y + down), column: across < 0 ? -1 : Math.floor(x + across) };
  }

  /** @param {Cell} cell @param {{byKey?: boolean, byTouch?: boolean}} [how] */
  #point(cell, { byKey = false, byTouch = false } = {}) {
    this.tell('point', { cell, byKey, byTouch });
  }

  /** @param {PointerEvent} event */
  #press(event) {
    this.#byTouch = event.pointerType !== 'mouse';
    this.#dragged = false;
    if (this.#zoom[0] <= 1) return;
    this.#drag = { x: event.clientX, y: event.clientY, zoom: this.#zoom, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  #move(event) {
    if (this.#drag) {
      const { cell, tall } = this.#layout();
      const [dx, dy] = [event.clientX - this.#drag.x, event.clientY - this.#drag.y];
      if (Math.abs(dx) + Math.abs(dy) > 4) this.#drag.moved = true;
      const [factor, x, y] = this.#drag.zoom;
      if (this.#drag.moved) this.#place([factor, x - dx / cell, y - dy / tall]);
      return;
    }
    this.#byTouch = event.pointerType !== 'mouse';
    if (this.#byTouch) return;
    const cell = this.#cellAt(event);
    if (cell.row !== this.#pointed.row || cell.column !== this.#pointed.column) this.#point(cell);
  }

  #release() {
    this.#dragged = this.#drag?.moved ?? false;
    this.#drag = null;
    if (this.#dragged) this.tell('zoom', this.#zoom);
  }

  /** @param {MouseEvent} event */
  #click(event) {
    if (this.#dragged) return;
    if (this.#byTouch) this.#point(this.#cellAt(event), { byTouch: true });
    else if (event.detail < 2 || !this.#shown().zooms) this.tell('pick', this.#cellAt(event));
  }

  /** @param {MouseEvent} event */
  #doubled(event) {
    if (!this.#byTouch) this.tell('unpick', null);
    this.#zoomAt(2, this.#cellAt(event));
  }

  /** @param {WheelEvent} event */
  #wheel(event) {
    if (!this.#shown().zooms || (!event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    this.#zoomAt(2 ** (-event.deltaY / 200), this.#cellAt(event));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    /** @type {Object<string, number[]>} */
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    /** @type {Object<string, () => void>} */
    const zooms = {
      '+': () => this.#zoomAt(2),
      '=': () => this.#zoomAt(2),
      '-': () => this.#zoomAt(0.5),
      0: () => this.#setZoom([1, 0, 0]),
    };
    if (moves[event.key]) this.#step(moves[event.key]);
    else if (event.key === 'Enter' && this.#pointed.row >= 0) this.tell('pick', this.#pointed);
    else if (this.#shown().zooms && zooms[event.key]) zooms[event.key]();
    else return;
    event.preventDefault();
  }

  /** @param {number[]} by rows and columns */
  #step([down, across]) {
    const { rows, columns } = this.#shown().map;
    const clamp = (/** @type {number} */ value, /** @type {number} */ count) =>
      Math.max(0, Math.min(count - 1, value));
    const row = clamp(this.#pointed.row + down, rows.length);
    const column = clamp(this.#pointed.column + across, columns.length);
    const { x, y, wide, high } = this.#layout();
    const near = (/** @type {number} */ place, /** @type {number} */ start, /** @type {number} */ span) =>
      place < start ? place : place + 1 > start + span ? place + 1 - span : start;
    this.#place([this.#zoom[0], near(column, x, wide), near(row, y, high)]);
    this.#point({ row, column }, { byKey: true });
  }

  /** @param {number} by @param {Cell} [cell] */
  #zoomAt(by, { row, column } = this.#pointed) {
    const { map } = this.#shown();
    const before = this.#layout();
    const most = Math.min(MAX_ZOOM, Math.max(map.rows.length, map.columns.length) / 4);
    const factor = Math.max(1, Math.min(most, this.#zoom[0] * by));
    const shrunk = this.#zoom[0] / factor;
    const across = column >= 0 ? column + 0.5 : before.x + before.wide / 2;
    const down = row >= 0 ? row + 0.5 : before.y + before.high / 2;
    this.#setZoom([factor, across - (across - before.x) * shrunk, down - (down - before.y) * shrunk]);
  }

  /** @param {number[]} zoom */
  #place(zoom) {
    this.#zoom = zoom;
    const { x, y } = this.#layout();
    this.#zoom = [zoom[0], x, y];
    this.redraw();
  }

  /** @param {number[]} zoom */
  #setZoom(zoom) {
    this.#place(zoom);
    this.tell('zoom', this.#zoom);
  }
}

customElements.define('heat-map', HeatMap);
