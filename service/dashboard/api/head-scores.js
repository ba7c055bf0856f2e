/**
 * The query of a token, the keys of all tokens, and the scores that follow from them in one head.
 *
 * @typedef {Object} HeadScores
 * @property {number[]} query `[p]`, a number a feature
 * @property {number[][]} keys `[S][p]`
 * @property {number[]} scores `[S]`, which the normalizer makes weights of
 * @property {number[]} weights `[S]`, which sum to 1
 * @property {number|null} scale of each product; null where a score is no sum of products
 *
 * @typedef {Object} Compared a query and one of the keys
 * @property {number[]} query `[p]`
 * @property {number[]} key `[p]`
 * @property {number[]|null} products `[p]`: what each feature adds to the score
 * @property {number|null} sum of the products
 * @property {number} positions what relative positions add to that sum
 * @property {number} score
 * @property {number} weight
 * @property {number} rank of the score among those of all keys, from 1
 */

import { LruCache } from '../core/lru-cache.js';
import { memo } from '../core/memo.js';
import { headScores } from './client.js';
import { requestOf } from './reading.js';

const KEPT = 8;
/** Scores are float32: a smaller difference, relative to the products' magnitudes, is rounding. */
const ROUNDING = 1e-5;

/** @type {WeakMap<import('./reading.js').Reading, LruCache<string, HeadScores>>} */
const known = new WeakMap();

/**
 * @param {import('./reading.js').Reading} reading
 * @param {import('./reading.js').Source & {layer: number, head: number, from: number}} asked
 * @param {AbortSignal} signal
 * @returns {Promise<HeadScores>} the same when it was asked for a short while ago
 */
export async function scoresOf(reading, asked, signal) {
  const { layer, head, from } = asked;
  const name = [layer, head, from].join();
  const kept = known.get(reading) ?? new LruCache();
  known.set(reading, kept);
  const found =
    kept.get(name) ?? (await headScores({ ...requestOf(asked), layer, head, queries: [from] }, signal));
  return kept.keep(name, found, KEPT);
}

/**
 * Return the query with one key. The same arguments give the same object.
 *
 * @type {(scores: HeadScores, to: number) => Compared}
 */
export const comparedWith = memo(
  (/** @type {HeadScores} */ { query, keys, scores, weights, scale }, /** @type {number} */ to) => {
    const [key, score] = [keys[to], scores[to]];
    const products = scale === null ? null : query.map((value, i) => value * key[i] * scale);
    const sum = products && total(products);
    const left = sum === null ? 0 : score - sum;
    const positions = Math.abs(left) > ROUNDING * (1 + total((products ?? []).map(Math.abs))) ? left : 0;
    const rank = 1 + scores.filter((other) => other > score).length;
    return { query, key, products, sum, positions, score, weight: weights[to], rank };
  },
);

/** @param {number[]} values */
const total = (values) => values.reduce((sum, value) => sum + value, 0);

/**
 * Sort features by the magnitude of their products, largest first.
 *
 * @param {number[]} products
 * @returns {number[]} their numbers
 */
export const strongestFirst = (products) =>
  [...products.keys()].sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]) || a - b);
