/**
 * Rankings of results by their scores with a query.
 *
 * @typedef {Object} Search what is ranked, and how
 * @property {string} query
 * @property {string[]} documents
 * @property {string|null} queryPrompt name of a prompt; the model's own when null, none when empty
 * @property {string|null} documentPrompt
 * @property {boolean} cut
 * @property {string} [model] another one of the service than the page's
 *
 * @typedef {Object} TokenInfo tokens of one text
 * @property {string[]} tokens
 * @property {number[][]} offsets in code points of the text
 * @property {boolean} truncated
 * @property {number[]} unknown places of unknown tokens
 * @typedef {TokenInfo & {shares: (number|null)[], completeness_error: number|null, partial: boolean,
 *   computed: number}} Shares
 *
 * @typedef {{name: string, text: string|null}|null} Prompt
 * @typedef {Object} Ranked
 * @property {string} model
 * @property {string} scoring
 * @property {{query: Prompt, document: Prompt}} prompts
 * @property {Object<string, number>} warnings number of texts, by kind
 * @property {number[]} scores by the documents' numbers
 * @property {(Object<string, number>|null)[]} parts scores of bge-m3's three vectors
 * @property {Explained|null} explained shares that came with the scores
 *
 * @typedef {Object} Explained
 * @property {string|null} method
 * @property {TokenInfo|null} query
 * @property {(Shares|null)[]} documents by their numbers; null until it has come
 * @property {number} count of documents that are explained in all
 */

import { orderOf } from '../core/ranking-metrics.js';
import { explain, rank, tokenize, vocabulary } from './client.js';
import { ApiError } from './errors.js';

/** Method whose shares need a forward pass of each token. */
export const OCCLUSION = 'occlusion';
/** Status of a reply that would be too large. */
const TOO_LARGE = 413;

/** @param {Search} search */
const bodyOf = ({ query, documents, queryPrompt, documentPrompt, cut, model }) => ({
  query,
  documents,
  truncate: cut,
  ...(queryPrompt === null ? {} : { query_prompt_name: queryPrompt }),
  ...(documentPrompt === null ? {} : { document_prompt_name: documentPrompt }),
  ...(model === undefined ? {} : { model }),
});

/** Whether the shares of the page's model come with its scores; null until a reply has told. */
let sharesCome = /** @type {boolean|null} */ (null);

/**
 * Return the scores of all documents; with the shares of their tokens where the forward passes of the scores give
 * them.
 *
 * @param {Search} search
 * @param {AbortSignal} signal
 * @returns {Promise<Ranked>}
 */
export async function ranking(search, signal) {
  const count = search.documents.length;
  const body = bodyOf(search);
  if (!sharesCome || search.model !== undefined) return rankedOf(await rank(body, signal), count);
  const reply = await rank({ ...body, explain: 'tokens' }, signal).catch((error) => {
    if (error instanceof ApiError && error.status === TOO_LARGE) return rank(body, signal);
    throw error;
  });
  const { method = null, query, results } = reply;
  const ranked = rankedOf(reply, count);
  if (method === null) return ranked;
  /** @type {(Shares|null)[]} */
  const documents = Array(count).fill(null);
  for (const result of results) documents[result.index] = result;
  return { ...ranked, explained: { method, query, documents, count } };
}

/** @param {any} reply @param {number} count @returns {Ranked} */
function rankedOf({ model, scoring, prompts, warnings = {}, results }, count) {
  /** @type {number[]} */
  const scores = Array(count).fill(0);
  /** @type {(Object<string, number>|null)[]} */
  const parts = Array(count).fill(null);
  for (const { index, score, parts: own = null } of results) {
    scores[index] = score;
    parts[index] = own;
  }
  return { model, scoring, prompts, warnings, scores, parts, explained: null };
}

/**
 * Return the shares of the tokens of documents. The best one comes first; if its shares need forward passes of
 * their own, the others come one by one, else together.
 *
 * @param {Search} search
 * @param {number[]} order numbers of the documents, the best first
 * @param {number} most number of documents whose shares are computed one by one
 * @param {AbortSignal} signal
 * @param {(part: Explained) => void} showPart
 * @returns {Promise<Explained>}
 */
export async function tokenShares(search, order, most, signal, showPart) {
  /** @type {(Shares|null)[]} */
  const documents = Array(search.documents.length).fill(null);
  const ask = async (/** @type {number[]} */ numbers) => {
    const some = { ...search, documents: numbers.map((number) => search.documents[number]) };
    const reply = await rank({ ...bodyOf(some), explain: 'tokens' }, signal).catch((error) => {
      throw numbered(error, numbers);
    });
    for (const result of reply.results) documents[numbers[result.index]] = result;
    return reply;
  };
  const [first, ...others] = order;
  const { method, query } = await ask([first]);
  sharesCome = method !== OCCLUSION;
  const count = method === OCCLUSION ? Math.min(most, order.length) : order.length;
  const explained = () => ({ method, query, documents: [...documents], count });
  const groups =
    method === OCCLUSION
      ? others.slice(0, count - 1).map((number) => [number])
      : others.length
        ? [others]
        : [];
  for (const numbers of groups) {
    showPart(explained());
    await ask(numbers);
  }
  return explained();
}

/** Put the numbers of all documents into an error about some of them. @param {unknown} error @param {number[]} numbers */
function numbered(error, numbers) {
  if (!(error instanceof ApiError)) return error;
  const told = (/** @type {string} */ _, /** @type {string} */ place) =>
    `documents[${numbers[Number(place)]}]`;
  return error.reworded(error.message.replace(/documents\[(\d+)\]/g, told));
}

/**
 * @typedef {{word: string, shares: (number|null)[], difference: number|null, spans: number[][][]}} ContrastWord
 * @typedef {{word: string, score: number|null, rank: number|null}} Without
 * @typedef {{documents: number[], ranks: number[], difference: number, words: ContrastWord[], other: number[],
 *   completeness_error: number|null, without: Without[][], partial: boolean, method: string}} Contrast
 */

/**
 * Return why one document is above another.
 *
 * @param {Search} search
 * @param {number[]} pair
 * @param {AbortSignal} signal
 * @returns {Promise<Contrast>}
 */
export async function contrast(search, pair, signal) {
  const reply = await rank({ ...bodyOf(search), explain: 'contrast', compare: pair }, signal);
  return { ...reply.contrast, method: reply.method };
}

/** @typedef {{query: number[][], document: number|null, spans: number[][]}} LeftOut spans in code points */
/** @typedef {{scores: number[], ranks: number[]}} Rescored scores and ranks of all documents */

/**
 * Return the scores without some words: of all documents without words of the query, else of one document.
 *
 * @param {Search} search
 * @param {LeftOut} leftOut
 * @param {number[]} scores with all words
 * @param {AbortSignal} signal
 * @returns {Promise<number[]>}
 */
export async function scoresWithout(search, { query, document, spans }, scores, signal) {
  if (document === null) {
    const reply = await rank({ ...bodyOf(search), query_without: query }, signal);
    return rankedOf(reply, search.documents.length).scores;
  }
  const alone = { ...search, documents: [search.documents[document]] };
  const { results } = await rank({ ...bodyOf(alone), documents_without: [spans] }, signal);
  return scores.map((score, number) => (number === document ? results[0].score : score));
}

/**
 * Return the part of a text that was cut off, and its number of tokens.
 *
 * @param {string} text
 * @param {TokenInfo} tokens of the text
 * @param {AbortSignal} signal
 */
export async function lostOf(text, { offsets }, signal) {
  const end = offsets.reduce((most, [, stop]) => Math.max(most, stop), 0);
  const lost = Array.from(text).slice(end).join('');
  const [pieces] = await tokenize({ inputs: [lost], add_special_tokens: false }, signal);
  return { lost: lost.trim(), tokens: pieces.length };
}

/**
 * @typedef {{query: string, document: string, term: string|null, score: number}} NamedMatch `term` of the vocabulary
 */

/**
 * Return what matches between the query and a document of a late-interaction model or a sparse encoder, the largest
 * score first.
 *
 * @param {string} query
 * @param {string} document
 * @param {boolean} truncate
 * @param {AbortSignal} signal
 * @returns {Promise<NamedMatch[]>}
 */
export async function matchesOf(query, document, truncate, signal) {
  const { texts, matches } = await explain({ inputs: [[query, document]], truncate }, signal);
  const ids = [
    ...new Set(matches.flatMap((/** @type {any} */ { token_id: id }) => (id === undefined ? [] : [id]))),
  ];
  const names = ids.length ? await vocabulary(ids, signal) : [];
  const termOf = new Map(ids.map((id, i) => [id, names[i]]));
  return matches
    .map((/** @type {any} */ { query: i, document: j, score, token_id: id }) => ({
      query: texts[0].tokens[i],
      document: texts[1].tokens[j],
      term: termOf.get(id) ?? null,
      score,
    }))
    .sort((/** @type {NamedMatch} */ one, /** @type {NamedMatch} */ other) => other.score - one.score);
}

/** Return the best two documents. @param {number[]} scores */
export const bestTwo = (scores) => orderOf(scores).slice(0, 2);
