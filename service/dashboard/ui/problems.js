/** Errors on the page. */

import { key } from '../api/client.js';
import { ApiError, OtherTextError } from '../api/errors.js';
import { errorOf } from '../core/answers.js';
import { html, nothing } from '../core/html.js';

/** Title of the error of a model that the next request loads, where models are loaded on demand. */
const NOT_LOADED = 'Model not loaded';

/** Advice for programs: fields of a request, settings, and what a request should have asked for. */
const FOR_PROGRAMS = /`|--|^(?:ask (?:for|\/)|leave|pass|occlude|send (?:it|fewer))\b/;

/**
 * Put the service's detail of an error, which is meant for programs, into words for people.
 *
 * @param {string} detail
 */
export const worded = (detail) =>
  withoutAdvice(
    detail
      .replace(/ \(`truncate` cuts it\)/g, '')
      .replace(/ \(--[\w-]+\)/g, '')
      .replace(/\bdocuments\[(\d+)\]/g, (_, number) => `no. ${Number(number) + 1} of the results`)
      .replace(/\b(?:inputs|targets)\[\d+\](?:\[\d+\])?:? has /g, 'The text has ')
      .replace(/\b(?:inputs|targets)\[\d+\](?:\[\d+\])?/g, 'the text')
      .replace(
        /it would take about [\d.]+ s, and ([\d.]+) s are left of its time/,
        (_, seconds) => `Too long for the ${Math.round(seconds)} s limit: shorten the text`,
      )
      .replace(
        /characters; at most (\d+) are taken[^:(]*/,
        (_, most) => `characters. Limit: ${Number(most).toLocaleString('en')} characters`,
      ),
  )
    .replaceAll('`', '')
    .replace(/^./u, (first) => first.toUpperCase())
    .replace(/(?<![.!?])$/, '.');

/** Leave out the clauses of a detail that are for programs. @param {string} detail */
function withoutAdvice(detail) {
  let [said, joint] = ['', ''];
  detail.split(/(; |: |, or )/).forEach((part, i) => {
    if (i % 2) joint = joint && part === ', or ' ? joint : part;
    else if (i === 0 || !FOR_PROGRAMS.test(part)) [said, joint] = [said + joint + part, ''];
  });
  return said;
}

/**
 * @param {import('./store.js').Store} store
 * @param {Error} error
 */
export function problem(store, error) {
  if (error instanceof ApiError && error.status === 401) return keyForm(store, error);
  if (isForLoading(error) && !errorOf(store.text.answer)) {
    return html`<p class="says" role="status">${error.message}. It is being loaded, which takes seconds to a minute: this page
      waits for it, and goes on as soon as it answers.</p>`;
  }
  const missing = missingHeads(store);
  if (missing.length) return withoutHeads(store, missing);
  const known = error instanceof ApiError ? error : null;
  const wait =
    known?.status === 429 && known.retryAfterSeconds
      ? ` This page asks again in ${known.retryAfterSeconds} s.`
      : '';
  const passes = known?.passes ? ' This page asks again as soon as it answers.' : '';
  const cuts = known?.status === 422 && !store.state.cut && known.message.includes('`truncate` cuts');
  const never = known !== null && [424, 501].includes(known.status);
  const message = worded(known?.message ?? '');
  const action = (/** @type {string} */ text, /** @type {() => void} */ act) =>
    html`<button type="button" class="quiet" @click=${act}>${text}</button>`;
  return html`<div class="problem" role="alert">
    <b>${known ? known.title : 'This page failed'}</b>
    <span>${known ? (isForLoading(error) ? `${known.message}.` : message) : error.message}${wait}${passes}</span>
    ${cuts ? action('Cut the text', () => store.go({ cut: true })) : nothing}
    ${never ? nothing : action('Try again', () => store.retry())}
    ${never && store.state.view === 'why' ? action('Open Search', () => store.go({ view: 'search' })) : nothing}
  </div>`;
}

/** Return whether an error ends when a model has been loaded for a request. @param {Error} error */
const isForLoading = (error) => error instanceof ApiError && error.title === NOT_LOADED;

/** Return the heads that are switched off and that the model does not have. @param {import('./store.js').Store} store */
function missingHeads({ modality: { tower }, state }) {
  if (!tower) return [];
  return state.off.filter((name) => {
    const [layer, head] = name.split('.').map(Number);
    return layer >= tower.layers || head >= tower.heads;
  });
}

/**
 * Error of an address that switches off heads of a larger model.
 *
 * @param {import('./store.js').Store} store
 * @param {string[]} missing
 */
function withoutHeads(store, missing) {
  const { layers, heads } = /** @type {{layers: number, heads: number}} */ (store.modality.tower);
  const names = missing.map((name) => name.replace('.', '·')).join(', ');
  const off = store.state.off.filter((name) => !missing.includes(name));
  return html`<div class="problem" role="alert"><b>The link switches off heads that this model does not have</b>
    <span>(${names}): it has ${layers} layers and ${heads} heads, counted from 0.</span>
    <button type="button" class="quiet" @click=${() => store.go({ off })}>Leave them out</button></div>`;
}

/**
 * Error of a view's second text, for the place under the text's field.
 *
 * @param {import('./store.js').Store} store
 */
export function otherTextProblem(store) {
  const { error } = store;
  return error instanceof OtherTextError ? problem(store, error.reason) : nothing;
}

/** @param {import('./store.js').Store} store @param {ApiError} error */
function keyForm(store, error) {
  const give = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    key.set(String(new FormData(form).get('key')));
    store.retry({ anew: true });
  };
  return html`<form class="problem key" @submit=${give}>
    <b role="alert">${error.keyed ? 'This key is not known' : 'This service wants a key'}</b>
    <label>API key <input name="key" type="password" autocomplete="current-password" required></label>
    <button type="submit" class="quiet">Open</button>
    <span>It is kept in this tab until the tab is closed.</span>
  </form>`;
}
