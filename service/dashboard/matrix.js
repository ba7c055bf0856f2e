/** Attention maps as flat row-major arrays: row = the token that looks, column = looked at. Pure. */

/**
 * Tokens to units: the sum over the tokens that are looked at, the mean over those that look
 * (Clark et al. 2019), so that a row still sums to 1. Hidden tokens fall away; nothing is rescaled.
 *
 * @param {Float32Array} weights `[S, S]`
 * @param {number} size S
 * @param {import('./words.js').Unit[]} rows R units that look
 * @param {import('./words.js').Unit[]} [columns] C units that are looked at; `rows` by default
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
 * The largest weight of each tile, so that a thin diagonal stays visible.
 *
 * @param {Float32Array} weights `[n, n]`
 * @param {number} most longest side of the result
 * @returns {{values: Float32Array, size: number}} signed: the entry of largest magnitude
 */
export function shrink(weights, n, most) {
  if (n <= most) return { values: weights, size: n };
  const values = new Float32Array(most * most);
  const tile = new Uint16Array(n);
  for (let i = 0; i < n; i += 1) tile[i] = Math.floor((i * most) / n);
  for (let row = 0; row < n; row += 1) {
    const base = tile[row] * most;
    const from = row * n;
    for (let column = 0; column < n; column += 1) {
      const value = weights[from + column];
      const at = base + tile[column];
      if (Math.abs(value) > Math.abs(values[at])) values[at] = value;
    }
  }
  return { values, size: most };
}

/** @returns {number} the largest weight; tiny where all are 0 */
export const peak = (weights) => weights.reduce((most, weight) => Math.max(most, weight), 1e-9);

/** @returns {Float32Array} a − b */
export function difference(a, b) {
  return a.map((value, i) => value - b[i]);
}

/**
 * How much of a row's weight moved, on average: half the summed absolute difference, 0 … 1.
 *
 * @param {Float32Array} a `[n, n]`
 * @param {Float32Array} b `[n, n]`
 */
export function moved(a, b, n) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += Math.abs(a[i] - b[i]);
  return sum / (2 * n);
}

/**
 * Where the two texts of a pair look, on average over a text's own tokens; a row sums to 1.
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
