/**
 * `<map-view>`: one map as lines, as a heatmap and as a table of its strongest links, with a shared pointer.
 * Dispatches `hold` (a row), `link` (a cell), `unpick` (either was the start of a double click) and `zoom`.
 */

import { bdi, html, nothing, render, share } from '../core/html.js';
import { placeOf } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { heatmapScene, NOTHING } from '../draw/heatmap.js';
import { linesScene } from '../draw/lines.js';
import { sideBySide } from '../draw/scene.js';
import './heat-map.js';
import './lines-map.js';

const LINKS = 10;
const TOLD = 3;

/**
 * @typedef {import('../draw/heatmap.js').Cell} Cell
 * @typedef {import('../core/maps.js').NamedMap} NamedMap
 * @typedef {import('../draw/heatmap.js').HeatmapOptions & import('../draw/lines.js').LinesOptions} MapOptions
 * @typedef {{map: NamedMap, options: MapOptions}} MapData
 */

export class MapView extends HTMLElement {
  /** @type {MapData|null} */
  #data = null;
  #pointed = NOTHING;
  #byKey = false;
  #byTouch = false;

  /** @param {MapData} data */
  set data(data) {
    if (data.map !== this.#data?.map) this.#pointed = NOTHING;
    this.#data = data;
    this.#render(data);
  }

  /** @param {MapData} data */
  #render(data) {
    const point = (
      /** @type {CustomEvent<{cell: Cell, byKey: boolean, byTouch?: boolean}>} */ { detail },
    ) => {
      this.#pointed = detail.cell;
      this.#byKey = detail.byKey;
      this.#byTouch = detail.byTouch ?? false;
      this.#render(data);
    };
    const pointed = this.#pointed;
    const { caption, links, rest = 0 } = strongest(data, pointed);
    const more = data.map.columns.length - links.length;
    render(
      html`<div class="mapview-lines">
          <lines-map class="lines" .data=${data} .pointed=${pointed} @point=${point}
            @pick=${(/** @type {CustomEvent<Cell>} */ event) => this.#picked(event.detail)}></lines-map>
        </div>
        <div class="mapview-heatmap">
          <heat-map class="heatmap" .data=${zooming(data)} .pointed=${pointed} @point=${point}
            @zoom=${(/** @type {CustomEvent<number[]>} */ event) => this.#tell('zoom', event.detail)}
            @unpick=${() => this.#tell('unpick', null)}
            @pick=${(/** @type {CustomEvent<Cell>} */ event) => this.#picked(event.detail)}></heat-map>
          <p class="readout" aria-live=${this.#byKey ? 'polite' : 'off'}>${says(data, pointed)}${this.#byTouch ? this.#chooser(pointed) : nothing}</p>
        </div>
        <div class="mapview-links"><table class="links"><caption>${caption}</caption>
          <thead><tr><th scope="col">from</th><th scope="col">to</th><th scope="col" class="number">${data.map.measure === 'norms' ? 'norm' : 'weight'}</th></tr></thead>
          <tbody>${links.map((link) => this.#row(data, link))}</tbody>
          ${rest && more > 0 ? html`<tfoot><tr><td colspan="2">${more} more</td><td class="number">${rest.toFixed(4)}</td></tr></tfoot>` : nothing}
        </table><p class="says">Click or tap a row to choose its pair.</p></div>`,
      this,
    );
  }

  /** @param {MapData} data @param {Cell} cell */
  #row({ map, options }, cell) {
    const weight = weightOf(map, cell);
    return html`<tr @click=${() => this.#tell('link', cell)}>
      <td>${bdi(map.rows[cell.row].name)}</td><td>${bdi(map.columns[cell.column].name)}</td>
      <td class="number"><span class="meter" .style=${share(weight / options.unit)}></span>${weight.toFixed(4)}</td></tr>`;
  }

  /** Button that picks the cell that was tapped. @param {Cell} cell */
  #chooser(cell) {
    if (cell.row < 0) return nothing;
    const name = cell.column < 0 ? 'Hold this token' : 'Choose this pair';
    return html` <button type="button" class="quiet" @click=${() => this.#picked(cell)}>${name}</button>`;
  }

  /** @param {Cell} cell */
  #picked(cell) {
    if (cell.row >= 0 && cell.column >= 0) this.#tell('link', cell);
    else if (cell.row >= 0) this.#tell('hold', cell.row);
  }

  /** @param {string} type @param {unknown} detail */
  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

customElements.define('map-view', MapView);

/** @type {WeakMap<MapData, import('./heat-map.js').HeatmapData>} */
const zoomed = new WeakMap();

/** @param {MapData} data */
function zooming(data) {
  const known = zoomed.get(data);
  if (known) return known;
  const made = { ...data, zooms: true };
  zoomed.set(data, made);
  return made;
}

/** @param {NamedMap} map @param {Cell} cell */
const weightOf = ({ weights, columns }, { row, column }) => weights[row * columns.length + column];

/** @param {NamedMap} map @param {number} row */
const rowOf = ({ weights, columns }, row) =>
  weights.subarray(row * columns.length, (row + 1) * columns.length);

/** Describe the cell, row or column under the pointer. @param {MapData} data @param {Cell} pointed */
function says({ map, options }, pointed) {
  const { row, column } = pointed;
  const { rows, columns } = map;
  if (row >= 0 && column >= 0)
    return html`${bdi(rows[row].name)} → ${bdi(columns[column].name)}  ${weightOf(map, pointed).toFixed(4)}`;
  if (row >= 0) {
    const seen = rowOf(map, row);
    const most = largest(seen, TOLD).map((i) => html`, ${bdi(columns[i].name)} ${seen[i].toFixed(2)}`);
    return html`“${bdi(rows[row].name)}” looks at …${most}`;
  }
  if (column >= 0) return html`“${bdi(columns[column].name)}” is looked at by …`;
  return `Point at a token or a cell; click to hold a token. Strongest colour: ${options.full.toPrecision(2)}.`;
}

/** @param {MapData} data @param {Cell} pointed */
function strongest({ map, options }, { row, column }) {
  const { rows, columns, weights } = map;
  const width = columns.length;
  if (row < 0 && column >= 0) {
    const looking = rows.map((_, i) => weights[i * width + column]);
    const links = largest(looking, LINKS).map((i) => ({ row: i, column }));
    return { caption: html`Who looks at “${bdi(columns[column].name)}”`, links };
  }
  const held = options.pins.map((token) => placeOf(rows, token)).filter((place) => place >= 0);
  const chosen = row >= 0 ? row : (held.at(-1) ?? -1);
  if (chosen >= 0) {
    const row = rowOf(map, chosen);
    const links = largest(row, LINKS).map((i) => ({ row: chosen, column: i }));
    const all = row.reduce((sum, weight) => sum + weight, 0);
    const rest = links.reduce((sum, { column: i }) => sum - row[i], all);
    return { caption: html`What “${bdi(rows[chosen].name)}” looks at`, links, rest };
  }
  const links = strongestCells(weights).map((i) => ({ row: Math.floor(i / width), column: i % width }));
  return { caption: 'Strongest links', links };
}

/** Return the largest cells of a map without sorting all of it. @param {Float32Array} weights */
function strongestCells(weights) {
  /** @type {number[]} */
  const top = [];
  for (let i = 0; i < weights.length; i += 1) {
    if (top.length === LINKS && weights[i] <= weights[top[LINKS - 1]]) continue;
    let place = top.length;
    while (place > 0 && weights[top[place - 1]] < weights[i]) place -= 1;
    top.splice(place, 0, i);
    if (top.length > LINKS) top.pop();
  }
  return top;
}

/** Return the scene for a file: lines and heatmap side by side. @param {MapData} data */
export const mapScene = ({ map, options }) =>
  sideBySide([linesScene(map, options), heatmapScene(map, options)], 32);
