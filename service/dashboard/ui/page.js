/** The page as a function of the store. */

import { key } from '../api/client.js';
import { decoderOf, othersOf, readsBoth, taskOf } from '../api/service-info.js';
import { errorOf } from '../core/answers.js';
import { html, nothing, painted } from '../core/html.js';
import { OF_ONE_TEXT, WITH_FINDER } from '../core/state.js';
import { theme } from '../draw/colours.js';
import { composer } from './composer.js';
import { segments } from './controls.js';
import { hint, intro } from './examples.js';
import { linkFinder } from './link-finder.js';
import { modelSwitch } from './model-switch.js';
import { popover } from './popover.js';
import { problem } from './problems.js';
import { saveButtons } from './save-buttons.js';

const NAMED = 6;
/** Address of the page's icon, with its digest. */
const ICON = /** @type {HTMLLinkElement} */ (document.querySelector('link[rel="icon"]')).href;

/**
 * @typedef {import('./store.js').Store} Store
 * @param {Store} store
 * @param {import('./live-panel.js').LivePanel} panel
 */
export const page = (store, panel) => html`
  <a class="skip" href="#panel" id="skip" @click=${skip}>Skip to the view</a>
  <header class="bar">
    <h1 class="brand"><img src=${ICON} alt="" width="28" height="28">Headscope</h1>
    <div id="model" class="model">${modelSwitch(store)}</div>
    <nav class="tools" aria-label="Page">
      <button type="button" id="live-toggle" class="quiet" aria-expanded=${String(store.state.live)} aria-controls="live"
        @click=${() => store.go({ live: !store.state.live })}>Live</button>
      ${apiLink()}
      <button type="button" id="theme-toggle" class="quiet" @click=${() => otherTheme(store)}>${theme() === 'dark' ? 'Light' : 'Dark'}</button>
    </nav>
  </header>
  <main>
    ${panel.draw(store.state.live)}
    ${readsBoth(store.info) ? inputSwitch(store) : nothing}
    ${store.modality.isOfPictures ? ofPictures(store) : ofTexts(store)}
    ${tabs(store)}
    ${corrected(store)}${switchedOff(store)}
    <div class="stage">${view(store)}${saveButtons(store)}</div>
    <p id="status" class="status" role="status" aria-live="polite">${store.status}</p>
  </main>
  <footer class="foot"><p>${
    store.modality.isOfPictures
      ? 'Layers, heads, rows and columns are counted from 0, as in the API. The whole state of this page is in its address, but for the picture.'
      : 'Layers and heads are counted from 0, as in the API. The whole state of this page is in its address.'
  }</p></footer>`;

/** What stands above the tabs for texts. @param {Store} store */
const ofTexts = (store) => html`${intro(store)}
  ${store.view.isAlone ? nothing : composer(store)}
  ${WITH_FINDER.includes(store.state.view) ? linkFinder(store) : nothing}`;

/** What stands above the tabs for pictures. @param {Store} store */
function ofPictures(store) {
  const { pictures, page: loaded } = store.modality;
  const error = errorOf(loaded.answer);
  return pictures ? pictures.top(store) : error ? problem(store, error) : nothing;
}

/** Switch between both towers of a model. @param {Store} store */
const inputSwitch = (store) =>
  html`<div class="towers">${segments(
    'Tower',
    { pictures: 'Pictures', texts: 'Texts' },
    store.state.input,
    (input) => store.go({ input, view: 'heads', ...OF_ONE_TEXT }),
  )}</div>`;

/** Link to the pages of the API, which a browser opens with a key that it asks for itself. */
function apiLink() {
  const link = (/** @type {string} */ text) => html`<a class="quiet" href="docs">${text}</a>`;
  if (key.get() === null) return link('API');
  return popover(
    'API',
    'API',
    html`<p>The browser asks for a name and a password: enter the API key as the password.</p>
    ${link('Open the API’s pages')}`,
  );
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById('panel')?.focus();
}

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

/**
 * Whether the service has what a view needs.
 *
 * @type {Partial<Record<import('../core/state.js').ViewName, (store: Store) => boolean>>}
 */
const NEEDED = {
  target: (store) => Boolean(decoderOf(store.info)),
  models: (store) => othersOf(store.info).length > 0,
  search: (store) => taskOf(store.info) !== 'classifier',
};

/** Name of the view that is shown. @param {Store} store */
const chosenView = ({ state: { view }, modality }) => (modality.views[view] ? view : 'heads');

/**
 * Tabs by name, each with its views.
 *
 * @type {[string, Partial<Record<import('../core/state.js').ViewName, string>>][]}
 */
const TABS = [
  ['Heads', { heads: '' }],
  ['Head', { head: 'Map', compared: 'Query and key', rollout: 'Rollout', target: 'Cross-attention' }],
  ['Compare', { comparison: 'Another text', models: 'Another model', ablation: 'Heads switched off' }],
  ['Why alike?', { why: '' }],
  ['Many texts', { texts: '' }],
  ['Search', { search: '' }],
];

/** @param {Object} titles */
const viewsIn = (titles) => /** @type {import('../core/state.js').ViewName[]} */ (Object.keys(titles));

/** Tabs, and the views of the chosen one. @param {Store} store */
function tabs(store) {
  const { views } = store.modality;
  const chosen = chosenView(store);
  const there = (/** @type {import('../core/state.js').ViewName} */ view) =>
    views[view] && (view === chosen || (NEEDED[view]?.(store) ?? true));
  const groups = TABS.flatMap(([name, titles]) => {
    const all = viewsIn(titles).filter(there);
    return all.length ? [{ name, titles, views: all }] : [];
  });
  const own = groups.find((group) => group.views.includes(chosen)) ?? groups[0];
  const first = groups.map((group) => ({
    id: group.views.length > 1 ? `group-${group.views[0]}` : group.views[0],
    name: group.name,
    view: group === own ? chosen : group.views[0],
    isChosen: group === own,
  }));
  const second = own.views.map((view) => ({
    id: view,
    name: own.titles[view] ?? '',
    view,
    isChosen: view === chosen,
  }));
  return html`<div class="views">${tabList(store, 'tabs', 'Views', first)}${second.length > 1 ? tabList(store, 'subviews', `Views of ${own.name}`, second) : nothing}</div>`;
}

/**
 * @param {Store} store
 * @param {string} id
 * @param {string} label
 * @param {{id: string, name: string, view: import('../core/state.js').ViewName, isChosen: boolean}[]} all
 */
function tabList(store, id, label, all) {
  const chosen = all.findIndex(({ isChosen }) => isChosen);
  const key = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = all[(chosen + step + all.length) % all.length];
    store.go({ view: next.view }, { focus: `#tab-${next.id}` });
  };
  return html`<div role="tablist" aria-label=${label} id=${id} class="scrolls" ${painted(reveal, chosen)} @keydown=${key}>${all.map(
    (tab) => html`<button type="button" id=${`tab-${tab.id}`} role="tab" aria-controls="panel"
      aria-selected=${String(tab.isChosen)} .tabIndex=${tab.isChosen ? 0 : -1}
      @click=${() => store.go({ view: tab.view })}>${tab.name}</button>`,
  )}</div>`;
}

/** Scroll the tabs so that the chosen one is seen, in the next frame's layout. @param {HTMLElement} list */
const reveal = (list) =>
  requestAnimationFrame(() => {
    const tab = /** @type {HTMLElement|null} */ (list.querySelector('[aria-selected="true"]'));
    if (tab) list.scrollLeft = tab.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
  });

/** Panel of the chosen view, dim while it answers an earlier question. @param {Store} store */
function view(store) {
  const text = store.text.answer;
  const shown = store.view.shows(text);
  const old = `${shown.isOld ? ' old' : ''}${store.reading?.old ? ' old-text' : ''}`;
  return html`<section id="panel" class=${`card panel${old}`} role="tabpanel" tabindex="-1"
    aria-labelledby=${`tab-${chosenView(store)}`} aria-busy=${String(store.busy)}>${content(store, text)}
    ${store.busy && shown.isEmpty ? html`<p class="says">Being computed …</p>` : nothing}</section>`;
}

/** Content of the panel, which waits for a picture. @param {Store} store @param {import('./view-slot.js').TextAnswer|null} text */
function content(store, text) {
  const { isOfPictures, pictures, source } = store.modality;
  if (!isOfPictures) return html`${hint(store)}${store.view.draw(store, text)}`;
  if (pictures && source) return store.view.draw(store, text);
  return html`<p class="says">${pictures ? 'Choose a picture to see where each head looks.' : nothing}</p>`;
}

/** Notice of an address that names what the model has not. @param {Store} store */
const corrected = (store) =>
  store.corrected ? html`<aside class="notice" role="status">${store.corrected}</aside>` : nothing;

/** Views that say themselves which heads are off, or in which all are on. */
const OF_ALL_HEADS = ['ablation', 'why', 'search'];

/** Notice of the heads that are switched off, above the view. @param {Store} store */
function switchedOff(store) {
  const { off, view: name } = store.state;
  const reading = store.reading;
  const known = reading && !reading.old ? reading.reply.shift.toPrecision(3) : '…';
  const names = off.map((head) => head.replace('.', '·'));
  const listed = names.length > NAMED ? `${names.slice(0, NAMED).join(', ')} …` : names.join(', ');
  return html`<aside id="ablated" class="notice" aria-label="Heads switched off" ?hidden=${off.length === 0 || OF_ALL_HEADS.includes(name)}>
    ${names.length === 1 ? 'One head is' : `${names.length} heads are`} switched off (${listed}); the embedding moved by
    <b>${known}</b>. <button type="button" class="link" @click=${() => store.go({ off: [] }, { focus: '#panel' })}>Switch all on</button></aside>`;
}
