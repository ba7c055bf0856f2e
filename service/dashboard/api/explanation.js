/**
 * Explanations of the similarity of two texts.
 *
 * @typedef {{grid: number[], size: number[], crop: number[]}} View of a picture
 * @typedef {import('../core/words.js').Tokenized & {truncated: boolean, view: View|null}} Explained
 * @typedef {Object} Shares
 * @property {Float32Array|null} pairs `[S, T]`; null of occlusion, whose losses are of single tokens
 * @property {Float32Array[]} worth of each token of either text; NaN where the deadline came first
 * @property {number|null} error |sum of the shares − similarity|
 * @property {Span[][]} [spans] words of either text or squares of a picture, if `worth` is theirs
 * @typedef {{start: number, end: number, tokens: number[], rows?: number[], columns?: number[]}} Span
 * @typedef {{query: number, document: number, score: number}} Match
 * @typedef {Object} Explanation
 * @property {import('./reading.js').Reading} reading
 * @property {Explained[]} texts
 * @property {number} similarity
 * @property {Match[]|null} matches of a model whose similarity is made of them
 * @property {Shares|null} pairs shares of the last vectors
 * @property {string} refusal why the model has no such shares, in the service's words
 * @property {number} unknown number of texts that have many unknown tokens
 * @property {number} seconds that the request took
 */

import { inputOf } from '../core/held-pictures.js';
import { encode, explain } from './client.js';
import { ApiError } from './errors.js';

/** Statuses of a reply that says that the model has no such explanation. */
const REFUSED = [413, 422, 424, 501];
const TOGETHER = 4;

/** @param {unknown} error whether asking again would have the same answer */
export const isRefusal = (error) => error instanceof ApiError && REFUSED.includes(error.status);

/**
 * Return the similarity with the shares of the last vectors or, of a model without them, the similarity alone.
 *
 * @param {{reading: import('./reading.js').Reading, texts: string[], cut: boolean, signal: AbortSignal,
 *   include?: string[]}} given `texts` may be names of pictures
 * @returns {Promise<Explanation>}
 */
export async function explanation({ reading, texts, cut, signal, include }) {
  const body = { inputs: [texts.map(inputOf)], truncate: cut, include };
  const began = performance.now();
  let refusal = '';
  const reply = await explain(body, signal).catch((error) => {
    if (!isRefusal(error)) throw error;
    refusal = error.message;
    return explain({ ...body, include: ['occlusion'], top: 1 }, signal);
  });
  const tokenized = texts.map((text, i) => {
    const { tokens, offsets, truncated, grid, size, crop } = reply.texts[i];
    const view = grid ? { grid, size, crop } : null;
    return { tokens, offsets, truncated, segments: tokens.map(() => 0), texts: [text], view };
  });
  return {
    reading,
    texts: tokenized,
    similarity: reply.similarity,
    matches: reply.matches ?? null,
    pairs: reply.pairs ? additive(reply.pairs, reply.completeness_error) : null,
    refusal,
    unknown: reply.warnings.unknown_tokens ?? 0,
    seconds: (performance.now() - began) / 1000,
  };
}

/**
 * @param {number[][]} rows `[S][T]` shares that sum to the similarity
 * @param {number} error
 * @returns {Shares}
 */
function additive(rows, error) {
  const pairs = Float32Array.from(rows.flat());
  const columns = rows[0].length;
  const worth = [new Float32Array(rows.length), new Float32Array(columns)];
  pairs.forEach((share, i) => {
    worth[0][Math.floor(i / columns)] += share;
    worth[1][i % columns] += share;
  });
  return { pairs, worth, error };
}

/**
 * Return what the similarity loses without each token, word, or square of patches.
 *
 * @param {Explanation} explained
 * @param {boolean} cut
 * @param {AbortSignal} signal
 * @param {{spans?: string, block?: number, top?: number}} [units] what is removed as a whole, and of how many
 * @returns {Promise<Shares>}
 */
export async function occlusion(explained, cut, signal, units) {
  const { occlusion: losses, spans } = await asked(explained, cut, ['occlusion'], signal, units);
  const worth = losses.map((/** @type {(number|null)[]} */ side) =>
    Float32Array.from(side, (loss) => loss ?? Number.NaN),
  );
  return { pairs: null, worth, error: null, spans };
}

/**
 * Return the shares of pairs of input tokens.
 *
 * @param {Explanation} explained
 * @param {boolean} cut
 * @param {AbortSignal} signal
 * @returns {Promise<Shares>}
 */
export async function decomposition(explained, cut, signal) {
  const reply = await asked(explained, cut, ['decomposition'], signal);
  if (!reply.decomposition) throw new Error('The deadline came before this was computed.');
  return additive(reply.decomposition, reply.decomposition_error);
}

/**
 * Return what the similarity loses with each head switched off in both texts.
 *
 * @param {Explanation} explained
 * @param {boolean} cut
 * @param {AbortSignal} signal
 * @returns {Promise<(number|null)[][]>} `[L][N]`; null where the deadline came first
 */
export const headLosses = async (explained, cut, signal) =>
  (await asked(explained, cut, ['heads'], signal)).heads;

/**
 * Ask for a method. A deadline that it missed does not mean that the service is away: it is not asked for again
 * until the viewer does.
 *
 * @param {Explanation} explained
 * @param {boolean} cut
 * @param {string[]} include
 * @param {AbortSignal} signal
 * @param {{spans?: string, block?: number, top?: number}} [more] fields of the request
 */
const asked = ({ texts }, cut, include, signal, more) =>
  explain(
    { inputs: [texts.map((one) => inputOf(one.texts[0]))], truncate: cut, include, ...more },
    signal,
  ).catch((error) => {
    throw error instanceof ApiError && error.status === 504 ? new Error(error.message) : error;
  });

/**
 * Return the cosine of both texts' pooled vectors after each layer.
 *
 * @param {Explanation} explained
 * @param {boolean} truncate
 * @param {AbortSignal} signal
 * @returns {Promise<number[]>} `[L + 1]`, the embeddings first
 */
export async function layerCosines({ reading, texts }, truncate, signal) {
  const inputs = texts.map((one) => one.texts[0]);
  /** @type {number[]} */
  const found = [];
  const at = async (/** @type {number} */ layer) => {
    const [x, y] = await encode({ inputs, truncate, layer, outputs: ['pooled'] }, signal);
    found[layer] = dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y));
  };
  for (let first = 0; first <= reading.layers; first += TOGETHER) {
    const count = Math.min(TOGETHER, reading.layers + 1 - first);
    await Promise.all(Array.from({ length: count }, (_, i) => at(first + i)));
  }
  return found;
}

/** @param {number[]} a @param {number[]} b */
const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
