/**
 * Tokens of many texts by the cosine of their hidden states with the hidden state of one token.
 *
 * @typedef {{text: string, tokens: string[], offsets: number[][], states: Float32Array}} TextStates `states`
 *   `[S, H]` of one layer
 * @typedef {{own: TextStates, texts: TextStates[]}} HiddenStates `own` of the page's text, or of the two of a
 *   pair together; `texts` as far as they have come
 * @typedef {{text: number, token: number, cosine: number}} Similar `text` and `token` by their places
 */

import { memo } from '../core/memo.js';
import { isSpecial } from '../core/words.js';
import { tokenVectors } from './client.js';
import { batches } from './corpus.js';
import { requestOf } from './reading.js';

/**
 * Return the hidden states of one layer, of the page's text and of each text of a list.
 *
 * @param {{reading: import('./reading.js').Reading, list: string[], layer: number, cut: boolean,
 *   signal: AbortSignal, showPart: (part: HiddenStates) => void}} given `layer` is the number of the hidden
 *   states: 0 for embeddings
 * @returns {Promise<HiddenStates>}
 */
export async function hiddenStates({ reading, list, layer, cut, signal, showPart }) {
  const { off } = reading;
  const reply = await tokenVectors({ ...requestOf({ texts: reading.texts, cut, off }), layer }, signal);
  const [own] = statesOf([''], reply);
  /** @type {TextStates[]} */
  const texts = [];
  for await (const { inputs, reply: next } of batches(list, tokenVectors, { cut, off, layer }, signal)) {
    texts.push(...statesOf(inputs, next));
    showPart({ own, texts: [...texts] });
  }
  return { own, texts };
}

/** @param {string[]} inputs @param {import('./client.js').BinaryReply} reply @returns {TextStates[]} */
function statesOf(inputs, { tensors, lists }) {
  const { data, shape } = tensors.embeddings;
  const rows = tensors.cu_seqlens.data;
  return inputs.map((text, i) => ({
    text,
    tokens: lists.tokens[i],
    offsets: lists.offsets[i],
    states: /** @type {Float32Array} */ (data.subarray(rows[i] * shape[1], rows[i + 1] * shape[1])),
  }));
}

/** Return all tokens but special ones and those without a direction, the most similar first. */
export const similar = memo((/** @type {HiddenStates} */ { own, texts }, /** @type {number} */ chosen) => {
  const features = own.states.length / own.tokens.length;
  const query = own.states.subarray(chosen * features, (chosen + 1) * features);
  const norm = Math.sqrt(product(query, query));
  /** @type {Similar[]} */
  const found = [];
  texts.forEach(({ offsets, states }, text) => {
    offsets.forEach((offset, token) => {
      if (isSpecial(offset)) return;
      const row = states.subarray(token * features, (token + 1) * features);
      const cosine = product(query, row) / (norm * Math.sqrt(product(row, row)));
      if (Number.isFinite(cosine)) found.push({ text, token, cosine });
    });
  });
  return found.sort((one, other) => other.cosine - one.cosine);
}, 2);

/** Return the sum of products, in double precision. @param {Float32Array} one @param {Float32Array} other */
function product(one, other) {
  let total = 0;
  for (let i = 0; i < one.length; i += 1) total += one[i] * other[i];
  return total;
}
