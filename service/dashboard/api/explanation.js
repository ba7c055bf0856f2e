/**
 * Explanations of the similarity of two texts.
 *
 * @typedef {import('../core/words.js').Tokenized} Tokenized
 * @typedef {Object} Shares
 * @property {Float32Array|null} pairs `[S, T]`; null of occlusion, whose losses are of single tokens
 * @property {Float32Array[]} worth of each token of either text; NaN where the deadline came first
 * @property {number|null} error by how much they miss the similarity
 * @property {number|null} agreement with occlusion, Spearman's
 * @typedef {{query: number, document: number, score: number}} Match
 * @typedef {Object} Explanation
 * @property {import('./reading.js').Reading} reading
 * @property {Tokenized[]} texts
 * @property {number} similarity
 * @property {Match[]|null} matches of a model whose similarity is made of them
 * @property {Object<string, Shares>} shares by method, as far as they have come
 * @property {Object<string, string>} refused why a method cannot be had, in the service's words
 * @property {(number|null)[][]|null} heads what the similarity loses with each head switched off, `[L][N]`;
 *   null where the deadline came first
 * @property {number[]|null} layers the cosine at each layer's output, the embeddings first; null where a
 *   layer has none
 */

import { encode, explain } from './client.js';
import { ApiError } from './errors.js';

/** Statuses of a reply that says that the model has no such explanation. */
const REFUSED = [413, 422, 424, 501];
const TOGETHER = 4;

/**
 * @param {{reading: import('./reading.js').Reading, texts: string[], cut: boolean, signal: AbortSignal,
 *   showPart: (part: Explanation) => void}} given
 * @returns {Promise<Explanation>}
 */
export async function explanation({ reading, texts, cut, signal, showPart }) {
  /** @type {Object<string, string>} */
  const refused = {};
  const body = { inputs: [texts], truncate: cut };
  const ask = (/** @type {string[]} */ include) => explain({ ...body, include }, signal);
  const first = await unlessRefused(explain(body, signal), 'pairs', refused);
  if (first) {
    const found = explanationOf(reading, texts, first, refused);
    showPart(found);
    if (found.matches) return found;
  }
  const include = first ? ['pairs', 'occlusion'] : ['occlusion'];
  const all = await unlessRefused(ask([...include, 'decomposition']), 'decomposition', refused);
  const found = explanationOf(reading, texts, all ?? (await ask(include)), refused);
  showPart(found);
  const layers = await cosines(reading.layers, texts, cut, signal);
  showPart({ ...found, layers });
  const last = await unlessRefused(ask(['heads']), 'heads', refused);
  return { ...found, layers, heads: last?.heads ?? null };
}

/** @template T @param {Promise<T>} asked @param {string} method @param {Object<string, string>} refused */
async function unlessRefused(asked, method, refused) {
  try {
    return await asked;
  } catch (error) {
    if (!(error instanceof ApiError) || !REFUSED.includes(error.status)) throw error;
    refused[method] = error.message;
    return null;
  }
}

/**
 * @param {import('./reading.js').Reading} reading
 * @param {string[]} texts
 * @param {any} reply a result of `POST /explain`
 * @param {Object<string, string>} refused
 * @returns {Explanation}
 */
function explanationOf(reading, texts, reply, refused) {
  const tokenized = texts.map((text, i) => {
    const { tokens, offsets } = reply.texts[i];
    return { tokens, offsets, segments: tokens.map(() => 0), texts: [text] };
  });
  /** @type {Object<string, Shares>} */
  const shares = {};
  const additive = (/** @type {string} */ method, /** @type {number} */ error) => {
    if (!reply[method]) return;
    const pairs = Float32Array.from(reply[method].flat());
    const worth = sums(pairs, tokenized[0].tokens.length, tokenized[1].tokens.length);
    shares[method] = { pairs, worth, error, agreement: reply.agreement?.[method] ?? null };
  };
  additive('pairs', reply.completeness_error);
  if (reply.occlusion) {
    const worth = reply.occlusion.map((/** @type {(number|null)[]} */ losses) =>
      Float32Array.from(losses, (loss) => loss ?? Number.NaN),
    );
    shares.occlusion = { pairs: null, worth, error: null, agreement: null };
  }
  additive('decomposition', reply.decomposition_error);
  if (reply.decomposition === null) refused.decomposition = 'not computed before the deadline';
  const { similarity, matches = null } = reply;
  return { reading, texts: tokenized, similarity, matches, shares, refused, heads: null, layers: null };
}

/**
 * Return the sums of the rows and of the columns.
 *
 * @param {Float32Array} pairs
 * @param {number} rows
 * @param {number} columns
 */
function sums(pairs, rows, columns) {
  const worth = [new Float32Array(rows), new Float32Array(columns)];
  pairs.forEach((share, i) => {
    worth[0][Math.floor(i / columns)] += share;
    worth[1][i % columns] += share;
  });
  return worth;
}

/**
 * Return the cosine of both texts' pooled vectors after each layer.
 *
 * @param {number} layers
 * @param {string[]} inputs
 * @param {boolean} truncate
 * @param {AbortSignal} signal
 */
async function cosines(layers, inputs, truncate, signal) {
  /** @type {number[]} */
  const found = [];
  const at = async (/** @type {number} */ layer) => {
    const [x, y] = await encode({ inputs, truncate, layer, outputs: ['pooled'] }, signal);
    found[layer] = dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y));
  };
  /** @type {Object<string, string>} */
  const refused = {};
  for (let first = 0; first <= layers && !refused.layers; first += TOGETHER) {
    const some = Array.from({ length: Math.min(TOGETHER, layers + 1 - first) }, (_, i) => at(first + i));
    await unlessRefused(Promise.all(some), 'layers', refused);
  }
  return refused.layers ? null : found;
}

/** @param {number[]} a @param {number[]} b */
const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
