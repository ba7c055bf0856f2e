/** The page as a function of the store. */

import { OtherTextError } from '../api/errors.js';
import { decoderOf, othersOf } from '../api/service-info.js';
import { isPending } from '../core/answers.js';
import { html, live, nothing } from '../core/html.js';
import { OF_ONE_TEXT, VIEWS } from '../core/state.js';
import { theme } from '../draw/colours.js';
import { examples } from './examples.js';
import { linkFinder } from './link-finder.js';
import { problem } from './problems.js';
import { saveButtons } from './save-buttons.js';
import { textField } from './text-field.js';

const FLAGS = /** @type {const} */ ([
  ['words', 'Merge word pieces'],
  ['bare', 'Hide special tokens'],
  ['cut', 'Cut long texts'],
]);
const NAMED = 6;
/** Address of the page's icon, with its digest. */
const ICON = /** @type {HTMLLinkElement} */ (document.querySelector('link[rel="icon"]')).href;

/** @typedef {{target: HTMLInputElement}} Changed */

/**
 * @typedef {import('./store.js').Store} Store
 * @param {Store} store
 * @param {import('./live-panel.js').LivePanel} panel
 */
export const page = (store, panel) => html`
  <a class="skip" href="#panel" id="skip" @click=${skip}>Skip to the view</a>
  <header class="bar">
    <h1 class="brand"><img src=${ICON} alt="" width="28" height="28">Headscope</h1>
    <p id="model" class="model">${described(store)}</p>
    <nav class="tools" aria-label="Page">
      <button type="button" id="live-toggle" class="quiet" aria-expanded=${String(store.state.live)} aria-controls="live"
        @click=${() => store.go({ live: !store.state.live })}>Live</button>
      <a class="quiet" href="docs">API</a>
      <button type="button" id="theme-toggle" class="quiet" @click=${() => otherTheme(store)}>${theme() === 'dark' ? 'Light' : 'Dark'}</button>
    </nav>
  </header>
  <main>
    ${panel.draw(store.state.live)}
    ${composer(store)}
    ${linkFinder(store)}
    <div class="tabbar">${tabs(store)}${saveButtons(store)}</div>
    ${view(store)}
    <p id="status" class="status" role="status" aria-live="polite">${store.status}</p>
  </main>
  <footer class="foot"><p>Layers and heads are counted from 0, as in the API. The whole state of this page is in its address.</p></footer>
  ${switchedOff(store)}`;

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById('panel')?.focus();
}

/** @param {Store} store */
function described({ service }) {
  const known = service.answered?.reply;
  if (!known) return '';
  const { model_id: model, layers, heads, engine, provider, precision } = known;
  return `${model} · ${counted(layers, 'layer')} × ${counted(heads, 'head')} · ${engine}, ${provider}, ${precision}`;
}

/** @param {number} count @param {string} noun */
const counted = (count, noun) => `${count} ${noun}${count === 1 ? '' : 's'}`;

/** @param {Store} store */
function otherTheme(store) {
  const other = theme() === 'dark' ? 'light' : 'dark';
  document.documentElement.dataset.theme = other;
  try {
    localStorage.setItem('headscope-theme', other);
  } catch {
    // it holds until the page is left
  }
  store.redraw();
}

/** Fields, options and errors of the texts. @param {Store} store */
function composer(store) {
  const { state, reading } = store;
  const isPair = state.b !== null;
  const error = store.problem;
  const flag = (
    /** @type {typeof FLAGS[number]} */ [name, label],
  ) => html`<label class="switch"><input type="checkbox" id=${name}
    .checked=${live(state[name])} @change=${(/** @type {Changed} */ { target }) => store.go({ [name]: target.checked, zoom: [1, 0, 0] })}> ${label}</label>`;
  const first = { id: 'text-a', label: isPair ? 'First text of the pair' : 'Text', value: state.a };
  const busy = isPending(store.text.answer);
  return html`<section class="composer card" aria-label="Input"><form id="composer" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <div class="texts">${textField(store, { ...first, patch: (a) => ({ a, ...OF_ONE_TEXT }) })}
        ${isPair ? textField(store, { id: 'text-b', label: 'Second text of the pair', value: state.b ?? '', patch: (b) => ({ b, ...OF_ONE_TEXT }) }) : nothing}</div>
      ${examples(store)}
      <div class="options">
        <label class="switch"><input type="checkbox" id="pair" .checked=${live(isPair)}
          @change=${(/** @type {Changed} */ { target }) => store.go({ b: target.checked ? '' : null, part: 'all', ...OF_ONE_TEXT })}> Sentence pair</label>
        ${FLAGS.map(flag)}
        <span id="facts" class=${reading?.old ? 'facts stale' : 'facts'} aria-busy=${String(busy)}>${reading ? facts(reading.reply) : ''}</span>
      </div>
      ${
        isPair && isForSingleTexts(store)
          ? html`<p class="says pair-note">This model was made for single texts: it takes a pair as one text of two parts,
        and what its heads do between the parts was never trained.</p>`
          : nothing
      }
    </form>
    ${error && !(error instanceof OtherTextError) ? problem(store, error) : nothing}
  </section>`;
}

/** @param {import('../api/reading.js').Reading} reading */
const facts = ({ size, truncated, milliseconds }) =>
  `${size} tokens${truncated ? ', cut' : ''} · ${milliseconds} ms`;

/** @param {Store} store */
const isForSingleTexts = ({ service }) => {
  const kind = service.answered?.reply.model_type ?? {};
  return !('reranker' in kind) && !('classifier' in kind);
};

/**
 * Whether the service has what a view needs.
 *
 * @type {Partial<Record<import('../core/state.js').ViewName, (store: Store) => boolean>>}
 */
const NEEDED = {
  target: (store) => Boolean(decoderOf(store.info)),
  models: (store) => othersOf(store.info).length > 0,
};

/** Tabs, one a view. @param {Store} store */
function tabs(store) {
  const { view: chosen } = store.state;
  const there = VIEWS.filter((name) => chosen === name || (NEEDED[name]?.(store) ?? true));
  const key = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = there[(there.indexOf(chosen) + step + there.length) % there.length];
    store.go({ view: next }, { focus: `#tab-${next}` });
  };
  return html`<div role="tablist" aria-label="Views" id="tabs" @keydown=${key}>${there.map(
    (
      name,
    ) => html`<button type="button" id=${`tab-${name}`} role="tab" data-view=${name} aria-controls="panel"
      aria-selected=${String(name === chosen)} .tabIndex=${name === chosen ? 0 : -1}
      @click=${() => store.go({ view: name })}>${store.views[name].title}</button>`,
  )}</div>`;
}

/** Panel of the chosen view, dim while it answers an earlier question. @param {Store} store */
function view(store) {
  const text = store.text.answer;
  const shown = store.view.shows(text);
  const old = `${shown.isOld ? ' old' : ''}${store.reading?.old ? ' old-text' : ''}`;
  return html`<section id="panel" class=${`card panel${old}`} role="tabpanel" tabindex="-1"
    aria-labelledby=${`tab-${store.state.view}`} aria-busy=${String(store.busy)}>${store.view.draw(store, text)}
    ${store.busy && shown.isEmpty ? html`<p class="says">Being computed …</p>` : nothing}</section>`;
}

/** Notice of the heads that are switched off, in a place that moves nothing. @param {Store} store */
function switchedOff(store) {
  const { off } = store.state;
  const reading = store.reading;
  const known = reading && !reading.old ? reading.reply.shift.toPrecision(3) : '…';
  const names = off.map((name) => name.replace('.', '·'));
  const listed = names.length > NAMED ? `${names.slice(0, NAMED).join(', ')} …` : names.join(', ');
  return html`<aside id="ablated" class="notice" aria-label="Heads switched off" ?hidden=${off.length === 0}>
    ${names.length === 1 ? 'One head is' : `${names.length} heads are`} switched off (${listed}); the embedding moved by
    <b>${known}</b>. <button type="button" class="link" @click=${() => store.go({ off: [] })}>Switch all on</button></aside>`;
}
