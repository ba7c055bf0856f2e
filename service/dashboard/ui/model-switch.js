/** The page's model, and a list of the service's models that switches between them. */

import { MODEL, modelState } from '../api/client.js';
import { errorOf, isPending, shownOf } from '../core/answers.js';
import { html, nothing } from '../core/html.js';
import { write } from '../core/state.js';
import { popover } from './popover.js';

/** What the states of a version mean to somebody who chooses a model. */
const STATES = /** @type {Object<string, string>} */ ({
  serving: 'serving',
  loaded: 'loaded',
  loading: 'being loaded',
  draining: 'finishes its last requests',
  available: 'not loaded',
  failed: 'failed',
});

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('../api/client.js').ModelState} ModelState
 */

/** @param {Store} store */
export function modelSwitch(store) {
  const { info } = store;
  const name = MODEL ?? info?.model_id;
  const names = store.modelNames.answered?.reply ?? [];
  if (name === undefined || (!info && names.length === 0)) return nothing;
  const facts = info
    ? html`<span class="wide"> · ${described({ ...info, ...store.modality.tower })}</span>`
    : nothing;
  if (names.length < 2 && names.every((other) => other === name)) return html`<b>${name}</b>${facts}`;
  const ask = () =>
    store.modelStates.ask({ at: performance.now() }, (signal) =>
      Promise.all(names.map((other) => modelState(other, signal))),
    );
  return html`${popover('Models', html`<b>${name}</b> ▾`, list(store, name), { width: 420, onOpen: ask })}${facts}`;
}

/** @param {import('../api/service-info.js').ServiceInfo} info */
const described = ({ layers, heads, engine, provider, precision }) =>
  `${counted(layers, 'layer')} × ${counted(heads, 'head')} · ${engine}, ${provider}, ${precision}`;

/** @param {number} count @param {string} noun */
const counted = (count, noun) => `${count} ${noun}${count === 1 ? '' : 's'}`;

/** @param {Store} store @param {string} current */
function list({ modelStates: { answer }, state }, current) {
  const known = shownOf(answer)?.reply ?? [];
  const link = (
    /** @type {string} */ name,
  ) => html`<a href=${`?${new URLSearchParams({ model: name })}${write(state)}`}
    aria-current=${name === current ? 'page' : nothing}>${name}</a>`;
  const model = (/** @type {ModelState} */ { name, versions, target }) => html`<li>${link(name)}
    <span class="says">${target ? `alias of ${target}` : isLoaded(versions) ? nothing : 'loads at its first request'}</span>
    ${versions.length ? html`<ul>${versions.map((one) => version(name, one, link))}</ul>` : nothing}</li>`;
  const error = errorOf(answer);
  return html`<p class="says">The text and the view stay as they are.</p>
    ${error ? html`<p role="alert">${error.message}</p>` : nothing}
    ${isPending(answer) && known.length === 0 ? html`<p class="says">Being asked …</p>` : nothing}
    <ul class="models" aria-label="Models">${known.map(model)}</ul>`;
}

/** @param {ModelState['versions']} versions */
const isLoaded = (versions) => versions.some(({ state }) => state === 'serving');

/**
 * @param {string} name
 * @param {ModelState['versions'][number]} one
 * @param {(name: string) => import('../core/html.js').Template} link
 */
const version = (name, { version: number, state, reason }, link) =>
  html`<li class=${state}>${state === 'loaded' ? link(`${name}@${number}`) : `version ${number}`}: ${STATES[state] ?? state}${
    reason ? html`<br><span class="says">${reason}</span>` : nothing
  }</li>`;
