/** Why one result is above another, word by word. */

import { OCCLUSION } from '../../api/ranking.js';
import { errorOf } from '../../core/answers.js';
import { bdi, html, nothing, share } from '../../core/html.js';
import { fixed } from '../../core/numbers.js';
import { ranksOf } from '../../core/ranking-metrics.js';
import { matchTable } from '../explanation-tables.js';
import { leadingWords } from '../leading-words.js';
import { problem } from '../problems.js';

const MOST_ROWS = 12;

/**
 * @typedef {import('../store.js').Store} Store
 * @typedef {import('./slots.js').SearchSlots} SearchSlots
 * @typedef {import('./list.js').Shown} Shown
 * @typedef {import('../../api/ranking.js').Contrast} Contrast
 */

/** @param {Store} store @param {SearchSlots} slots @param {Shown} shown */
export function contrastPanel(store, slots, shown) {
  if (shown.reply.scores.length < 2) return nothing;
  const answer = slots.of(slots.contrast, shown.asked);
  const error = errorOf(slots.contrast.answer);
  const picked =
    store.state.picks.length === 1
      ? 'Pick a second result to compare.'
      : 'Pick two results to compare others.';
  return html`<section class="contrast" aria-labelledby="contrast-title" aria-busy=${String(!answer && !error)}>
    <h3 id="contrast-title" tabindex="-1">${answer ? titled(answer.reply, shown) : 'Why is one above the other?'}</h3>
    <p class="says">${picked}</p>
    ${error ? problem(store, error) : answer ? table(answer.reply, shown) : html`<p class="says">Being computed …</p>`}
    ${matches(store, slots, shown)}</section>`;
}

/** @param {Contrast} contrast @param {Shown} shown */
function titled({ documents }, { reply: { scores } }) {
  const ranks = ranksOf(scores);
  return `Why is result ${ranks[documents[0]]} ${ranks[documents[0]] < ranks[documents[1]] ? 'above' : 'below'} result ${ranks[documents[1]]}?`;
}

/** @param {number|null} value */
const shown4 = (value) => (value === null ? '–' : fixed(value, 4));

/** @param {Contrast} contrast @param {Shown} shown */
function table({ documents, difference, words, other, without, partial, method }, shown) {
  const ranks = documents.map((number) => ranksOf(shown.reply.scores)[number]);
  const isLoss = method === OCCLUSION;
  const most = words.reduce((largest, row) => Math.max(largest, Math.abs(row.difference ?? 0)), 1e-9);
  const rows = words.filter((row) => isShown(row.difference)).map((row) => wordRow(row, most));
  const named = words.map(({ word, difference: value }) => ({ label: word, value }));
  const does = ['puts', 'put', 'speaks', 'speak'].map((verb, i) =>
    i < 2 ? `${verb} it there` : `${verb} for the other`,
  );
  const special = isLoss ? nothing : wordRow(specialTokens(other), most);
  return html`${leadingWords(named, does)}<p class="says">The scores differ by <b>${fixed(difference, 4)}</b>. ${
    isLoss
      ? 'Each number is what the score loses without the word; these losses need not sum to the difference.'
      : 'The differences of all words and of the special tokens sum to it.'
  }${partial ? ' Numbers with – were not computed before the deadline.' : ''}</p>
    ${wordTable('Difference word by word', ranks, html`${rows.slice(0, MOST_ROWS)}${special}`)}
    ${
      rows.length > MOST_ROWS
        ? html`<details><summary>${rows.length - MOST_ROWS} words with smaller differences</summary>
        ${wordTable('Smaller differences', ranks, rows.slice(MOST_ROWS))}</details>`
        : nothing
    }
    ${without.map((rows, side) => ranksWithout(rows, ranks[side]))}`;
}

/** Whether a number is not 0.0000 when it is written. @param {number|null} value */
const isShown = (value) => value === null || Math.abs(value) >= 5e-5;

/** @param {number[]} other @returns {import('../../api/ranking.js').ContrastWord} */
const specialTokens = (other) => ({
  word: 'special tokens',
  shares: other,
  difference: other[0] - other[1],
  spans: [[[]], [[]]],
});

/** @param {string} caption @param {number[]} ranks @param {unknown} rows */
const wordTable = (caption, ranks, rows) => html`<table class="contrast-words"><caption>${caption}</caption>
    <thead><tr><th scope="col">word</th>${ranks.map((rank) => html`<th scope="col" class="number">result ${rank}</th>`)}
      <th scope="col" class="number">difference</th></tr></thead><tbody>${rows}</tbody></table>`;

/** @param {import('../../api/ranking.js').ContrastWord} row @param {number} most largest difference */
const wordRow = (
  { word, shares, difference, spans },
  most,
) => html`<tr class=${(difference ?? 0) < 0 ? 'less' : ''}>
    <th scope="row">${bdi(word)}</th>${shares.map((value, side) => html`<td class="number">${spans[side].length ? shown4(value) : ''}</td>`)}
    <td class="number"><span class="meter" .style=${share(Math.abs(difference ?? 0) / most)}></span>${shown4(difference)}</td></tr>`;

/** @param {import('../../api/ranking.js').Without[]} rows @param {number} rank */
const ranksWithout = (rows, rank) =>
  rows.length
    ? html`<table><caption>Result ${rank} without one of its words</caption><thead><tr><th scope="col">word</th>
      <th scope="col" class="number">score</th><th scope="col" class="number">rank</th></tr></thead>
    <tbody>${rows.map((one) => html`<tr><th scope="row">${bdi(one.word)}</th><td class="number">${shown4(one.score)}</td><td class="number">${one.rank ?? '–'}</td></tr>`)}</tbody></table>`
    : nothing;

/** Matches that each of two scores is made of, where it is. @param {Store} store @param {SearchSlots} slots @param {Shown} shown */
function matches(store, slots, shown) {
  const error = errorOf(slots.matches.answer);
  if (error) return problem(store, error);
  const answer = slots.of(slots.matches, shown.asked);
  if (!answer) return nothing;
  const ranks = ranksOf(shown.reply.scores);
  return answer.reply.map((all, side) => matchesOf(all, ranks[answer.asked.pair[side]]));
}

/** @param {import('../../api/ranking.js').NamedMatch[]} all @param {number} rank */
function matchesOf(all, rank) {
  const isTerms = all.some(({ term }) => term !== null);
  /** @type {Object<string, (match: import('../../api/ranking.js').NamedMatch) => string>} */
  const columns = { query: ({ query }) => query, result: ({ document }) => document };
  return isTerms
    ? matchTable('matches', `Terms of result ${rank}`, all, { term: ({ term }) => term ?? '', ...columns })
    : matchTable('matches', `Matches of result ${rank}`, all, columns);
}
