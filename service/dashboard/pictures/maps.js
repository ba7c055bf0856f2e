/** `<picture-map>` of the store's picture, with its controls, and the same for files. */

import { html, live, share } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { largest } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { segments } from '../ui/controls.js';
import { layerOf, pictureScene } from './drawing.js';
import { pictureOf } from './files.js';
import { fromOf, nameOf, patchesOf, rowOf, specialsOf, toOf, viewOf } from './tokens.js';
import './picture-map.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('./drawing.js').Layer} Layer
 * @typedef {import('./picture-map.js').PictureData} PictureData
 * @typedef {'from'|'to'} End
 * @typedef {{reading: Reading, weights: Float32Array}} Reply `weights` `[S, S]`
 */

const BEST = 8;
const DIGITS = 4;
const TALL = 520;

/** Return the weights of the patches in a row. The same arguments give the same array. */
export const patchWeights = memo(
  (/** @type {Reading} */ reading, /** @type {Float32Array} */ map, /** @type {number} */ token) =>
    rowOf(reading, map, token).subarray(specialsOf(reading)),
  12,
);

/**
 * Return what is drawn of a map over its picture.
 *
 * @param {State} state
 * @param {Reading} reading
 * @param {Layer|null} layer
 * @returns {import('./drawing.js').Drawn}
 */
export function drawnOf(state, reading, layer) {
  const specials = specialsOf(reading);
  return {
    picture: pictureOf(reading.texts[0]),
    view: viewOf(reading),
    layer,
    opacity: state.opacity,
    smooth: state.smooth,
    from: fromOf(state, reading) - specials,
    to: (toOf(state, reading) ?? -1) - specials,
  };
}

/**
 * Return a map `[S, S]` as a layer, for the token that looks. Norms of a row do not sum to 1: their mean is
 * their even weight.
 *
 * @param {State} state
 * @param {Reply} reply
 */
export function layerFrom(state, { reading, weights }) {
  const from = fromOf(state, reading);
  const total = rowOf(reading, weights, from).reduce((sum, weight) => sum + weight, 0);
  return layerOf(patchWeights(reading, weights, from), total / reading.size, state.linear);
}

/** @param {End} end @returns {End} */
const otherEnd = (end) => (end === 'from' ? 'to' : 'from');

/**
 * @param {Store} store
 * @param {Reading} reading
 * @param {{layer: Layer|null, label: string, end: End, tall?: number}} how
 */
export function pictureMap(store, reading, { layer, label, end, tall = TALL }) {
  const specials = specialsOf(reading);
  const drawn = drawnOf(store.state, reading, layer);
  const choose = (/** @type {CustomEvent<import('./picture-map.js').Choice>} */ { detail }) => {
    const { patch, byKey, other } = detail;
    store.go({ [other ? otherEnd(end) : end]: patch + specials }, { replace: byKey });
  };
  /** @type {PictureData} */
  const data = {
    ...drawn,
    label,
    tall,
    moves: drawn[end],
    shifts: drawn[otherEnd(end)],
    says: layer ? (patch) => fixed(layer.values[patch], DIGITS) : null,
  };
  return html`<picture-map .data=${data} @choose=${choose}></picture-map>`;
}

/** Controls of a map over a picture. @param {Store} store */
export function lookControls(store) {
  const { opacity, smooth } = store.state;
  const set = (/** @type {{target: HTMLInputElement}} */ { target }) =>
    store.go({ opacity: Number(target.value) }, { replace: true });
  const looks = { squares: 'Patches', smooth: 'Smooth' };
  const look = (/** @type {keyof typeof looks} */ value) =>
    store.go({ smooth: value === 'smooth' }, { replace: true });
  return html`<label class="choice"><span>Opacity</span>
      <input type="range" min="0" max="1" step="0.05" .value=${live(String(opacity))} @input=${set}>
      <output>${Math.round(100 * opacity)}%</output></label>
    ${segments('Patches', looks, smooth ? 'smooth' : 'squares', look)}`;
}

/**
 * Table of the special tokens and of the patches with the largest weights.
 *
 * @param {Store} store
 * @param {Reply} reply
 */
function strongest(store, { reading, weights }) {
  const from = fromOf(store.state, reading);
  const to = toOf(store.state, reading);
  const row = rowOf(reading, weights, from);
  const specials = specialsOf(reading);
  const patches = largest(row.subarray(specials), BEST).map((patch) => patch + specials);
  const tokens = [...Array.from({ length: specials }, (_, token) => token), ...patches];
  const full = Math.max(...tokens.map((token) => row[token]), 1e-9);
  return html`<table class="strongest"><caption>From ${nameOf(reading, from)}</caption>
    <thead><tr><th scope="col">looks at</th><th scope="col" class="number">weight</th></tr></thead>
    <tbody>${tokens.map(
      (
        token,
      ) => html`<tr><th scope="row"><button type="button" class="chip" aria-pressed=${String(token === to)}
          @click=${() => store.go({ to: token })}>${nameOf(reading, token)}</button></th>
        <td class="number"><span class="meter" .style=${share(row[token] / full)}></span>${fixed(row[token], DIGITS)}</td></tr>`,
    )}</tbody></table>`;
}

/**
 * Return a row of a map for JSON.
 *
 * @param {State} state
 * @param {Reading} reading
 * @param {Float32Array} map `[S, S]`
 */
export function rowJson(state, reading, map) {
  const from = fromOf(state, reading);
  const row = [...rowOf(reading, map, from)].map((weight) => Number(weight.toPrecision(8)));
  const { grid, size, crop } = viewOf(reading);
  const specials = specialsOf(reading);
  const patches = row.slice(specials);
  const rows = Array.from({ length: patchesOf({ grid, size, crop }) / grid[1] }, (_, i) =>
    patches.slice(i * grid[1], (i + 1) * grid[1]),
  );
  return {
    grid,
    size,
    crop,
    from: nameOf(reading, from),
    special: Object.fromEntries(reading.tokens.slice(0, specials).map((name, i) => [name, row[i]])),
    patches: rows,
  };
}

/** Sentence on how to choose a patch. */
export const HOW =
  'Click, tap or use the arrow keys to choose the patch that looks; with Shift, the one that is looked at.';

/**
 * Map over the picture, beside a table of the largest weights.
 *
 * @param {Store} store
 * @param {Reply} reply
 * @param {{label: string, end: End}} how
 * @param {import('../core/html.js').Template} side what stands above the table
 */
export const pictureBody = (store, reply, how, side) =>
  html`<div class="picture-body"><div>${pictureMap(store, reply.reading, { ...how, layer: layerFrom(store.state, reply) })}
      <p class="says">${HOW}</p></div>
    <div>${side}${strongest(store, reply)}</div></div>`;

/** Return what screen readers announce of the tokens that are chosen. @param {State} state @param {Reading} reading */
export function saysFrom(state, reading) {
  const to = toOf(state, reading);
  return `From ${nameOf(reading, fromOf(state, reading))}${to === null ? '' : ` to ${nameOf(reading, to)}`}.`;
}

/** Return what files call the picture. @param {State} state @param {Reading} reading */
export const titleOf = (state, reading) =>
  `${pictureOf(reading.texts[0]).label}, from ${nameOf(reading, fromOf(state, reading))}`;

/** Return the parts of a file of one map. @param {State} state @param {Reply} reply @param {Object} json */
export const rowFile = (state, reply, json) => ({
  texts: [titleOf(state, reply.reading)],
  scene: pictureScene(drawnOf(state, reply.reading, layerFrom(state, reply))),
  json: { ...json, ...rowJson(state, reply.reading, reply.weights) },
});
