/** Fields, options and errors of the texts, in one line while the text is short. */

import { OtherTextError } from '../api/errors.js';
import { taskOf } from '../api/service-info.js';
import { isPending, shownOf } from '../core/answers.js';
import { html, live, nothing } from '../core/html.js';
import { OF_ONE_TEXT } from '../core/state.js';
import { definition } from './definition.js';
import { examples } from './examples.js';
import { popover } from './popover.js';
import { problem } from './problems.js';
import { textField } from './text-field.js';
import { textNotes } from './text-notes.js';

const FLAGS = /** @type {const} */ ([
  ['words', 'Merge word pieces'],
  ['bare', 'Hide special tokens'],
  ['cut', 'Cut long texts'],
]);

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {{target: HTMLInputElement}} Changed
 */

/** @param {Store} store */
export function composer(store) {
  const { state, reading } = store;
  const isPair = state.b !== null;
  const task = taskOf(store.info);
  const error = store.problem;
  const first = { id: 'text-a', label: isPair ? 'First text of the pair' : 'Text', value: state.a };
  const pair = (/** @type {Changed} */ { target }) =>
    store.go({ ...store.paired(target.checked), part: 'all', ...OF_ONE_TEXT });
  const busy = isPending(store.text.answer);
  return html`<section class="composer card" aria-label="Input"><form id="composer" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <div class=${isPair ? 'texts pair' : 'texts'}>${textField(store, { ...first, patch: (a) => ({ a, ...OF_ONE_TEXT }) })}
        ${isPair ? textField(store, { id: 'text-b', label: 'Second text of the pair', value: state.b ?? '', patch: (b) => ({ b, ...OF_ONE_TEXT }) }) : nothing}</div>
      <div class="options">
        <label class="switch"><input type="checkbox" id="pair" .checked=${live(isPair)} @change=${pair}> Sentence pair</label>
        ${options(store)}${examples(store)}${score(store)}
        <span id="facts" class=${reading?.old ? 'facts stale' : 'facts'} aria-busy=${String(busy)}>${reading ? facts(reading.reply) : nothing}</span>
      </div>
    </form>
    ${
      task === 'reranker' && !isPair
        ? html`<p class="says pair-note">This model scores pairs, such as a query and a document: switch on <i>Sentence pair</i>.</p>`
        : nothing
    }
    ${
      isPair && store.info && !task
        ? html`<p class="says pair-note">This model was made for single texts: it takes a pair as one text of two parts,
        and what its heads do between the parts was never trained.</p>`
        : nothing
    }
    ${reading && !reading.old ? textNotes(reading.reply) : nothing}
    ${error && !(error instanceof OtherTextError) ? problem(store, error) : nothing}
  </section>`;
}

/** Options of the texts; the button has the number of those that are on. @param {Store} store */
function options(store) {
  const { state } = store;
  const flag = (
    /** @type {typeof FLAGS[number]} */ [name, label],
  ) => html`<label class="switch"><input type="checkbox" id=${name}
    .checked=${live(state[name])} @change=${(/** @type {Changed} */ { target }) => store.go({ [name]: target.checked, zoom: [1, 0, 0] })}> ${label}</label>`;
  const on = FLAGS.filter(([name]) => state[name]).length;
  return popover(
    'Options',
    on ? `Options · ${on} on` : 'Options',
    html`<div class="list">${FLAGS.map(flag)}</div>`,
  );
}

/** @param {import('../api/reading.js').Reading} reading */
const facts = ({ size, truncated, milliseconds }) =>
  html`${size} tokens${truncated ? html`<b>, cut</b>` : nothing}<span class="wide"> · ${milliseconds} ms</span>`;

/** Score of a pair by a cross-encoder, or the most likely label by a classifier. @param {Store} store */
export function score({ score: { answer }, state, info }) {
  const shown = shownOf(answer);
  if (!shown) return nothing;
  const [{ label, score: value }] = shown.reply;
  const isReranker = taskOf(info) === 'reranker';
  const says = isReranker
    ? 'How relevant the second text is to the first: the sigmoid of the model’s output, from 0 to 1.'
    : 'The most likely label, and its share among all labels, from 0 to 1.';
  const name = isReranker ? 'Score' : 'Label';
  return html`<span class=${shown.old ? 'score stale' : 'score'}>${definition(name, says)} <b>${isReranker ? '' : `${label} `}${value.toFixed(4)}</b>${
    state.off.length ? ' with all heads on' : ''
  }</span>`;
}
