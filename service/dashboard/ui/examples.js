/**
 * Example texts: each opens the view that it is about, and says what to see there. Three of them are the doors of
 * a first visit.
 *
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('./store.js').Store} Store
 * @typedef {Partial<State> & Pick<State, 'view'|'a'>} Opening
 * @typedef {{name: string, door?: string, opens: Opening, more?: (store: Store) => Partial<State>, see: string}} Example
 *   `more`: what it opens beyond, in the page's model
 */

import { html, nothing } from '../core/html.js';
import { largest } from '../core/matrix.js';
import { FIRST_TEXT, INITIAL, OF_ONE_TEXT, write } from '../core/state.js';
import { popover } from './popover.js';

/** @type {Example[]} */
const EXAMPLES = [
  {
    name: 'Coreference',
    door: 'What does a head do?',
    opens: { view: 'head', a: FIRST_TEXT, c: INITIAL.c },
    more: linkingHead,
    see: 'Lines lead from each word to the words that it looks at. The row above ranks all heads by their link from “it” to “animal”.',
  },
  {
    name: 'Paraphrase',
    door: 'Why are two texts alike?',
    opens: {
      view: 'why',
      why: 'pairs',
      a: 'A man is playing a guitar.',
      c: 'Someone plays an instrument.',
    },
    see: 'The texts share hardly a word. The darkest cells are the pairs of words that make them alike.',
  },
  {
    name: 'Without two heads',
    door: 'What happens without it?',
    opens: { view: 'ablation', a: FIRST_TEXT, c: INITIAL.c, off: ['0.0'], most: true },
    more: (store) => {
      const best = linking(store, 2);
      return best.length ? { off: best.map(({ layer, head }) => `${layer}.${head}`) } : {};
    },
    see: 'Click heads to switch them off. The large number is how far the text’s vector moved without them, and shades show how much the attention of every other head changed.',
  },
  {
    name: 'Negation',
    opens: { view: 'why', why: 'occlusion', a: 'The film was good.', c: 'The film was not good.' },
    see: 'One word reverses the meaning, yet the vectors stay alike: the shares show how little “not” counts.',
  },
  {
    name: 'Question and answer',
    opens: { view: 'why', why: 'pairs', a: 'Where do cats sleep?', c: 'A cat sleeps anywhere.' },
    see: 'The shares show which words of the answer match the question, and that other forms of a word match too.',
  },
  {
    name: 'Search',
    opens: {
      view: 'search',
      a: FIRST_TEXT,
      c: INITIAL.c,
      q: INITIAL.q,
      results: INITIAL.results,
      stored: '',
    },
    see: 'The best two results are compared word by word. Choose a shaded word to leave it out: its result’s new score and rank appear.',
  },
  {
    name: 'Ambiguous word',
    opens: {
      view: 'comparison',
      a: 'She sat on the bank of the river.',
      c: 'She opened an account at the bank.',
    },
    see: 'The same word in two meanings: the listed heads differ most between the two texts.',
  },
  {
    name: 'Other scripts',
    opens: { view: 'heads', a: 'Кошка спит в коробке.', c: 'القطة نائمة على النافذة.' },
    see: 'Models trained on English cut words of other scripts into letters. Options · Merge word pieces joins them again.',
  },
];

/** Return the heads with the strongest chosen link, while they are ranked. @param {Store} store @param {number} count */
function linking({ ranking }, count) {
  if (!ranking) return [];
  const { weights, reading } = ranking.reply;
  return largest(weights, count).map((place) => reading.headAt(place));
}

/** @param {Store} store @returns {Partial<State>} */
function linkingHead(store) {
  const [best] = store.state.a === FIRST_TEXT ? linking(store, 1) : [];
  const from = best && store.ranking?.reply.first.tokens[0];
  return { ...(best ?? { layer: 3, head: 1 }), most: false, pins: from === undefined ? [] : [from] };
}

/** @param {Store} store @param {Example} example */
const open = (store, { opens, more }) =>
  store.go(
    { b: null, part: 'all', off: [], ...OF_ONE_TEXT, ...opens, ...more?.(store) },
    { focus: '#view-title' },
  );

/** List of examples behind a button. @param {Store} store */
export const examples = (store) =>
  popover(
    'Examples',
    'Examples',
    html`<div class="list" role="group" aria-label="Examples">${EXAMPLES.map(
      (example) =>
        html`<button type="button" class="quiet" @click=${() => open(store, example)}>${example.name}</button>`,
    )}</div>`,
  );

/** Sentence on what to see in the example that is shown. @param {Store} store */
export function hint({ state }) {
  const isSearch = state.view === 'search';
  const shown = EXAMPLES.find(({ opens: { view, a, c, q, results } }) =>
    state.view === view && isSearch
      ? state.q === q && state.results === results && !state.stored
      : state.view === view && state.a === a && state.c === c && state.b === null,
  );
  return shown ? html`<p class="hint">${shown.see}</p>` : nothing;
}

/** What the page is, and three doors, until something is chosen. @param {Store} store */
export function intro(store) {
  if (write(store.state) !== write(INITIAL)) return nothing;
  const doors = EXAMPLES.filter(({ door }) => door);
  return html`<section class="intro" aria-label="Start here"><p>See what each attention head of this model looks at in a text, why two
    texts are alike, and what changes without a head.</p>
    <div class="doors">${doors.map(
      (example) =>
        html`<button type="button" class="door" @click=${() => open(store, example)}>${example.door}</button>`,
    )}</div></section>`;
}
