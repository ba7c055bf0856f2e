/** Answers to the questions of the search, each with its own state and error. */

import {
  bestTwo,
  contrast,
  lostOf,
  matchesOf,
  ranking,
  scoresWithout,
  tokenShares,
} from '../../api/ranking.js';
import { othersOf } from '../../api/service-info.js';
import { errorOf, Slot, shownOf } from '../../core/answers.js';
import { orderOf } from '../../core/ranking-metrics.js';
import { leftOut, pairOf, searchOf } from './questions.js';

/**
 * @typedef {import('../store.js').Store} Store
 * @typedef {import('./questions.js').Asked} Asked
 * @typedef {import('../../api/ranking.js').Ranked} Ranked
 * @typedef {import('../../api/ranking.js').Explained} Explained
 * @typedef {{lost: string, tokens: number}} Lost
 */

/** Scores that are sums over matches. */
const MATCHED = ['maxsim', 'meanmaxsim', 'sparse'];

/** @param {unknown} a @param {unknown} b */
const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

export class SearchSlots {
  /** @type {Store|null} */
  #store = null;

  /** @param {() => void} onChange */
  constructor(onChange) {
    const more = () => {
      this.#askMore();
      onChange();
    };
    /** @type {Slot<Asked, Ranked>} */
    this.ranked = new Slot(more);
    /** @type {Slot<{search: Asked, explained: number}, Explained>} */
    this.shares = new Slot(more);
    /** @type {Slot<{search: Asked, pair: number[]}, import('../../api/ranking.js').Contrast>} */
    this.contrast = new Slot(onChange);
    /** @type {Slot<{search: Asked, gone: import('../../api/ranking.js').LeftOut}, number[]>} */
    this.without = new Slot(onChange);
    /** @type {Slot<Asked, Ranked>} */
    this.rival = new Slot(onChange);
    /** @type {Slot<{search: Asked, numbers: number[]}, (Lost|null)[]>} */
    this.lost = new Slot(onChange);
    /** @type {Slot<{search: Asked, pair: number[]}, import('../../api/ranking.js').NamedMatch[][]>} */
    this.matches = new Slot(onChange);
  }

  get all() {
    return [this.ranked, ...this.#others];
  }

  get #others() {
    return [this.shares, this.contrast, this.matches, this.without, this.rival, this.lost];
  }

  /** Ask what follows from the state. @param {Store} store */
  ask(store) {
    this.#store = store;
    const search = searchOf(store.state);
    if (!search) {
      for (const slot of this.all) slot.clear();
      return;
    }
    this.ranked.ask(search, (signal) => ranking(search, signal));
    const model = rivalOf(store);
    const other = { ...search, queryPrompt: null, documentPrompt: null };
    this.rival.ask(model === null ? null : { ...search, model }, (signal, _, asked) =>
      ranking({ ...other, model: asked.model }, signal),
    );
    this.#askMore();
  }

  /** Ask what follows from the ranking. */
  #askMore() {
    const { answer } = this.ranked;
    const store = this.#store;
    if (!store || !answer || !('reply' in answer)) {
      for (const slot of this.#others) if (slot !== this.rival) slot.stop();
      return;
    }
    const { asked: search, reply } = answer;
    const { query, documents, cut } = search;
    const { explained } = store.state;
    this.shares.ask(
      { search, explained },
      async (signal, come) =>
        reply.explained ?? tokenShares(search, orderOf(reply.scores), explained, signal, come),
    );
    const two = pairOf(store.state, bestTwo(reply.scores), reply.scores.length);
    const compared = two.length === 2 ? { search, pair: two } : null;
    this.contrast.ask(compared, (signal, _, { pair }) => contrast(search, pair, signal));
    this.matches.ask(MATCHED.includes(reply.scoring) ? compared : null, (signal, _, { pair }) =>
      Promise.all(pair.map((number) => matchesOf(query, documents[number], cut, signal))),
    );
    const wanted = leftOut(store.state);
    const isThere = wanted && (wanted.document ?? 0) < reply.scores.length;
    this.without.ask(isThere ? { search, gone: wanted } : null, (signal, _, { gone }) =>
      scoresWithout(search, gone, reply.scores, signal),
    );
    this.#askLost(search);
  }

  /** Ask what the parts say that were cut off. @param {Asked} search */
  #askLost(search) {
    const documents = this.explainedOf(search)?.documents ?? [];
    const numbers = [...documents.keys()].filter((number) => documents[number]?.truncated);
    this.lost.ask(numbers.length ? { search, numbers } : null, async (signal) => {
      /** @type {(Lost|null)[]} */
      const lost = search.documents.map(() => null);
      for (const number of numbers) {
        const info = documents[number];
        if (info) lost[number] = await lostOf(search.documents[number], info, signal);
      }
      return lost;
    });
  }

  /** What is shown of the ranking. */
  get shown() {
    return shownOf(this.ranked.answer);
  }

  /** Return the shares of the tokens of a ranking, as far as they have come. @param {Asked} search @returns {Explained|null} */
  explainedOf(search) {
    const shown = shownOf(this.shares.answer);
    return shown && same(shown.asked.search, search) ? shown.reply : null;
  }

  /** Return a complete answer about a ranking, or null. @template {{search: Asked}} Q, R @param {Slot<Q, R>} slot @param {Asked} search */
  of(slot, search) {
    const { answer } = slot;
    return answer && 'reply' in answer && same(answer.asked.search, search) ? answer : null;
  }

  /** Ranking by the other model, or null. @param {Asked} search @returns {Ranked|null} */
  rivalOf(search) {
    const { answer } = this.rival;
    if (!answer || !('reply' in answer)) return null;
    const { model: _, ...asked } = answer.asked;
    return same(asked, { ...search }) ? answer.reply : null;
  }

  get errors() {
    return this.all.map(({ answer }) => errorOf(answer));
  }
}

/** Return the name of the other model, or null. @param {Store} store */
export function rivalOf({ state, info }) {
  return othersOf(info).includes(state.versus) ? state.versus : null;
}
