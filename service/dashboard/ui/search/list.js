/** The ranked results: scores with bars, words shaded by their shares, and what changes without a word. */

import { OCCLUSION } from '../../api/ranking.js';
import { errorOf, isPending } from '../../core/answers.js';
import { bdi, html, nothing, repeat } from '../../core/html.js';
import { markedText as markedWords, occurrences } from '../../core/marked-words.js';
import { memo } from '../../core/memo.js';
import { fixed } from '../../core/numbers.js';
import { orderOf, ranksOf, scaleOf } from '../../core/ranking-metrics.js';
import { problem } from '../problems.js';
import { markedText } from '../marked-text.js';
import { goneOf, leftOut, pairOf } from './questions.js';

/**
 * @typedef {import('../store.js').Store} Store
 * @typedef {import('./slots.js').SearchSlots} SearchSlots
 * @typedef {import('../../core/answers.js').Shown<import('./questions.js').Asked, import('../../api/ranking.js').Ranked>} Shown
 */

/** Characters of a badge's quotation. */
const MOST_SHOWN = 140;
const PARTS = { dense: 'dense', sparse: 'sparse', multivector: 'multi-vector' };

const marked = memo(
  /** @param {string} text @param {import('../../api/ranking.js').TokenInfo} info @param {boolean} merged */
  (text, info, merged) => markedWords(text, info, merged),
  200,
);

/** @param {Store} store @param {SearchSlots} slots @param {Shown} shown */
export function resultList(store, slots, shown) {
  const { scores } = shown.reply;
  const explained = slots.explainedOf(shown.asked);
  const context = {
    store,
    slots,
    shown,
    explained,
    ranks: ranksOf(scores),
    rival: slots.rivalOf(shown.asked),
    without: slots.of(slots.without, shown.asked),
    lost: slots.of(slots.lost, shown.asked)?.reply ?? null,
    scale: scaleOf(scores),
  };
  return html`${queryWords(context)}${progress(context)}
    <ol class="results" aria-label="Results, the best first">${repeat(
      orderOf(scores),
      (number) => number,
      (number) => result(context, number),
    )}</ol>`;
}

/**
 * @typedef {Object} Context
 * @property {Store} store
 * @property {SearchSlots} slots
 * @property {Shown} shown
 * @property {import('../../api/ranking.js').Explained|null} explained
 * @property {number[]} ranks
 * @property {import('../../api/ranking.js').Ranked|null} rival
 * @property {{asked: {gone: import('../../api/ranking.js').LeftOut}, reply: number[]}|null} without
 * @property {(import('./slots.js').Lost|null)[]|null} lost
 * @property {import('../../core/ranking-metrics.js').Scale} scale
 */

/** The words of the query, each of which can be left out. @param {Context} context */
function queryWords({ store, explained, shown, ranks, without }) {
  const info = explained?.query;
  if (!info) return nothing;
  const { query } = shown.asked;
  const all = marked(query, info, true);
  const gone = leftOut(store.state);
  const isGone = (/** @type {{start: number}} */ { start }) =>
    gone?.document === null && has(gone.query, start);
  return html`<section class="query-words" aria-label="Query"><h3>Leave a word of the query out</h3>
    ${markedText({ label: 'Words of the query', marked: all, isChosen: isGone, pick: (word) => toggle(store, null, occurrences(all.words, word), isGone(word)) })}
    ${badges(query, info, null)}${gone?.document === null && without ? bestWithout(ranks, without.reply) : nothing}</section>`;
}

/** Announce the best result without a word of the query. @param {number[]} ranks @param {number[]} scores */
const bestWithout = (ranks, scores) =>
  html`<p class="says" role="status">Without it, result ${ranks[orderOf(scores)[0]]} is the best: see each result’s new score and rank.</p>`;

/** @param {number[][]} spans @param {number} start */
const has = (spans, start) => spans.some(([begin]) => begin === start);

/** @param {Store} store @param {number|null} document @param {number[][]} spans @param {boolean} isGone */
const toggle = (store, document, spans, isGone) =>
  store.go({ gone: isGone || !spans.length ? '' : goneOf(document, spans) }, { replace: true });

/** @param {Context} context */
function progress({ store, slots, explained, shown }) {
  const error = errorOf(slots.shares.answer);
  if (error) return html`<p class="says">The words could not be explained.</p>${problem(store, error)}`;
  if (!explained)
    return html`<p class="says" aria-busy="true">Scores are there; shares of the words are being computed …</p>`;
  const done = explained.documents.filter(Boolean).length;
  const all = shown.reply.scores.length;
  const more = () => store.go({ explained: Math.min(50, explained.count + 10) });
  return html`<p class="says" aria-busy=${String(isPending(slots.shares.answer))}>${says(explained)}
    ${isPending(slots.shares.answer) ? html`${done} of ${explained.count} results explained. <button type="button" class="link" @click=${() => slots.shares.halt()}>Stop</button>` : nothing}
    ${explained.count < all && done === explained.count ? html`<button type="button" class="link" @click=${more}>Explain more results</button>` : nothing}</p>`;
}

/** @param {import('../../api/ranking.js').Explained} explained */
const says = ({ method }) =>
  ({
    pairs: 'Words are shaded by their share in the score.',
    matches: 'Words are shaded by the matches of the query’s tokens with them.',
    weights: 'Words are shaded by the terms that they share with the query.',
    [OCCLUSION]:
      'Tokens are shaded by what the score loses without them; these losses need not sum to the score.',
  })[method ?? ''] +
  ' Each text has its own scale. Below 0 is marked by a double line. Choose a word to leave it out.';

/** @param {Context} context @param {number} number of the document */
function result(context, number) {
  const { store, shown, ranks, rival } = context;
  const { relevance, rank: given } = shown.asked.results[number];
  const score = shown.reply.scores[number];
  const picked = pairOf(store.state, [], ranks.length).includes(number) || store.state.picks.includes(number);
  const rivalRank = rival ? ranksOf(rival.scores)[number] : null;
  return html`<li class="result" id=${`result-${number}`}>
    <span class="rank">${ranks[number]}</span>
    <div class="result-body">${words(context, number)}</div>
    <div class="result-score">${bar(score, context.scale)}<b>${fixed(score, 4)}</b>
      ${parts(shown.reply.parts[number])}
      ${relevance === null ? nothing : html`<span class="fact">relevance ${relevance}</span>`}
      <span class="fact">${given === null ? `no. ${number + 1} of the list` : `rank ${given} in the list`}</span>
      ${rival && rivalRank ? html`<span class="fact">rank ${rivalRank} in ${shortName(rival.model)}${moved(rivalRank - ranks[number])}</span>` : nothing}
      ${changed(context, number)}
      ${
        ranks.length > 1
          ? html`<button type="button" class="quiet compare" aria-pressed=${String(picked)} aria-label=${`Compare result ${ranks[number]}`}
        @click=${() => pick(store, number)}>Compare</button>`
          : nothing
      }</div></li>`;
}

/** @param {string} model */
const shortName = (model) => model.replace(/^.*\//, '');

/** @param {number} places */
const moved = (places) =>
  places === 0 ? ', the same' : places > 0 ? `, ${places} lower` : `, ${-places} higher`;

/** Pick a result to compare; a third one replaces the first. @param {Store} store @param {number} number */
function pick(store, number) {
  const { picks } = store.state;
  const others = picks.filter((one) => one !== number);
  const now = others.length < picks.length ? others : [...others, number].slice(-2);
  store.go({ picks: now }, now.length === 2 ? { focus: '#contrast-title' } : {});
}

/** @param {number} score @param {import('../../core/ranking-metrics.js').Scale} scale */
function bar(score, { low, zero, high }) {
  const width = high - low || 1;
  const [start, end] = [Math.min(score, zero), Math.max(score, zero)];
  return html`<span class=${score < zero ? 'score-bar less' : 'score-bar'} aria-hidden="true"
    .style=${`--from: ${(start - low) / width}; --to: ${(end - low) / width}`}></span>`;
}

/** @param {Object<string, number>|null} own */
const parts = (own) =>
  own
    ? html`<span class="fact">${Object.entries(PARTS)
        .map(([name, called]) => `${called} ${fixed(own[name], 4)}`)
        .join(' · ')}</span>`
    : nothing;

/** The words of a result, or its plain text while its shares are missing. @param {Context} context @param {number} number */
function words({ store, shown, explained, ranks, lost }, number) {
  const text = shown.asked.documents[number];
  const { title } = shown.asked.results[number];
  const info = explained?.documents[number];
  if (!info) {
    const { text: body } = shown.asked.results[number];
    return html`<p class="marked-words" dir="auto">${title ? html`<b>${title}</b><br>` : nothing}${body}</p>`;
  }
  const all = marked(text, info, explained?.method !== OCCLUSION);
  const bold = title ? Array.from(title).length : 0;
  const gone = leftOut(store.state);
  const isGone = (/** @type {{start: number}} */ { start }) =>
    gone?.document === number && has(gone.spans, start);
  return html`${info.partial ? html`<p class="badge">Only ${info.computed} tokens were explained before the deadline.</p>` : nothing}
    ${badges(text, info, lost?.[number] ?? null)}
    ${markedText({
      label: `Words of result ${ranks[number]}`,
      marked: all,
      bold,
      rest: Math.abs(all.rest) > 5e-5 ? `special tokens ${fixed(all.rest, 4)}` : '',
      isChosen: isGone,
      pick: (word) => toggle(store, number, occurrences(all.words, word), isGone(word)),
    })}`;
}

/** Score and rank without the word that is left out. @param {Context} context @param {number} number */
function changed({ store, slots, shown, ranks, without }, number) {
  const gone = leftOut(store.state);
  if (!gone || (gone.document !== null && gone.document !== number)) return nothing;
  const source = gone.document === null ? shown.asked.query : shown.asked.documents[number];
  const word = Array.from(source)
    .slice(...(gone.document === null ? gone.query : gone.spans)[0])
    .join('');
  const error = errorOf(slots.without.answer);
  if (error) return problem(store, error);
  if (!without || without.asked.gone.document !== gone.document || isPending(slots.without.answer))
    return html`<span class="fact" aria-busy="true">without “${bdi(word)}” …</span>`;
  const [score, rank] = [without.reply[number], ranksOf(without.reply)[number]];
  const change = score - shown.reply.scores[number];
  return html`<span class="without" role=${gone.document === null ? nothing : 'status'}>without “${bdi(word)}”: <b>${fixed(score, 4)}</b>
    (${change > 0 ? '+' : ''}${fixed(change, 4)}), rank ${rank}${moved(rank - ranks[number])}</span>`;
}

/** @param {string} text */
const shortened = (text) => (text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)} …` : text);

/**
 * What a reader should know about a text before trusting its score.
 *
 * @param {string} text
 * @param {import('../../api/ranking.js').TokenInfo|null} info
 * @param {import('./slots.js').Lost|null} lost what was cut off, once it is known
 */
function badges(text, info, lost) {
  if (!info) return nothing;
  return html`${info.truncated ? cut(lost) : nothing}${info.unknown.length ? unknown(text, info) : nothing}`;
}

/** @param {import('./slots.js').Lost|null} lost */
function cut(lost) {
  if (!lost) return html`<p class="badge">Cut: the model does not read all of it.</p>`;
  if (!lost.lost) return nothing;
  return html`<p class="badge">Cut: ${lost.tokens} tokens are not read: “${bdi(shortened(lost.lost))}”</p>`;
}

/** @param {string} text @param {import('../../api/ranking.js').TokenInfo} info */
function unknown(text, { unknown: places, offsets }) {
  const points = Array.from(text);
  const words = places.map((place) =>
    points
      .slice(...offsets[place])
      .join('')
      .trim(),
  );
  const count = places.length === 1 ? 'One token is' : `${places.length} tokens are`;
  return html`<p class="badge">${count} unknown to the model: “${bdi(shortened(words.join(' ')))}”</p>`;
}
