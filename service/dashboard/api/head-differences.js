/** Differences between the heads of two texts. */

import { decode } from '../core/float16.js';
import { moved } from '../core/matrix.js';

const SHARES = ['confidence', 'cls', 'sep', 'self', 'previous', 'next'];

/** @type {WeakMap<import('./reading.js').Reading, WeakMap<import('./reading.js').Reading, Float32Array>>} */
const known = new WeakMap();

/**
 * Return how much each head differs: for texts of equally many tokens the share of a row's weight that moved,
 * on average; otherwise the mean difference of the shares. Holds the maps of a few layers at a time.
 *
 * @param {import('./reading.js').Reading} first
 * @param {import('./reading.js').Reading} second
 * @param {AbortSignal} signal
 * @param {(differences: Float32Array, done: number) => unknown} [come] is given the differences after each
 *   layer, and of how many heads they are
 * @returns {Promise<Float32Array>} `[L · N]`, 0 … 1
 */
export async function headDifferences(first, second, signal, come = () => {}) {
  const found = known.get(first)?.get(second) ?? (await compare(first, second, signal, come));
  if (!known.has(first)) known.set(first, new WeakMap());
  known.get(first)?.set(second, found);
  return found;
}

/**
 * @param {import('./reading.js').Reading} first
 * @param {import('./reading.js').Reading} second
 * @param {AbortSignal} signal
 * @param {(differences: Float32Array, done: number) => unknown} come
 */
async function compare(first, second, signal, come) {
  const result = new Float32Array(first.layers * first.heads);
  if (first.size !== second.size) {
    return result.map(
      (_, i) =>
        SHARES.reduce(
          (sum, name) => sum + Math.abs(first.statistics[name][i] - second.statistics[name][i]),
          0,
        ) / SHARES.length,
    );
  }
  const others = second.everyMap(signal);
  for await (const { layer, head, bits } of first.everyMap(signal)) {
    const { value: other } = await others.next();
    if (!other) break;
    result[layer * first.heads + head] = moved(decode(bits), decode(other.bits), first.size);
    if (head === first.heads - 1) await come(result.slice(), (layer + 1) * first.heads);
    if (first.size > 128) await new Promise((resume) => setTimeout(resume));
  }
  return result;
}
