/** Shares of pairs of tokens as a map: rows are one text's tokens or words, columns the other's. */

import { memo } from '../core/memo.js';
import { unitsOf } from '../core/words.js';

const AXES = ['other text →', '← text'];

/** Return the map of shares `[S, T]`. The same arguments give the same object. */
export const shareMap = memo(
  /** @param {import('../core/words.js').Tokenized[]} texts @param {Float32Array} pairs @param {string} name @param {boolean} words @param {boolean} bare @param {string} _theme */
  (texts, pairs, name, words, bare, _theme) => {
    const [rows, columns] = texts.map((text) => unitsOf(text, { words, bare }));
    const weights = summed(pairs, texts[1].tokens.length, rows, columns);
    const full = weights.reduce((most, weight) => Math.max(most, Math.abs(weight)), 1e-9);
    const map = { rows, columns, weights, signed: true, axes: AXES };
    const options = { name, full, linear: false, zoom: [1, 0, 0], pins: [], small: false };
    return [{ name, map, options, zooms: true }];
  },
);

/**
 * Sum the shares of tokens into shares of words.
 *
 * @param {Float32Array} pairs `[S, T]`
 * @param {number} size T
 * @param {import('../core/words.js').Unit[]} rows
 * @param {import('../core/words.js').Unit[]} columns
 */
function summed(pairs, size, rows, columns) {
  const weights = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) => {
    columns.forEach((column, c) => {
      for (const i of row.tokens)
        for (const j of column.tokens) weights[r * columns.length + c] += pairs[i * size + j];
    });
  });
  return weights;
}
