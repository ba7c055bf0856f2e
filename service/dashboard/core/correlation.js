/** Spearman's rank correlation. */

/**
 * Return the ranks of values, from 1; equal values share the mean of their ranks.
 *
 * @param {number[]} values
 */
function ranksOf(values) {
  const order = [...values.keys()].sort((a, b) => values[a] - values[b]);
  const ranks = new Array(values.length);
  for (let first = 0; first < order.length; ) {
    let after = first + 1;
    while (after < order.length && values[order[after]] === values[order[first]]) after += 1;
    for (const i of order.slice(first, after)) ranks[i] = (first + after + 1) / 2;
    first = after;
  }
  return ranks;
}

/**
 * Return Spearman's correlation, Pearson's correlation of the ranks, over the places where both are numbers.
 *
 * @param {number[]} a
 * @param {number[]} b of the same length
 * @returns {number|null} −1 … 1; null if all values of one are equal
 */
export function spearman(a, b) {
  const known = [...a.keys()].filter((i) => !Number.isNaN(a[i]) && !Number.isNaN(b[i]));
  const [x, y] = [a, b].map((values) => {
    const ranks = ranksOf(known.map((i) => values[i]));
    return ranks.map((rank) => rank - (ranks.length + 1) / 2);
  });
  const dot = (/** @type {number[]} */ u, /** @type {number[]} */ v) =>
    u.reduce((sum, value, i) => sum + value * v[i], 0);
  const length = Math.sqrt(dot(x, x) * dot(y, y));
  return length > 0 ? dot(x, y) / length : null;
}
