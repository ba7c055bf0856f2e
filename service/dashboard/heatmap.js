/** A map as a grid of colours that can be zoomed, dragged and walked through with the keys. */

import { paint, themeColours } from './colours.js';
import { element, oncePerFrame, sharpContext } from './dom.js';
import { decorate } from './heatmap-marks.js';
import { placeOf } from './maps.js';
import { CanvasSurface } from './surface.js';

const MAX_ZOOM = 64;

export class Heatmap {
  #map = null;
  #options = { pins: [], linear: false, zoom: [1, 0, 0], full: 1 };
  #image = document.createElement('canvas');
  #painted = null;
  #focus = { row: -1, column: -1 };
  #zoom = [1, 0, 0];
  #drag = null;
  #frame;
  #canvas;
  #redraw = oncePerFrame(() => this.#drawScreen());

  /**
   * @param {{onFocus: Function, onPin?: Function, onZoom?: Function, small?: boolean}} listeners
   *   without `onZoom` it stays whole
   */
  constructor({ onFocus, onPin = () => {}, onZoom = null, small = false }) {
    Object.assign(this, { onFocus, onPin, onZoom, small });
    this.#canvas = element('canvas', {
      tabIndex: 0,
      role: 'img',
      on: {
        pointerdown: (event) => this.#press(event),
        pointermove: (event) => this.#point(event),
        pointerup: (event) => this.#release(event),
        pointercancel: () => {
          this.#drag = null;
        },
        pointerleave: () => {
          if (!this.#drag) this.onFocus({ row: -1, column: -1 }, false);
        },
        keydown: (event) => this.#key(event),
      },
    });
    if (onZoom) {
      this.#canvas.addEventListener('dblclick', (event) => this.#zoomAt(2, this.#cellAt(event)));
      this.#canvas.addEventListener('wheel', (event) => this.#wheel(event), { passive: false });
    }
    this.#frame = element('div', { class: 'heatmap-frame' }, this.#canvas);
    this.element = element('div', { class: 'heatmap' }, this.#frame, onZoom ? this.#buttons() : null);
    new ResizeObserver(() => this.#redraw()).observe(this.#frame);
  }

  #buttons() {
    const button = (text, label, act) =>
      element(
        'button',
        { type: 'button', class: 'quiet', 'aria-label': label, title: label, on: { click: act } },
        text,
      );
    return element(
      'div',
      { class: 'zoom', role: 'group', 'aria-label': 'Zoom' },
      button('−', 'Zoom out', () => this.#zoomAt(0.5)),
      button('+', 'Zoom in', () => this.#zoomAt(2)),
      button('Whole', 'Show the whole map', () => this.#setZoom([1, 0, 0])),
    );
  }

  /** @param {import('./maps.js').NamedMap} map */
  show(map, options) {
    this.#map = map;
    this.#options = options;
    this.#zoom = this.onZoom ? options.zoom : [1, 0, 0];
    this.#painted = null;
    this.#canvas.setAttribute(
      'aria-label',
      `${options.name} as a heatmap, ${map.rows.length} by ${map.columns.length}. ` +
        'Arrow keys move between cells.',
    );
    this.#redraw();
  }

  focus(focus) {
    this.#focus = focus;
    this.#redraw();
  }

  redraw() {
    this.#painted = null;
    this.#redraw();
  }

  #layout(width) {
    const { rows, columns } = this.#map;
    const [factor] = this.#zoom;
    const left = this.small ? 64 : 86;
    const top = this.small ? 56 : 70;
    const side = Math.max(60, width - left - 4);
    const cell = (side / Math.max(rows.length, columns.length)) * factor;
    const wide = Math.min(columns.length, side / cell);
    const high = Math.min(rows.length, side / cell);
    const x = Math.max(0, Math.min(columns.length - wide, this.#zoom[1]));
    const y = Math.max(0, Math.min(rows.length - high, this.#zoom[2]));
    return { left, top, cell, wide, high, x, y, width, height: top + high * cell + 4 };
  }

  #cellAt(event) {
    const box = this.#canvas.getBoundingClientRect();
    const { left, top, cell, wide, high, x, y } = this.#layout(box.width);
    const across = (event.clientX - box.left - left) / cell;
    const down = (event.clientY - box.top - top) / cell;
    if (across >= wide || down >= high || (across < 0 && down < 0)) return { row: -1, column: -1 };
    return { row: down < 0 ? -1 : Math.floor(y + down), column: across < 0 ? -1 : Math.floor(x + across) };
  }

  #press(event) {
    if (this.#zoom[0] > 1) {
      this.#drag = { x: event.clientX, y: event.clientY, zoom: this.#zoom, moved: false };
      this.#canvas.setPointerCapture(event.pointerId);
    }
  }

  #point(event) {
    if (!this.#map) return;
    if (this.#drag) {
      const { cell } = this.#layout(this.#canvas.clientWidth);
      const [dx, dy] = [event.clientX - this.#drag.x, event.clientY - this.#drag.y];
      if (Math.abs(dx) + Math.abs(dy) > 4) this.#drag.moved = true;
      const [factor, x, y] = this.#drag.zoom;
      if (this.#drag.moved) this.#place([factor, x - dx / cell, y - dy / cell]);
      return;
    }
    const focus = this.#cellAt(event);
    if (focus.row !== this.#focus.row || focus.column !== this.#focus.column) this.onFocus(focus, false);
  }

  #release(event) {
    const dragged = this.#drag?.moved;
    this.#drag = null;
    if (dragged) this.onZoom(this.#zoom);
    else {
      const { row } = this.#cellAt(event);
      if (row >= 0) this.onPin(row);
    }
  }

  #wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.#zoomAt(2 ** (-event.deltaY / 200), this.#cellAt(event));
  }

  #key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const actions = this.onZoom
      ? {
          '+': () => this.#zoomAt(2),
          '=': () => this.#zoomAt(2),
          '-': () => this.#zoomAt(0.5),
          0: () => this.#setZoom([1, 0, 0]),
        }
      : {};
    if (moves[event.key]) {
      const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
      const [down, across] = moves[event.key];
      const row = clamp(this.#focus.row + down, this.#map.rows.length);
      const column = clamp(this.#focus.column + across, this.#map.columns.length);
      this.#reveal(row, column);
      this.onFocus({ row, column }, true);
    } else if (event.key === 'Enter' && this.#focus.row >= 0) this.onPin(this.#focus.row);
    else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  }

  #reveal(row, column) {
    const { x, y, wide, high } = this.#layout(this.#canvas.clientWidth);
    const near = (place, start, span) =>
      place < start ? place : place + 1 > start + span ? place + 1 - span : start;
    this.#place([this.#zoom[0], near(column, x, wide), near(row, y, high)]);
  }

  #zoomAt(by, { row, column } = this.#focus) {
    if (!this.#map) return;
    const before = this.#layout(this.#canvas.clientWidth);
    const factor = Math.max(
      1,
      Math.min(MAX_ZOOM, Math.max(this.#map.rows.length, this.#map.columns.length) / 4, this.#zoom[0] * by),
    );
    const shrunk = this.#zoom[0] / factor;
    const across = column >= 0 ? column + 0.5 : before.x + before.wide / 2;
    const down = row >= 0 ? row + 0.5 : before.y + before.high / 2;
    this.#setZoom([factor, across - (across - before.x) * shrunk, down - (down - before.y) * shrunk]);
  }

  #place(zoom) {
    this.#zoom = zoom;
    const { x, y } = this.#layout(this.#canvas.clientWidth);
    this.#zoom = [zoom[0], x, y];
    this.#redraw();
  }

  #setZoom(zoom) {
    this.#place(zoom);
    this.onZoom(this.#zoom);
  }

  #drawScreen() {
    const width = this.#frame.clientWidth;
    if (!this.#map || !width) return;
    const { height } = this.#layout(width);
    this.#draw(new CanvasSurface(sharpContext(this.#canvas, width, height)), width);
  }

  /** For export. */
  scene() {
    const width = Math.max(240, this.#frame.clientWidth);
    return { width, height: this.#layout(width).height, draw: (surface) => this.#draw(surface, width) };
  }

  #draw(surface, width) {
    const { rows, columns, weights, signed } = this.#map;
    const view = this.#layout(width);
    const { left, top, cell, wide, high, x, y } = view;
    const colours = themeColours();
    if (this.#painted !== this.#map) {
      paint(this.#image, weights, columns.length, rows.length, {
        linear: this.#options.linear,
        signed,
        full: this.#options.full,
      });
      this.#painted = this.#map;
    }
    surface.picture(this.#image, [x, y, wide, high], left, top, wide * cell, high * cell);
    surface.frame(left, top, wide * cell, high * cell, colours.faint);
    const held = this.#options.pins.map((token) => placeOf(rows, token));
    decorate(surface, view, { map: this.#map, focus: this.#focus, held, colours });
  }
}
