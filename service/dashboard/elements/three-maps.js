/** `<three-maps>`: two maps side by side, with their difference if they have the same size. */

import { bdi, html, render } from '../core/html.js';
import { plainMap } from '../core/maps.js';
import { difference, peak } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { fixed } from '../core/numbers.js';
import { theme } from '../draw/colours.js';
import { heatmapScene, NOTHING } from '../draw/heatmap.js';
import { sideBySide } from '../draw/scene.js';
import './heat-map.js';

/**
 * @typedef {import('../draw/heatmap.js').Cell} Cell
 * @typedef {import('../core/maps.js').NamedMap} NamedMap
 * @typedef {{name: string, map: NamedMap, options: import('../draw/heatmap.js').HeatmapOptions, zooms: boolean}} Figure
 */

/** Return two maps and, if they have the same size, their difference. */
const figures = memo(
  /** @param {NamedMap} first @param {NamedMap} second @param {string} one @param {string} other @param {boolean} linear @param {boolean} fit @param {string} _theme */
  (first, second, one, other, linear, fit, _theme) => {
    const full = linear ? 1 : Math.max(peak(first.weights), peak(second.weights));
    const found = [
      { name: one, map: first },
      { name: other, map: second },
    ];
    if (fit && first.rows.length === second.rows.length && first.columns.length === second.columns.length) {
      const weights = difference(second.weights, first.weights);
      const name = `Difference, ${other.toLowerCase()} − ${one.toLowerCase()}`;
      found.push({ name, map: { ...second, weights, signed: true } });
    }
    return found.map(({ name, map }) => ({
      name,
      map,
      options: { name, full, linear, zoom: [1, 0, 0], pins: [], small: true },
      zooms: false,
    }));
  },
);

/**
 * @param {NamedMap} first
 * @param {NamedMap} second
 * @param {string[]} names of the two
 * @param {boolean} linear
 * @param {boolean} [fit] whether maps of one size have their difference
 * @returns {Figure[]}
 */
export const mapsWithDifference = (first, second, [one, other], linear, fit = true) =>
  figures(first, second, one, other, linear, fit, theme());

export class ThreeMaps extends HTMLElement {
  /** @type {Figure[]} */
  #data = [];
  /** @type {Cell} */
  #pointed = NOTHING;
  #figure = 0;
  #byKey = false;

  /** @param {Figure[]} data */
  set data(data) {
    if (data === this.#data) return;
    this.#data = data;
    this.#pointed = NOTHING;
    this.#render();
  }

  #render() {
    const point =
      (/** @type {number} */ i) => (/** @type {CustomEvent<{cell: Cell, byKey: boolean}>} */ event) => {
        this.#pointed = event.detail.cell;
        this.#byKey = event.detail.byKey;
        this.#figure = i;
        this.#render();
      };
    render(
      html`<div class="threefold">${this.#data.map(
        (figure, i) => html`<figure><figcaption>${figure.name}</figcaption>
            <heat-map class="heatmap" .data=${figure} .pointed=${this.#follows(i) ? this.#pointed : NOTHING}
              @point=${point(i)}></heat-map></figure>`,
      )}</div>
        <p class="readout" aria-live=${this.#byKey ? 'polite' : 'off'}>${this.#says()}</p>`,
      this,
    );
  }

  /** @param {number} figure whether it is pointed at where another one is */
  #follows(figure) {
    return this.#data.length === 3 || figure === this.#figure;
  }

  #says() {
    const { row, column } = this.#pointed;
    if (row < 0 || column < 0) return 'Point at a cell, or tap it.';
    return this.#data.map(({ name, map }, i) => {
      if (!this.#follows(i)) return '';
      const weight = fixed(map.weights[row * map.columns.length + column], 4);
      return html`${name}: ${bdi(map.rows[row].name)} → ${bdi(map.columns[column].name)} ${weight}   `;
    });
  }
}

customElements.define('three-maps', ThreeMaps);

/** Return the scene for a file. @param {Figure[]} data */
export const figuresScene = (data) =>
  sideBySide(data.map(({ name, map, options }) => ({ ...heatmapScene(map, options), title: name })));

/** @param {Figure[]} data */
export const figuresJson = (data) => data.map(({ name, map }) => ({ name, ...plainMap(map) }));
