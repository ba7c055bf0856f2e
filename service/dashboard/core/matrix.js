/** Attention maps as flat row-major arrays: rows are queries, columns keys. Pure functions. */

/**
 * Merge tokens into units: the sum over a unit's keys, the mean over its queries (Clark et al. 2019), so that
 * a row still sums to 1. Hidden tokens are left out, and nothing is rescaled.
 *
 * @param {Float32Array} weights `[S, S]`
 * @param {number} size S
 * @param {{tokens: number[]}[]} rows R units that look
 * @param {{tokens: number[]}[]} [columns] C units that are looked at; `rows` by default
 * @returns {Float32Array} `[R, C]`; `weights` itself when all units are tokens
 */
export function project(weights, size, rows, columns = rows) {
  if (rows.length === size && columns.length === size) return weights;
  const result = new Float32Array(rows.length * columns.length);
  rows.forEach((unit, row) => {
    for (const token of unit.tokens) {
      columns.forEach((key, column) => {
        let sum = 0;
        for (const other of key.tokens) sum += weights[token * size + other];
        result[row * columns.length + column] += sum / unit.tokens.length;
      });
    }
  });
  return result;
}

/**
 * Return where each of n tiles of a part of an axis begins, and the end of it: tile i goes from ⌊i·span / n⌋ up to,
 * and without, ⌈(i + 1)·span / n⌉, as those of the API's `max_size`. A tile that is smaller than a cell is the cell in
 * its middle.
 *
 * @param {number} first cell of the part
 * @param {number} span cells of the part
 * @param {number} n
 * @param {number} count cells of the axis
 */
const tilesOf = (first, span, n, count) =>
  Array.from({ length: n }, (_, i) => {
    if (n >= span) {
      const cell = Math.min(count - 1, Math.floor(first + ((i + 0.5) * span) / n));
      return [cell, cell + 1];
    }
    return [Math.floor(first + (i * span) / n), Math.min(count, Math.ceil(first + ((i + 1) * span) / n))];
  });

/**
 * Pool a part of a map by the strongest of each tile, so that a thin diagonal or a single column stays visible.
 *
 * @param {Float32Array} values `[rows, columns]`
 * @param {number[]} shape rows and columns
 * @param {number[]} tiles rows and columns of the result
 * @param {number[]} [part] first row and column, and how many of both; all by default
 * @returns {Float32Array} values with the largest absolute value of their tile
 */
export function pooled(values, [rows, columns], [down, across], [y, x, high, wide] = [0, 0, rows, columns]) {
  const result = new Float32Array(down * across);
  const sides = tilesOf(x, wide, across, columns);
  tilesOf(y, high, down, rows).forEach(([top, bottom], row) => {
    sides.forEach(([left, right], column) => {
      let strongest = 0;
      for (let i = top; i < bottom; i += 1) {
        for (let j = left; j < right; j += 1) {
          const value = values[i * columns + j];
          if (Math.abs(value) > Math.abs(strongest)) strongest = value;
        }
      }
      result[row * across + column] = strongest;
    });
  });
  return result;
}

/** @param {Float32Array} weights @returns {number} the largest weight; tiny where all are 0 */
export const peak = (weights) => weights.reduce((most, weight) => Math.max(most, weight), 1e-9);

/** @param {Float32Array} a @param {Float32Array} b @returns {Float32Array} a − b */
export function difference(a, b) {
  return a.map((value, i) => value - b[i]);
}

/**
 * Return the share of a row's weight that moved, on average: half the summed absolute difference, 0 … 1.
 *
 * @param {Float32Array} a `[n, n]`
 * @param {Float32Array} b `[n, n]`
 * @param {number} n
 */
export function moved(a, b, n) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += Math.abs(a[i] - b[i]);
  return sum / (2 * n);
}

/**
 * Return the attention of each text of a pair to both texts, averaged over the text's own tokens; a row sums
 * to 1.
 *
 * @param {Float32Array} weights `[S, S]`
 * @param {import('./words.js').Unit[]} units one a row
 * @returns {number[][]} rows: first text, second text; columns: first, second, special tokens
 */
export function quadrants(weights, units) {
  const n = units.length;
  const sums = [
    [0, 0, 0],
    [0, 0, 0],
  ];
  const rows = [0, 0];
  units.forEach((unit, row) => {
    if (unit.special) return;
    rows[unit.segment] += 1;
    units.forEach((key, column) => {
      sums[unit.segment][key.special ? 2 : key.segment] += weights[row * n + column];
    });
  });
  return sums.map((shares, segment) => shares.map((sum) => (rows[segment] ? sum / rows[segment] : 0)));
}

/**
 * @param {ArrayLike<number>} values
 * @param {number} count
 * @returns {number[]} places of the largest values, largest first, ties in order
 */
export function largest(values, count) {
  const places = Array.from(values, (_, i) => i);
  return places.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}
