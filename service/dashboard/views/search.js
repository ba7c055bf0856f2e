/** View of a search: results ranked by their scores with a query, and why. */

import { errorOf, isPending } from '../core/answers.js';
import { html, nothing } from '../core/html.js';
import { theme } from '../draw/colours.js';
import '../elements/bump-chart.js';
import { memo } from '../core/memo.js';
import { problem } from '../ui/problems.js';
import { contrastPanel } from '../ui/search/contrast.js';
import { bumpsOf, namesOf, rankingFile, tableButtons } from '../ui/search/exports.js';
import { searchInput } from '../ui/search/input.js';
import { resultList } from '../ui/search/list.js';
import { quality } from '../ui/search/quality.js';
import { SearchSlots } from '../ui/search/slots.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../ui/search/list.js').Shown} Shown
 */

/** Names of scores. @type {Object<string, string>} */
const SCORES = {
  cosine: 'cosine of the vectors',
  dot: 'dot product of the vectors',
  euclidean: 'negative distance of the vectors',
  manhattan: 'negative distance of the vectors',
  maxsim: 'MaxSim: the sum of each query token’s best match',
  meanmaxsim: 'mean of each query token’s best match',
  sparse: 'dot product of the sparse vectors',
  hybrid: 'mean of the dense, sparse and multi-vector scores',
  logit: 'logit of query and result, read together',
};

/** View with several answers, which needs no text of the page. */
class SearchView {
  title = 'Search';
  isAlone = true;
  #slots;

  /** @param {() => void} onChange */
  constructor(onChange) {
    this.#slots = new SearchSlots(onChange);
  }

  wantsMaps() {
    return false;
  }

  /** @param {Store} store */
  ask(store) {
    this.#slots.ask(store);
  }

  enter() {}

  stop() {
    for (const slot of this.#slots.all) slot.stop();
  }

  /** End the work on shares: those that have come are shown. */
  halt() {
    this.#slots.shares.halt();
  }

  /** @param {{anew?: boolean}} [options] */
  retry(options) {
    for (const slot of this.#slots.all) slot.retry(options);
  }

  get error() {
    return errorOf(this.#slots.ranked.answer);
  }

  /** Errors of all answers. */
  get errors() {
    return this.#slots.errors;
  }

  get isPending() {
    return isPending(this.#slots.ranked.answer);
  }

  /** @returns {unknown} */
  get version() {
    return this.#slots.ranked.answer;
  }

  shows() {
    const { shown } = this.#slots;
    return { isEmpty: shown === null, isOld: shown?.old ?? false };
  }

  says() {
    const { shown } = this.#slots;
    if (!shown?.whole) return '';
    const explained = this.#slots.of(this.#slots.shares, shown.asked);
    const { length } = shown.reply.scores;
    return `${length} ${length === 1 ? 'result' : 'results'} ranked${explained ? ' and explained' : ''}.`;
  }

  savable() {
    const { shown } = this.#slots;
    if (!shown?.whole) return null;
    const reading = { texts: [shown.asked.query], tokens: [], off: [], model: shown.reply.model };
    return { reading, make: () => rankingFile(shown, this.#slots.rivalOf(shown.asked)) };
  }

  /** @param {Store} store */
  draw(store) {
    const { shown } = this.#slots;
    const { error } = this;
    return html`<h2 id="view-title" tabindex="-1">Search: rank, and why</h2>
      ${searchInput(store, shown && !shown.old ? shown.reply : null)}
      ${error ? problem(store, error) : nothing}
      ${shown ? this.#results(store, shown) : nothing}`;
  }

  /** @param {Store} store @param {Shown} shown */
  #results(store, shown) {
    const rival = this.#slots.rivalOf(shown.asked);
    const rivalError = errorOf(this.#slots.rival.answer);
    return html`<div class="search-body"><section class="ranked" aria-label="Ranking">
        <div class="ranked-top"><p class="says">Scored by ${shown.reply.model}: ${SCORES[shown.reply.scoring] ?? shown.reply.scoring}.${shown.reply.scores.every((score) => score <= 0) ? ' No score is above 0: bars begin below the lowest.' : ''}</p>
          ${tableButtons(shown, rival)}</div>
        ${quality(shown.asked.results, shown.reply.scores, rival)}
        ${resultList(store, this.#slots, shown)}</section>
      <div class="search-side" role="region" aria-label="Comparison of results" tabindex="0">${rivalError ? html`<section aria-label="Other model"><h3>Ranks in ${store.state.versus}</h3>${problem(store, rivalError)}</section>` : rival ? bumps(shown, rival) : nothing}
        ${contrastPanel(store, this.#slots, shown)}</div></div>`;
  }
}

/** @param {Shown} shown @param {import('../api/ranking.js').Ranked} rival */
const bumps = (
  { asked, reply },
  rival,
) => html`<section aria-labelledby="bumps-title"><h3 id="bumps-title">Ranks in two models</h3>
    <bump-chart .data=${bumpData(bumpsOf(asked, reply, rival), reply, rival, theme())}></bump-chart></section>`;

const bumpData = memo(
  /** @param {import('../draw/ranking-chart.js').Bumps} rows @param {import('../api/ranking.js').Ranked} reply @param {import('../api/ranking.js').Ranked} rival @param {string} shade */
  (rows, reply, rival, shade) => ({ rows, names: namesOf(reply, rival), theme: shade }),
);

/** @param {() => void} onChange @returns {import('../ui/view-slot.js').AnyViewSlot} */
export const searchView = (onChange) => new SearchView(onChange);
