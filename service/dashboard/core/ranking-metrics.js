/** Quality of a ranking by marks of relevance. */

/**
 * Return the normalised discounted cumulative gain of the first `most` results: DCG = Σ g_i / log2(i + 1) over the
 * ranks i, divided by the largest DCG that the marks allow (Järvelin and Kekäläinen 2002,
 * doi 10.1145/582415.582418; gains as in trec_eval and scikit-learn).
 *
 * @param {number[]} gains marks in the order of the ranking, 0 without a mark
 * @param {number} [most]
 * @returns {number|null} null if no result is relevant
 */
export function ndcg(gains, most = gains.length) {
  const best = dcg(
    [...gains].sort((a, b) => b - a),
    most,
  );
  return best > 0 ? dcg(gains, most) / best : null;
}

/** @param {number[]} gains @param {number} most */
const dcg = (gains, most) => gains.slice(0, most).reduce((sum, gain, i) => sum + gain / Math.log2(i + 2), 0);

/**
 * Return the share of the relevant results, whose mark is above 0, among the first `most` results.
 *
 * @param {number[]} gains marks in the order of the ranking
 * @param {number} most
 * @returns {number|null} null if no result is relevant
 */
export function recall(gains, most) {
  const relevant = gains.filter((gain) => gain > 0).length;
  return relevant ? gains.slice(0, most).filter((gain) => gain > 0).length / relevant : null;
}

/**
 * Return the rank of each score, from 1; among equal scores the first one is better.
 *
 * @param {number[]} scores
 */
export function ranksOf(scores) {
  const ranks = Array(scores.length).fill(0);
  orderOf(scores).forEach((index, place) => {
    ranks[index] = place + 1;
  });
  return /** @type {number[]} */ (ranks);
}

/** Return the indices of scores, the largest first. @param {number[]} scores */
export const orderOf = (scores) => [...scores.keys()].sort((a, b) => scores[b] - scores[a] || a - b);

/** @typedef {{low: number, zero: number, high: number}} Scale ends of a scale of bars, and where bars begin */

/** Share of the range of scores that the bar of the worst one has, where no score is above 0. */
const SHORTEST = 0.15;

/**
 * Return the scale of scores as bars. Bars begin at 0; where no score is above 0, they begin below the worst one, so
 * that the best has the longest bar.
 *
 * @param {number[]} scores
 * @returns {Scale}
 */
export function scaleOf(scores) {
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  if (high > 0) return { low: Math.min(0, low), zero: 0, high };
  const zero = low - SHORTEST * (high - low || 1);
  return { low: zero, zero, high };
}
