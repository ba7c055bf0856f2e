/** A map as lines from the tokens that look, on the left, to those they look at, on the right. */

import { themeColours } from './colours.js';
import { element, oncePerFrame, sharpContext } from './dom.js';
import { placeOf } from './maps.js';
import { largest } from './matrix.js';
import { CanvasSurface, fit } from './surface.js';

const ROW = { most: 26, least: 13 };
const VIEWPORT = 620;
const FAINTEST = 0.004;
const EDGE_LABELS = 4;

export class Lines {
  #map = null;
  #options = { pins: [], min: 0, full: 1 };
  #focus = { row: -1, column: -1 };
  #scroller;
  #canvas;
  #space;
  #hint;
  #redraw = oncePerFrame(() => this.#drawScreen());

  /** @param {{onFocus: (focus: {row: number, column: number}, byKey: boolean) => void, onPin: (row: number) => void}} listeners */
  constructor({ onFocus, onPin }) {
    this.onFocus = onFocus;
    this.onPin = onPin;
    this.#canvas = element('canvas', {
      tabIndex: 0,
      role: 'img',
      on: {
        pointermove: (event) => this.#point(event),
        pointerleave: () => this.onFocus({ row: -1, column: -1 }, false),
        click: (event) => this.#click(event),
        keydown: (event) => this.#key(event),
      },
    });
    this.#space = element('div', { class: 'lines-space' }, this.#canvas);
    this.#scroller = element(
      'div',
      { class: 'lines-scroll', on: { scroll: () => this.#redraw() } },
      this.#space,
    );
    this.#hint = element(
      'div',
      { class: 'lines-heads' },
      element('span', {}, 'this token …'),
      element('span', {}, '… looks at'),
    );
    this.element = element('div', { class: 'lines' }, this.#hint, this.#scroller);
    new ResizeObserver(() => this.#redraw()).observe(this.#scroller);
  }

  /**
   * @param {import('./maps.js').NamedMap} map
   * @param {{pins: number[], min: number, full: number, name: string}} options `pins` are tokens;
   *   `full` is the weight that is drawn strongest
   */
  show(map, options) {
    this.#map = map;
    this.#options = options;
    this.#canvas.setAttribute(
      'aria-label',
      `${options.name} as lines, ${map.rows.length} to ${map.columns.length}. ` +
        'Up and down move between tokens, Enter holds one; the table says what it looks at.',
    );
    this.#space.style.height = `${this.#height()}px`;
    this.#scroller.style.height = `${Math.min(VIEWPORT, this.#height())}px`;
    this.#redraw();
  }

  focus(focus) {
    this.#focus = focus;
    this.#redraw();
  }

  redraw() {
    this.#redraw();
  }

  #count() {
    return Math.max(this.#map.rows.length, this.#map.columns.length);
  }

  #rowHeight() {
    return Math.max(ROW.least, Math.min(ROW.most, VIEWPORT / this.#count()));
  }

  #height() {
    return Math.ceil(this.#count() * this.#rowHeight());
  }

  #gutter(width) {
    return Math.max(70, Math.min(150, width * 0.3));
  }

  #hit(event) {
    const box = this.#canvas.getBoundingClientRect();
    const place = Math.floor((event.clientY - box.top + this.#scroller.scrollTop) / this.#rowHeight());
    if (event.clientX - box.left < box.width / 2)
      return { row: place < this.#map.rows.length ? place : -1, column: -1 };
    return { row: -1, column: place < this.#map.columns.length ? place : -1 };
  }

  #point(event) {
    if (!this.#map) return;
    const focus = this.#hit(event);
    if (focus.row !== this.#focus.row || focus.column !== this.#focus.column) this.onFocus(focus, false);
  }

  #click(event) {
    const { row } = this.#hit(event);
    if (row >= 0) this.onPin(row);
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (step) {
      const row = Math.max(0, Math.min(this.#map.rows.length - 1, this.#focus.row + step));
      const top = row * this.#rowHeight();
      const { scrollTop, clientHeight } = this.#scroller;
      if (top < scrollTop || top + this.#rowHeight() > scrollTop + clientHeight)
        this.#scroller.scrollTop = top - clientHeight / 2;
      this.onFocus({ row, column: -1 }, true);
    } else if (event.key === 'Enter' && this.#focus.row >= 0) this.onPin(this.#focus.row);
    else if (event.key === 'Escape') this.onFocus({ row: -1, column: -1 }, true);
    else return;
    event.preventDefault();
  }

  #drawScreen() {
    const { clientWidth: width, clientHeight: height } = this.#scroller;
    if (!this.#map || !width) return;
    const surface = new CanvasSurface(sharpContext(this.#canvas, width, height));
    this.#draw(surface, width, height, this.#scroller.scrollTop);
  }

  /** For export: everything, at this width. */
  scene() {
    const width = Math.max(320, this.#scroller.clientWidth);
    return {
      width,
      height: this.#height(),
      draw: (surface) => this.#draw(surface, width, this.#height(), 0),
    };
  }

  #draw(surface, width, height, top) {
    const { rows, columns } = this.#map;
    const row = this.#rowHeight();
    const gutter = this.#gutter(width);
    const colours = themeColours();
    const view = {
      surface,
      width,
      height,
      top,
      row,
      gutter,
      colours,
      left: gutter + 8,
      right: width - gutter - 8,
    };
    const held = this.#options.pins.map((token) => placeOf(rows, token)).filter((place) => place >= 0);
    const isolated = this.#focus.row >= 0 ? [...new Set([...held, this.#focus.row])] : held;
    this.#drawLinks(view, isolated);
    this.#drawNames(view, rows, isolated, true);
    this.#drawNames(view, columns, [this.#focus.column], false, this.#shares(isolated));
    const leading = this.#focus.row >= 0 ? this.#focus.row : held.at(-1);
    if (leading !== undefined && this.#focus.column < 0) this.#drawEdges(view, leading);
  }

  /** What the isolated rows give each column, on average; nothing when none is isolated. */
  #shares(isolated) {
    const width = this.#map.columns.length;
    const shares = new Float32Array(width);
    for (const place of isolated) {
      for (let i = 0; i < width; i += 1) shares[i] += this.#map.weights[place * width + i] / isolated.length;
    }
    return shares;
  }

  #drawLinks(view, isolated) {
    const { rows, columns } = this.#map;
    const { surface, top, row, height, colours, left, right } = view;
    const inView = (place) => (place + 1) * row >= top && place * row <= top + height;
    const only = this.#focus.column;
    const least = only >= 0 || isolated.length ? FAINTEST : Math.max(FAINTEST, this.#options.min);
    const from = isolated.length && only < 0 ? isolated : rows.keys();
    for (const place of from) {
      for (let other = 0; other < columns.length; other += 1) {
        const weight = this.#map.weights[place * columns.length + other];
        if (weight < least || (only >= 0 && other !== only) || !(inView(place) || inView(other))) continue;
        const marked = isolated.length > 0 || only >= 0;
        surface.curve(
          left,
          (place + 0.5) * row - top,
          right,
          (other + 0.5) * row - top,
          marked ? colours.mark : colours.line,
          Math.min(1, 0.06 + weight / this.#options.full),
          0.6 + (2.6 * weight) / this.#options.full,
        );
      }
    }
  }

  #drawNames({ surface, width, height, top, row, gutter, colours }, units, strong, isLeft, shares = null) {
    const first = Math.max(0, Math.floor(top / row));
    const last = Math.min(units.length - 1, Math.ceil((top + height) / row));
    const size = row < 16 ? 11 : 13;
    for (let i = first; i <= last; i += 1) {
      const y = (i + 0.5) * row - top;
      const bold = strong.includes(i);
      if (shares && shares[i] > FAINTEST)
        surface.rect(
          width - gutter,
          y - row / 2 + 1,
          gutter,
          row - 2,
          colours.mark,
          Math.min(0.6, shares[i]),
        );
      if (bold)
        surface.rect(isLeft ? 0 : width - gutter, y - row / 2 + 1, gutter, row - 2, colours.line, 0.16);
      const label = fit(units[i].label, gutter - 12, size);
      surface.text(label, isLeft ? gutter : width - gutter + 6, y, {
        size,
        bold,
        align: isLeft ? 'right' : 'left',
        colour: units[i].special ? colours.soft : colours.ink,
      });
      if (i > 0 && units[i].segment !== units[i - 1].segment) {
        surface.line(
          isLeft ? 0 : width - gutter,
          y - row / 2,
          isLeft ? gutter : width,
          y - row / 2,
          colours.soft,
        );
      }
    }
  }

  /** The strongest links that lead out of view, named at the edge they leave by. */
  #drawEdges({ surface, width, height, top, row, gutter, colours }, leading) {
    const { columns, weights } = this.#map;
    const start = leading * columns.length;
    const strongest = largest(weights.subarray(start, start + columns.length), 8).filter(
      (i) => weights[start + i] > 0.02,
    );
    for (const above of [true, false]) {
      const out = strongest
        .filter((i) => (above ? (i + 0.5) * row < top : (i + 0.5) * row > top + height))
        .slice(0, EDGE_LABELS);
      out.forEach((i, place) => {
        const y = above ? (place + 0.5) * 18 : height - (place + 0.5) * 18;
        surface.rect(width - gutter - 2, y - 9, gutter + 2, 18, colours.ground);
        surface.text(
          `${above ? '↑' : '↓'} ${fit(columns[i].name, gutter - 60)} ${weights[start + i].toFixed(2)}`,
          width - gutter + 6,
          y,
          { size: 12, bold: true, colour: colours.mark },
        );
      });
    }
  }
}
