/**
 * Maps with names of their rows and columns.
 *
 * @typedef {import('./words.js').Unit} Unit
 * @typedef {'weights'|'norms'} Measure
 * @typedef {{rows: Unit[], columns: Unit[], weights: Float32Array, signed?: boolean, axes?: string[],
 *   measure?: Measure}} NamedMap `weights` `[rows, columns]`, or norms; `axes` are titles, across and down
 */

import { project } from './matrix.js';
import { memo } from './memo.js';
import { unitsOf } from './words.js';

/** Longest side of a thumbnail; maps of shorter texts are complete. */
export const THUMBNAIL_SIDE = 96;

/**
 * Return a map as the state asks for it: words merged, special tokens hidden, one quadrant of a pair.
 *
 * @param {Float32Array} weights `[S, S]`
 * @param {import('./words.js').Tokenized} reading
 * @param {Pick<import('./state.js').State, 'words'|'bare'|'part'>} state
 * @param {Measure} [measure]
 * @returns {NamedMap}
 */
export const namedMap = (weights, reading, { words, bare, part }, measure = 'weights') =>
  made(weights, reading, words, bare, part, measure);

const made = memo(
  /** @param {Float32Array} weights @param {import('./words.js').Tokenized} reading @param {boolean} words @param {boolean} bare @param {import('./state.js').State['part']} part @param {Measure} measure */
  (weights, reading, words, bare, part, measure) => {
    const units = unitsOf(reading, { words, bare });
    const ofSegment = (/** @type {string} */ letter) =>
      units.filter((unit) => unit.segment === (letter === 'a' ? 0 : 1));
    const whole = part === 'all' || reading.texts.length === 1;
    const rows = whole ? units : ofSegment(part[0]);
    const columns = whole ? units : ofSegment(part[1]);
    return { rows, columns, weights: project(weights, reading.tokens.length, rows, columns), measure };
  },
);

/** @param {Unit[]} units @param {number} token @returns {number} the place of the unit that holds a token, or −1 */
export const placeOf = (units, token) => units.findIndex((unit) => unit.tokens.includes(token));

/** Return a map for JSON. @param {NamedMap} map */
export function plainMap(map) {
  const width = map.columns.length;
  const rounded = (/** @type {number} */ value) => Number(value.toPrecision(8));
  return {
    rows: map.rows.map((unit) => unit.label),
    columns: map.columns.map((unit) => unit.label),
    [map.measure ?? 'weights']: map.rows.map((_, row) =>
      Array.from(map.weights.subarray(row * width, (row + 1) * width), rounded),
    ),
  };
}
