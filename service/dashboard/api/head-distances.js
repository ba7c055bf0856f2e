/** Distances between the heads of two models on one text, word by word. */

import { decode } from '../core/float16.js';
import { project } from '../core/matrix.js';
import { unitsOf } from '../core/words.js';

/**
 * @typedef {import('./reading.js').Reading} Reading
 * @typedef {import('../core/words.js').Unit} Unit
 */

/** @type {WeakMap<Float32Array, WeakMap<Reading, Float32Array>>} */
const known = new WeakMap();

/** @param {Reading} reading */
const wordsOf = (reading) => unitsOf(reading, { words: true, bare: true });

/**
 * Return whether both models split the texts into the same words.
 *
 * @param {Reading} one
 * @param {Reading} other
 */
export function haveSameWords(one, other) {
  const [first, second] = [one, other].map((reading) =>
    wordsOf(reading).map(({ label, segment }) => `${segment} ${label.trim()}`),
  );
  return first.length === second.length && first.every((word, i) => word === second[i]);
}

/**
 * Return the distance from one head to each head of another model: the share of a word's attention that goes
 * elsewhere, on average over the words. Attention to special tokens counts as attention to one more word. The
 * readings must have the same words.
 *
 * @param {Reading} reading
 * @param {Float32Array} weights `[S, S]` of a head of it
 * @param {Reading} other
 * @param {AbortSignal} signal
 * @returns {Promise<Float32Array>} `[L · N]` of the other, 0 … 1: the mean total variation distance
 */
export async function headDistances(reading, weights, other, signal) {
  const found = known.get(weights)?.get(other) ?? (await compare(reading, weights, other, signal));
  if (!known.has(weights)) known.set(weights, new WeakMap());
  known.get(weights)?.set(other, found);
  return found;
}

/** @param {Reading} reading @param {Float32Array} weights @param {Reading} other @param {AbortSignal} signal */
async function compare(reading, weights, other, signal) {
  const words = wordsOf(other);
  const own = project(weights, reading.size, wordsOf(reading), wordsOf(reading));
  const result = new Float32Array(other.layers * other.heads);
  for await (const { layer, head, bits } of other.everyMap(signal)) {
    const theirs = project(decode(bits), other.size, words, words);
    result[layer * other.heads + head] = elsewhere(own, theirs, words.length);
    if (other.size > 128) await new Promise((resume) => setTimeout(resume));
  }
  return result;
}

/** @param {Float32Array} one `[n, n]` @param {Float32Array} other `[n, n]` @param {number} n */
export function elsewhere(one, other, n) {
  let sum = 0;
  for (let row = 0; row < n; row += 1) {
    let rest = 0;
    for (let i = row * n; i < (row + 1) * n; i += 1) {
      sum += Math.abs(one[i] - other[i]);
      rest += one[i] - other[i];
    }
    sum += Math.abs(rest);
  }
  return sum / (2 * n);
}
