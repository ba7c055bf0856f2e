/** Maps of one head beside each other: the one, the other, and where they fit, their difference. */

import { element } from './dom.js';
import { Heatmap } from './heatmap.js';
import { plainMap } from './maps.js';
import { difference, peak } from './matrix.js';

const NOTHING = { row: -1, column: -1 };

export class Threefold {
  #maps = [];
  #names = [];
  #heatmaps;
  #figures;
  #captions;
  #readout = element('p', { class: 'readout', 'aria-live': 'off' });

  constructor() {
    this.#heatmaps = [0, 1, 2].map(
      (index) => new Heatmap({ small: true, onFocus: (focus, byKey) => this.#follow(index, focus, byKey) }),
    );
    this.#captions = this.#heatmaps.map(() => element('figcaption'));
    this.#figures = this.#heatmaps.map((heatmap, i) =>
      element('figure', {}, this.#captions[i], heatmap.element),
    );
    this.element = element(
      'div',
      {},
      element('div', { class: 'threefold' }, ...this.#figures),
      this.#readout,
    );
  }

  /**
   * @param {import('./maps.js').NamedMap} first
   * @param {import('./maps.js').NamedMap} second
   * @param {string[]} names of the two
   * @param {import('./state.js').State} state
   */
  show(first, second, names, state) {
    this.#maps = [first, second];
    this.#names = [...names];
    if (first.weights.length === second.weights.length && first.rows.length === second.rows.length) {
      this.#maps.push({ ...second, weights: difference(second.weights, first.weights), signed: true });
      this.#names.push(`Difference, ${names[1].toLowerCase()} − ${names[0].toLowerCase()}`);
    }
    const full = Math.max(peak(first.weights), peak(second.weights));
    this.#figures[2].hidden = this.#maps.length < 3;
    this.#maps.forEach((map, i) => {
      this.#captions[i].textContent = this.#names[i];
      this.#heatmaps[i].show(map, {
        full,
        pins: [],
        linear: state.linear,
        zoom: [1, 0, 0],
        name: this.#names[i],
      });
    });
    this.#follow(0, NOTHING, false);
  }

  redraw() {
    this.#maps.forEach((_, i) => this.#heatmaps[i].redraw());
  }

  #follow(index, focus, byKey) {
    const aligned = this.#maps.length === 3;
    this.#maps.forEach((_, i) => this.#heatmaps[i].focus(aligned || i === index ? focus : NOTHING));
    this.#readout.setAttribute('aria-live', byKey ? 'polite' : 'off');
    const { row, column } = focus;
    if (row < 0 || column < 0) {
      this.#readout.textContent = 'Point at a cell.';
      return;
    }
    const said = this.#maps.map(({ rows, columns, weights }, i) =>
      aligned || i === index
        ? `${this.#names[i]}: ${rows[row].name} → ${columns[column].name} ${weights[row * columns.length + column].toFixed(4)}`
        : '',
    );
    this.#readout.textContent = said.filter(Boolean).join('   ');
  }

  scene() {
    const scenes = this.#maps.map((_, i) => this.#heatmaps[i].scene());
    let x = 0;
    const parts = scenes.map((scene, i) => {
      const part = { ...scene, x, y: 26, title: this.#names[i] };
      x += scene.width + 24;
      return part;
    });
    return { width: x - 24, height: 26 + Math.max(...scenes.map(({ height }) => height)), parts };
  }

  json() {
    return this.#maps.map((map, i) => ({ name: this.#names[i], ...plainMap(map) }));
  }
}
