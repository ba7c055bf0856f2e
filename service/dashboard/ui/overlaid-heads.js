/** Heads whose lines are drawn together, each in its own colour. */

import { html, nothing } from '../core/html.js';
import { namedMap } from '../core/maps.js';
import { memo } from '../core/memo.js';
import { toneColour } from '../draw/lines.js';
import { explained } from './definition.js';

const MOST = 5;
const PINNED = `Its lines stay while you view other heads, each head in its own colour, up to ${MOST} beside the chosen one.`;

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../draw/lines.js').Overlay} Overlay
 * @typedef {{layer: number, head: number}} Place
 * @typedef {Place & {tone: number}} Toned `tone` is its place in the state
 * @typedef {Toned & {weights: Float32Array}} OverlaidHead
 */

/** @param {Place} place */
const written = ({ layer, head }) => `${layer}.${head}`;
/** @param {Place} place */
const called = ({ layer, head }) => `Layer ${layer} head ${head}`;

/**
 * Return the overlaid heads that the model has, with their colours.
 *
 * @param {State} state
 * @param {Reading} reading
 */
function held({ overlaid }, reading) {
  return overlaid.slice(0, MOST).flatMap((text, tone) => {
    const [layer, head] = text.split('.').map(Number);
    return layer < reading.layers && head < reading.heads ? [{ layer, head, tone }] : [];
  });
}

/**
 * Return the overlaid heads other than a head.
 *
 * @param {State} state
 * @param {Reading} reading
 * @param {Place} place
 * @returns {Toned[]}
 */
export const overlaidBeside = (state, reading, place) =>
  held(state, reading).filter((one) => written(one) !== written(place));

/** Return the maps of overlaid heads. The same arguments give the same object. */
const made = memo(
  /** @param {Reading} reading @param {OverlaidHead[]} overlaid @param {number} tone @param {boolean} words @param {boolean} bare @param {State['part']} part @param {import('../core/maps.js').Measure} measure */
  (reading, overlaid, tone, words, bare, part, measure) => ({
    tone,
    others: overlaid.map((one) => ({
      name: called(one),
      tone: one.tone,
      map: namedMap(one.weights, reading, { words, bare, part }, measure),
    })),
  }),
  2,
);

/**
 * @param {State} state
 * @param {{reading: Reading, overlaid: OverlaidHead[]}} reply
 * @param {Place & {measure: import('../core/maps.js').Measure}} asked the head that they are drawn beside
 * @returns {Overlay}
 */
export function overlayOf(state, { reading, overlaid }, asked) {
  const { words, bare, part } = state;
  return made(reading, overlaid, toneOf(state, asked), words, bare, part, asked.measure);
}

/** @param {State} state @param {Place} place @returns {number} −1 of a head that is not overlaid */
const toneOf = ({ overlaid }, place) => overlaid.slice(0, MOST).indexOf(written(place));

/**
 * Controls of the overlaid heads: a button for each, and one for the chosen head.
 *
 * @param {Store} store
 * @param {Reading} reading
 * @param {Place} asked
 */
export function overlayControls(store, reading, asked) {
  const { state } = store;
  const own = written(asked);
  const isHeld = toneOf(state, asked) >= 0;
  const kept = held(state, reading);
  const others = overlaidBeside(state, reading, asked);
  const without = (/** @type {string} */ name) => state.overlaid.filter((one) => one !== name);
  const set = (/** @type {string[]} */ overlaid) => store.go({ overlaid });
  const swatch = (/** @type {number} */ tone) =>
    html`<span class="swatch" .style=${`background: ${toneColour(tone)}`}></span>`;
  const chip = (/** @type {Toned} */ one) => html`<li><button type="button" class="chip"
    @click=${() => set(without(written(one)))}>${swatch(one.tone)}${called(one)} ×</button></li>`;
  return html`<div class="overlay" role="group" aria-label="Overlaid heads">
    <span><button type="button" class="quiet" aria-pressed=${String(isHeld)} ?disabled=${!isHeld && kept.length >= MOST}
      @click=${() => set(isHeld ? without(own) : [...kept.map(written), own])}>Pin this head<span class="wide"> to compare</span></button>${explained('Pin this head', PINNED)}</span>
    ${others.length ? html`<span class="overlaid">${swatch(toneOf(state, asked))}${called(asked)}</span><ul class="ranking">${others.map(chip)}</ul>` : nothing}
  </div>`;
}
