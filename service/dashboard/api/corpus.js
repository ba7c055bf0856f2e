/**
 * Statistics of one head on many texts, and the strongest link between two tokens of each text.
 *
 * @typedef {import('./client.js').BinaryReply} BinaryReply
 * @typedef {{from: string, to: string, weight: number, spans: number[][]}} Link `spans` of both tokens, in code
 *   points of the text
 * @typedef {Object} TextResult one text, as the head looks at it
 * @property {string} text
 * @property {number} size its tokens
 * @property {Object<string, number>} statistics by name
 * @property {boolean} truncated
 * @property {Link|null} link null where every token looks at special tokens alone
 * @typedef {Object} Corpus
 * @property {import('./reading.js').Reading} reading of the page's own text
 * @property {TextResult[]} results in the order of the texts, as far as they have come
 * @property {number} count of all texts
 * @property {number} unknown number of these texts with many tokens that the model does not know
 */

import { STATISTICS } from '../core/statistics.js';
import { isSpecial, tokenUnits } from '../core/words.js';
import { attention } from './client.js';
import { ApiError } from './errors.js';
import { requestOf } from './reading.js';

const MOST_TEXTS = 200;
export const MOST_CHARACTERS = 20_000;
const TOGETHER = 16;
/** Number of largest weights fetched for each token; more than a text has special tokens. */
const LARGEST = 8;

/** @param {string} text one text a line @returns {string[]} without blank lines */
export const linesOf = (text) =>
  text
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter(Boolean);

/** Return why texts are refused, or null. @param {string} many */
export const refusalOf = (many) =>
  linesOf(many).length > MOST_TEXTS || many.length > MOST_CHARACTERS
    ? `At most ${MOST_TEXTS} texts of ${MOST_CHARACTERS} characters in all are looked at; these are more.`
    : null;

/**
 * @param {{reading: import('./reading.js').Reading, list: string[], layer: number, head: number, cut: boolean,
 *   signal: AbortSignal, showPart: (part: Corpus) => void}} given
 * @returns {Promise<Corpus>}
 */
export async function corpus({ reading, list, layer, head, cut, signal, showPart }) {
  const part = { layers: [layer], heads: [head], include: ['weights', 'stats'], top_k: LARGEST };
  /** @type {TextResult[]} */
  const results = [];
  let unknown = 0;
  for await (const { inputs, reply } of batches(
    list,
    attention,
    { cut, off: reading.off, ...part },
    signal,
  )) {
    results.push(...inputs.map((text, i) => resultOf(text, i, reply)));
    unknown += reply.warnings.unknown_tokens ?? 0;
    showPart({ reading, results: [...results], count: list.length, unknown });
  }
  return { reading, results, count: list.length, unknown };
}

/**
 * Send texts some at a time, and yield the replies.
 *
 * @param {string[]} list
 * @param {(body: Object, signal: AbortSignal) => Promise<BinaryReply>} send
 * @param {{cut: boolean, off: string[]} & Object<string, unknown>} options with further fields of the requests
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<{inputs: string[], reply: BinaryReply}>}
 */
export async function* batches(list, send, { cut, off, ...part }, signal) {
  for (let first = 0; first < list.length; first += TOGETHER) {
    const inputs = list.slice(first, first + TOGETHER);
    const body = { ...requestOf({ texts: [], cut, off }), inputs, ...part };
    const reply = await send(body, signal).catch((error) => {
      throw inLines(error, first);
    });
    yield { inputs, reply };
  }
}

/** @param {string} text @param {number} i its number in the reply @param {BinaryReply} reply @returns {TextResult} */
function resultOf(text, i, { tensors, lists }) {
  const [tokens, offsets] = [lists.tokens[i], lists.offsets[i]];
  const statistics = Object.fromEntries(
    Object.keys(STATISTICS).map((name) => [name, Number(tensors[`stats.${i}.${name}`].data[0])]),
  );
  const [keys, weights] = [tensors[`attention.${i}.indices`], tensors[`attention.${i}.values`]];
  const each = keys.shape[3];
  const units = tokenUnits({ tokens, offsets, segments: tokens.map(() => 0), texts: [text] });
  /** @type {Link|null} */
  let link = null;
  for (let place = 0; place < keys.data.length; place += 1) {
    const [from, to] = [Math.floor(place / each), keys.data[place]];
    if (isSpecial(offsets[from]) || isSpecial(offsets[to])) continue;
    const weight = Number(weights.data[place]);
    if (!link || weight > link.weight)
      link = { from: units[from].label, to: units[to].label, weight, spans: [offsets[from], offsets[to]] };
  }
  return { text, size: tokens.length, truncated: Boolean(tensors.truncated.data[i]), statistics, link };
}

/**
 * Count texts as lines of the field in an error, not as inputs of a request.
 *
 * @param {unknown} error
 * @param {number} first
 */
function inLines(error, first) {
  if (!(error instanceof ApiError)) return error;
  const told = (/** @type {string} */ found, /** @type {string} */ number) =>
    `Text ${first + Number(number) + 1}${found.endsWith('has') ? ' has' : ''}`;
  return error.reworded(error.message.replace(/inputs\[(\d+)\](?: has)?/g, told));
}
