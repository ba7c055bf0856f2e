/**
 * A map with its names.
 *
 * @typedef {import('./words.js').Unit} Unit
 * @typedef {{rows: Unit[], columns: Unit[], weights: Float32Array, signed?: boolean}} NamedMap
 *   `weights` `[rows, columns]`
 */

import { project } from './matrix.js';
import { unitsOf } from './words.js';

/**
 * The map as the state wants it seen: words merged, special tokens hidden, one quadrant of a pair.
 *
 * @param {Float32Array} weights `[S, S]`
 * @param {import('./reading.js').Reading} reading
 * @param {import('./state.js').State} state
 * @returns {NamedMap}
 */
export function namedMap(weights, reading, state) {
  const units = unitsOf(reading, state);
  const ofSegment = (letter) => units.filter((unit) => unit.segment === (letter === 'a' ? 0 : 1));
  const whole = state.part === 'all' || reading.texts.length === 1;
  const rows = whole ? units : ofSegment(state.part[0]);
  const columns = whole ? units : ofSegment(state.part[1]);
  return { rows, columns, weights: project(weights, reading.size, rows, columns) };
}

/** @param {Unit[]} units the place of the unit that holds a token, or −1 */
export const placeOf = (units, token) => units.findIndex((unit) => unit.tokens.includes(token));

/** The links of a map for JSON. @param {NamedMap} map */
export function plainMap(map) {
  const width = map.columns.length;
  const rounded = (value) => Number(value.toPrecision(8));
  return {
    rows: map.rows.map((unit) => unit.label),
    columns: map.columns.map((unit) => unit.label),
    weights: map.rows.map((_, row) =>
      Array.from(map.weights.subarray(row * width, (row + 1) * width), rounded),
    ),
  };
}
