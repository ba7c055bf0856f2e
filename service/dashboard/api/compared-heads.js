/**
 * Comparisons of all heads of a model: of two texts, with a head of another model, and with each switched off.
 *
 * @typedef {import('./reading.js').Reading} Reading
 * @typedef {{alone: Float32Array, done: number}} Shifts `alone` `[L · N]`, of which `done` are measured
 */

import { decode } from '../core/float16.js';
import { moved, project } from '../core/matrix.js';
import { unitsOf } from '../core/words.js';
import { attention } from './client.js';
import { requestOf } from './reading.js';

const SHARES = ['confidence', 'cls', 'sep', 'self', 'previous', 'next'];

/** Distances of heads, for as long as both things that were compared exist. @type {WeakMap<object, WeakMap<Reading, Float32Array>>} */
const known = new WeakMap();

/** @param {object} one @param {Reading} other @param {() => Promise<Float32Array>} compare */
async function kept(one, other, compare) {
  const found = known.get(one)?.get(other) ?? (await compare());
  if (!known.has(one)) known.set(one, new WeakMap());
  known.get(one)?.set(other, found);
  return found;
}

/**
 * Compare the map of every head. Holds the maps of a few layers at a time.
 *
 * @param {Reading} reading
 * @param {AbortSignal} signal
 * @param {(map: Float32Array) => number|Promise<number>} distance of a map `[S, S]`
 * @param {(distances: Float32Array, done: number) => unknown} [come] is given the distances after each layer, and
 *   of how many heads they are
 * @returns {Promise<Float32Array>} `[L · N]`
 */
async function everyDistance(reading, signal, distance, come = () => {}) {
  const result = new Float32Array(reading.layers * reading.heads);
  let done = 0;
  for await (const { head, bits } of reading.everyMap(signal)) {
    result[done] = await distance(decode(bits));
    done += 1;
    if (head === reading.heads - 1) await come(result.slice(), done);
    if (reading.size > 128) await new Promise((resume) => setTimeout(resume));
  }
  return result;
}

/**
 * Return how much each head differs: for texts of equally many tokens the share of a row's weight that moved,
 * on average; otherwise the mean difference of the shares.
 *
 * @param {Reading} first
 * @param {Reading} second of the same model
 * @param {AbortSignal} signal
 * @param {(differences: Float32Array, done: number) => unknown} come as in `everyDistance`
 * @returns {Promise<Float32Array>} `[L · N]`, 0 … 1
 */
export const headDifferences = (first, second, signal, come) =>
  kept(first, second, async () => {
    if (first.size !== second.size) {
      const apart = (/** @type {string} */ name, /** @type {number} */ i) =>
        Math.abs(first.statistics[name][i] - second.statistics[name][i]);
      return new Float32Array(first.layers * first.heads).map(
        (_, i) => SHARES.reduce((sum, name) => sum + apart(name, i), 0) / SHARES.length,
      );
    }
    const others = second.everyMap(signal);
    const distance = async (/** @type {Float32Array} */ map) =>
      moved(map, decode((await others.next()).value.bits), first.size);
    return everyDistance(first, signal, distance, come);
  });

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
 * elsewhere, on average over the words. Special tokens count as one more word to look at. The readings must have
 * the same words.
 *
 * @param {Reading} reading
 * @param {Float32Array} weights `[S, S]` of a head of it
 * @param {Reading} other
 * @param {AbortSignal} signal
 * @returns {Promise<Float32Array>} `[L · N]` of the other, 0 … 1: the mean total variation distance
 */
export const headDistances = (reading, weights, other, signal) =>
  kept(weights, other, async () => {
    const own = byWord(reading)(weights);
    const merge = byWord(other);
    const { length } = wordsOf(other);
    return everyDistance(other, signal, (map) => moved(own, merge(map), length));
  });

/** Return the function that merges a map `[S, S]` to words, with a last column of the tokens of no word. @param {Reading} reading */
function byWord(reading) {
  const words = wordsOf(reading);
  const inWords = new Set(words.flatMap(({ tokens }) => tokens));
  const others = [...reading.tokens.keys()].filter((token) => !inWords.has(token));
  const columns = [...words, { tokens: others }];
  return (/** @type {Float32Array} */ map) => project(map, reading.size, words, columns);
}

/**
 * Return the embedding's shift with each head alone switched off.
 *
 * @param {Reading} reading
 * @param {boolean} cut
 * @param {AbortSignal} signal
 * @param {(part: Shifts) => void} showPart
 * @returns {Promise<Shifts>}
 */
export async function singleHeadShifts(reading, cut, signal, showPart) {
  const alone = new Float32Array(reading.layers * reading.heads);
  const one = { include: ['stats'], layers: [0], heads: [0] };
  for (let done = 0; done < alone.length; ) {
    const { layer, head } = reading.headAt(done);
    const source = { texts: reading.texts, cut, off: [`${layer}.${head}`] };
    const { tensors } = await attention({ ...requestOf(source), ...one }, signal);
    alone[done] = tensors.pooled_shift.data[0];
    done += 1;
    showPart({ alone, done });
  }
  return { alone, done: alone.length };
}
