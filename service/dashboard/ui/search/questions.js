/**
 * Questions of the search that follow from the state.
 *
 * @typedef {import('../../core/state.js').State} State
 * @typedef {import('../../core/result-list.js').Result} Result
 * @typedef {import('../../core/result-list.js').ResultList} ResultList
 * @typedef {import('../../api/ranking.js').Search} Search
 * @typedef {Search & {results: Result[]}} Asked
 * @typedef {{list: ResultList|null, refusal: string|null}} Read `refusal` is why the results cannot be read
 */

import { hold, heldText, MOST_IN_ADDRESS } from '../../core/held-texts.js';
import { memo } from '../../core/memo.js';
import { documentOf, readResults } from '../../core/result-list.js';

/** Fields of the state that are about one list of results. */
export const OF_ONE_LIST = { picks: [], gone: '' };

/** Return the text of the results, or null if this tab does not have it. @param {State} state */
export const resultsText = ({ results, stored }) => (stored ? heldText(stored) : results);

/** Return the change of the state to other results. @param {string} text @returns {Partial<State>} */
export const withResults = (text) => ({
  ...OF_ONE_LIST,
  results: text.length > MOST_IN_ADDRESS ? '' : text,
  stored: text.length > MOST_IN_ADDRESS ? hold(text) : '',
});

/** Read the results of the state. @param {State} state @returns {Read} */
export function readOf(state) {
  const text = resultsText(state);
  return text === null ? { list: null, refusal: LOST } : readText(text);
}

const LOST =
  'The results of this link are too long for an address, and this tab does not have them. Open their file again.';

const readText = memo((/** @type {string} */ text) => {
  try {
    return { list: readResults(text), refusal: null };
  } catch (error) {
    return { list: null, refusal: error instanceof Error ? error.message : String(error) };
  }
});

/** Return what is to be ranked; null without a query or results. The same state gives the same object. @param {State} state */
export function searchOf(state) {
  const { list } = readOf(state);
  return list?.results.length && state.q.trim()
    ? search(list, state.q, state.qprompt, state.dprompt, state.cut)
    : null;
}

const search = memo(
  /** @param {ResultList} resultlist @param {string} query @param {string|null} queryPrompt @param {string|null} documentPrompt @param {boolean} cut */
  ({ results }, query, queryPrompt, documentPrompt, cut) => {
    /** @type {Asked} */
    const asked = { query, results, documents: results.map(documentOf), queryPrompt, documentPrompt, cut };
    return asked;
  },
);

/** Return the two results to compare; the best two until two are picked. @param {State} state @param {number[]} best @param {number} count */
export function pairOf({ picks }, best, count) {
  const there = picks.filter((number) => number < count);
  return there.length === 2 ? there : best;
}

/**
 * Return the words that are left out.
 *
 * @param {State} state
 * @returns {import('../../api/ranking.js').LeftOut|null}
 */
export function leftOut({ gone }) {
  const found = /^(q|\d+):(.+)$/.exec(gone);
  if (!found) return null;
  const spans = found[2].split(',').map((span) => span.split('-').map(Number));
  return found[1] === 'q'
    ? { query: spans, document: null, spans: [] }
    : { query: [], document: Number(found[1]), spans };
}

/** Return the words that are left out as the state has them. @param {number|null} document null: the query @param {number[][]} spans */
export const goneOf = (document, spans) =>
  `${document ?? 'q'}:${spans.map((span) => span.join('-')).join(',')}`;
