/** One map in three forms that follow each other: lines, heatmap, table of the strongest links. */

import { element } from './dom.js';
import { Heatmap } from './heatmap.js';
import { Lines } from './lines.js';
import { placeOf } from './maps.js';
import { largest, peak } from './matrix.js';

const LINKS = 10;
const NOTHING = { row: -1, column: -1 };

export class MapView {
  #map = null;
  #state = null;
  #full = 1;
  #readout;
  #caption;
  #body;

  /** @param {{go: Function, state: import('./state.js').State}} page */
  constructor(page) {
    this.page = page;
    const onFocus = (focus, byKey) => this.#follow(focus, byKey);
    const onPin = (row) => this.#pin(row);
    this.lines = new Lines({ onFocus, onPin });
    this.heatmap = new Heatmap({
      onFocus,
      onPin,
      onZoom: (zoom) =>
        page.go({ zoom: zoom.map((value) => Math.round(value * 100) / 100) }, { replace: true }),
    });
    this.#readout = element('p', { class: 'readout', 'aria-live': 'off' });
    this.#caption = element('caption');
    this.#body = element('tbody');
    const header = element(
      'tr',
      {},
      ...['from', 'to', 'weight'].map((name) => element('th', { scope: 'col' }, name)),
    );
    const table = element(
      'table',
      { class: 'links' },
      this.#caption,
      element('thead', {}, header),
      this.#body,
    );
    this.element = element(
      'div',
      { class: 'mapview' },
      element('div', { class: 'mapview-lines' }, this.lines.element),
      element('div', { class: 'mapview-heatmap' }, this.heatmap.element, this.#readout),
      element('div', { class: 'mapview-links' }, table),
    );
  }

  /**
   * @param {import('./maps.js').NamedMap} map
   * @param {import('./state.js').State} state
   * @param {string} name of the map
   */
  show(map, state, name) {
    this.#map = map;
    this.#state = state;
    this.#full = state.linear ? 1 : peak(map.weights);
    const options = {
      full: this.#full,
      pins: state.pins,
      min: state.min,
      linear: state.linear,
      zoom: state.zoom,
      name,
    };
    this.lines.show(map, options);
    this.heatmap.show(map, options);
    this.#follow(NOTHING, false);
  }

  redraw() {
    this.lines.redraw();
    this.heatmap.redraw();
  }

  #pin(row) {
    const [token] = this.#map.rows[row].tokens;
    const { pins: before } = this.page.state;
    const held = before.filter((pin) => placeOf(this.#map.rows, pin) !== row);
    const pins = held.length < before.length ? held : [...held, token];
    this.page.go({ pins }, { replace: true });
  }

  #follow(focus, byKey) {
    this.lines.focus(focus);
    this.heatmap.focus(focus);
    this.#readout.setAttribute('aria-live', byKey ? 'polite' : 'off');
    this.#readout.textContent = this.#say(focus);
    this.#fillTable(focus);
  }

  #say({ row, column }) {
    const { rows, columns, weights } = this.#map;
    if (row >= 0 && column >= 0)
      return `${rows[row].name} → ${columns[column].name}  ${weights[row * columns.length + column].toFixed(4)}`;
    if (row >= 0) return `${rows[row].name} looks at …`;
    if (column >= 0) return `${columns[column].name} is looked at by …`;
    return `Point at a token or a cell; click to hold a token. Strongest colour: ${this.#full.toPrecision(2)}.`;
  }

  /** @returns {{caption: string, links: [number, number][]}} places of row and column */
  #strongest({ row, column }) {
    const { rows, columns, weights } = this.#map;
    const width = columns.length;
    if (row < 0 && column >= 0) {
      const looking = rows.map((_, i) => weights[i * width + column]);
      return {
        caption: `Who looks at ${columns[column].name}`,
        links: largest(looking, LINKS).map((i) => [i, column]),
      };
    }
    const held = this.#state.pins.map((token) => placeOf(rows, token)).filter((place) => place >= 0);
    const chosen = row >= 0 ? row : (held.at(-1) ?? -1);
    if (chosen >= 0) {
      const seen = weights.subarray(chosen * width, (chosen + 1) * width);
      return {
        caption: `What ${rows[chosen].name} looks at`,
        links: largest(seen, LINKS).map((i) => [chosen, i]),
      };
    }
    return {
      caption: 'Strongest links',
      links: strongestCells(weights, LINKS).map((i) => [Math.floor(i / width), i % width]),
    };
  }

  #fillTable(focus) {
    const { rows, columns, weights } = this.#map;
    const { caption, links } = this.#strongest(focus);
    this.#caption.textContent = caption;
    this.#body.replaceChildren(
      ...links.map(([row, column]) => {
        const weight = weights[row * columns.length + column];
        const meter = element('span', { class: 'meter' });
        meter.style.setProperty('--share', weight);
        return element(
          'tr',
          {},
          element('td', {}, rows[row].name),
          element('td', {}, columns[column].name),
          element('td', { class: 'number' }, meter, weight.toFixed(4)),
        );
      }),
    );
  }

  /** For export: lines and heatmap side by side. */
  scene() {
    const [left, right] = [this.lines.scene(), this.heatmap.scene()];
    const gap = 32;
    return {
      width: left.width + gap + right.width,
      height: Math.max(left.height, right.height),
      parts: [
        { x: 0, y: 0, ...left },
        { x: left.width + gap, y: 0, ...right },
      ],
    };
  }
}

/** The largest cells of a map without sorting all of it. */
function strongestCells(weights, count) {
  const top = [];
  for (let i = 0; i < weights.length; i += 1) {
    if (top.length < count || weights[i] > weights[top.at(-1)]) {
      let place = top.length;
      while (place > 0 && weights[top[place - 1]] < weights[i]) place -= 1;
      top.splice(place, 0, i);
      if (top.length > count) top.pop();
    }
  }
  return top;
}
