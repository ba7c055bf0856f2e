/** `<map-view>` of the store's text, with its events. */

import { html } from '../core/html.js';
import { namedMap, placeOf, plainMap } from '../core/maps.js';
import { peak } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { theme } from '../draw/colours.js';
import '../elements/map-view.js';

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../elements/map-view.js').MapData} MapData
 * @typedef {import('../draw/lines.js').Overlay} Overlay
 */

/** @type {Overlay} */
const ALONE = { tone: -1, others: [] };

/**
 * Return the data of a map. The same arguments give the same object, so that nothing is redrawn without need.
 */
const made = memo(
  /** @param {import('../core/maps.js').NamedMap} map @param {string} name @param {number[]} pins @param {number} min @param {boolean} linear @param {number[]} zoom @param {Overlay} overlay @param {string} _theme */
  (map, name, pins, min, linear, zoom, overlay, _theme) => {
    const strongest = peak(map.weights);
    const highest = Math.max(strongest, ...overlay.others.map((one) => peak(one.map.weights)));
    const unit = map.measure === 'norms' ? strongest : 1;
    const full = linear ? unit : strongest;
    const heaviest = linear && map.measure !== 'norms' ? 1 : highest;
    return {
      map,
      options: { name, pins, min: min * unit, linear, zoom, full, heaviest, unit, overlay, small: false },
    };
  },
  2,
);

/**
 * @param {State} state
 * @param {import('../core/maps.js').NamedMap} map
 * @param {string} name
 * @param {number[]} pins rows that are held
 * @param {Overlay} [overlay]
 * @returns {MapData}
 */
export const dataOf = ({ min, linear, zoom }, map, name, pins, overlay = ALONE) =>
  made(map, name, pins, min, linear, zoom, overlay, theme());

/**
 * @param {State} state
 * @param {{reading: import('../api/reading.js').Reading, weights: Float32Array}} reply
 * @param {string} name
 * @param {import('../core/maps.js').Measure} measure
 * @param {Overlay} [overlay]
 */
export const mapDataOf = (state, { reading, weights }, name, measure, overlay) =>
  dataOf(state, namedMap(weights, reading, state, measure), name, state.pins, overlay);

/** @param {MapData} data */
export const mapJson = ({ map }) => plainMap(map);

/** State before the last pick. @type {Partial<State>} */
let beforePick = {};

/**
 * @param {Store} store
 * @param {MapData} data
 * @param {'pins'|'held'} [name] of what is held
 */
export function mapOf(store, data, name = 'pins') {
  const { rows, columns } = data.map;
  const isHeld = (/** @type {number} */ row) =>
    store.state[name].some((token) => placeOf(rows, token) === row);
  const without = (/** @type {number} */ row) =>
    store.state[name].filter((token) => placeOf(rows, token) !== row);
  const pick = (/** @type {Partial<State>} */ patch) => {
    const { from, to, pins, held } = store.state;
    beforePick = { from, to, pins, held };
    store.go(patch, { replace: true });
  };
  const hold = (/** @type {CustomEvent<number>} */ { detail: row }) =>
    pick({ [name]: isHeld(row) ? without(row) : [...store.state[name], rows[row].tokens[0]] });
  const link = (
    /** @type {CustomEvent<import('../elements/map-view.js').Cell>} */ { detail: { row, column } },
  ) => {
    const [from, to] = [rows[row].tokens[0], columns[column].tokens[0]];
    const again = isHeld(row) && (name === 'held' || (from === store.state.from && to === store.state.to));
    const held = again ? without(row) : [...without(row), from];
    pick({ [name]: held, ...(name === 'pins' ? { from, to } : {}) });
  };
  const zoom = (/** @type {CustomEvent<number[]>} */ { detail }) =>
    store.go({ zoom: detail.map((value) => Math.round(value * 100) / 100) }, { replace: true });
  return html`<map-view class="mapview" .data=${data} @hold=${hold} @link=${link} @zoom=${zoom}
    @unpick=${() => store.go(beforePick, { replace: true })}></map-view>`;
}
