/** Small controls of several views. */

import { html, live, nothing, painted } from '../core/html.js';
import { exponentOf, paint, theme } from '../draw/colours.js';
import { definition, explained } from './definition.js';

const MID_COLOUR =
  'The weight in the middle of the scale. Even attention is a quarter of the way to the strongest colour, however long the text; Linear colours turns this off.';
const LINEAR =
  'On: colours are in proportion to weights. Off: even attention is a quarter of the way to the strongest colour, however long the text.';
/** Weights from 0 to 1. */
const RAMP = Float32Array.from({ length: 256 }, (_, i) => i / 255);

const PARTS = { all: 'All', aa: 'A → A', ab: 'A → B', ba: 'B → A', bb: 'B → B' };

/** @typedef {import('./store.js').Store} Store */

/**
 * Switch between values, as buttons side by side.
 *
 * @template {string} T
 * @param {string} label
 * @param {Record<T, unknown>} names of the values
 * @param {T} chosen
 * @param {(value: T) => void} choose
 * @param {(value: T) => boolean} [isOff] whether a value cannot be chosen
 */
export function segments(label, names, chosen, choose, isOff = () => false) {
  const button = (/** @type {T} */ value) =>
    html`<button type="button" aria-pressed=${String(value === chosen)} ?disabled=${isOff(value)} @click=${() => choose(value)}>${names[value]}</button>`;
  const values = /** @type {T[]} */ (Object.keys(names));
  return html`<div class="segments" role="group" aria-label=${label}>${values.map(button)}</div>`;
}

/** Switch between weights and norms. @param {Store} store */
export const measureSwitch = (store) =>
  segments('Measure', { weights: 'Weights', norms: 'Norms' }, store.state.measure, (measure) =>
    store.go({ measure }),
  );

/**
 * Legend of the colours of several maps.
 *
 * @param {number} keys as in `exponentOf`
 * @param {boolean} linear
 */
export function colourLegend(keys, linear) {
  const half = 0.5 ** (1 / (linear ? 1 : exponentOf(keys)));
  const draw = (/** @type {HTMLCanvasElement} */ canvas) =>
    paint(canvas, RAMP, RAMP.length, 1, { linear: true });
  return html`<p class="colour-legend"><span>weight</span> <span>0</span>
    <canvas aria-hidden="true" ${painted(draw, theme())}></canvas>
    <span>1</span> <span class="half">${definition('Mid-colour', MID_COLOUR)} = ${half.toPrecision(2)}</span></p>`;
}

/** Button that hides special tokens, on which attention rests that finds nothing else. @param {Store} store */
export const hideSinks = (store) =>
  store.state.bare
    ? nothing
    : html`<button type="button" class="link says" @click=${() => store.go({ bare: true, zoom: [1, 0, 0] })}>Hide sinks</button>`;

/** Slider for the weakest link that is drawn. @param {Store} store @param {string} [measure] of the map */
export function weakestLink(store, measure = 'weights') {
  const { min } = store.state;
  const set = (/** @type {{target: HTMLInputElement}} */ { target }) =>
    store.go({ min: Number(target.value) }, { replace: true });
  return html`<label class="choice"><span>Hide links below</span>
    <input type="range" min="0" max="0.5" step="0.01" .value=${live(String(min))} @input=${set}>
    <output>${min.toFixed(2)}${measure === 'norms' ? ' of the largest' : ''}</output></label>`;
}

/** Switch between the quadrants of a pair. @param {Store} store @param {boolean} isPair */
export const partSwitch = (store, isPair) =>
  isPair
    ? segments('Quadrant of the pair', PARTS, store.state.part, (part) => store.go({ part, zoom: [1, 0, 0] }))
    : nothing;

/** Switch between colours in proportion to weights and relative to even attention. @param {Store} store */
export function scaleSwitch(store) {
  const set = (/** @type {{target: HTMLInputElement}} */ { target }) =>
    store.go({ linear: target.checked }, { replace: true });
  return html`<span><label class="switch"><input type="checkbox" .checked=${live(store.state.linear)}
    @change=${set}> Linear colours</label>${explained('Linear colours', LINEAR)}</span>`;
}

/**
 * A labelled `<select>`.
 *
 * @param {string} label
 * @param {{value: string, label: string}[]} options
 * @param {string} value
 * @param {(value: string) => void} choose
 */
export function choice(label, options, value, choose) {
  const set = (/** @type {{target: HTMLSelectElement}} */ { target }) => choose(target.value);
  return html`<label class="choice"><span>${label}</span>${select(options, value, set)}</label>`;
}

/**
 * @param {{value: string, label: string}[]} options
 * @param {string} value
 * @param {(event: {target: HTMLSelectElement}) => void} set
 * @param {string|typeof nothing} [name] where no label stands beside it
 */
export const select = (options, value, set, name = nothing) =>
  html`<select aria-label=${name} @change=${set}>${options.map(
    (option) =>
      html`<option value=${option.value} .selected=${live(option.value === value)}>${option.label}</option>`,
  )}</select>`;
