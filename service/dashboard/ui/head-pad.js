/** Grid of a model's heads, a row a layer, and the heads that stand out in it. */

import { largest } from '../core/matrix.js';
import { STATISTICS } from '../core/statistics.js';
import { arrowKeys } from './arrow-keys.js';
import { html, painted, share } from '../core/html.js';

/**
 * Grid of small buttons, a row a layer, a column a head.
 *
 * @typedef {(layer: number, head: number, byKey: boolean) => void} Pick
 * @typedef {Object} HeadPad
 * @property {string} label
 * @property {{layers: number, heads: number}} of
 * @property {ArrayLike<number>|null} values `[L · N]`, shown as shades, brown below 0; null for none
 * @property {number} [most] value of the strongest shade; the largest magnitude if left out
 * @property {string[]} pressed heads, as `layer.head`
 * @property {(place: number) => string} says
 * @property {Pick} pick
 * @property {boolean} [moves] the arrow keys pick as they go
 *
 * @param {HeadPad} pad
 */
export function headPad({ label, of: { layers, heads }, values, most, pressed, says, pick, moves = false }) {
  const range = (/** @type {number} */ count) => Array.from({ length: count }, (_, i) => i);
  const moved = (/** @type {HTMLButtonElement} */ { dataset }) =>
    pick(Number(dataset.layer), Number(dataset.head), true);
  const full = most ?? strongest(values ?? []);
  const told = range(layers * heads).map(says);
  const [entered = '0.0'] = moves ? pressed : [];
  const button = (/** @type {number} */ layer, /** @type {number} */ head) => {
    const place = layer * heads + head;
    const name = `${layer}.${head}`;
    const value = (values?.[place] ?? 0) / full;
    return html`<button type="button" .tabIndex=${name === entered ? 0 : -1} data-layer=${layer} data-head=${head}
      class=${value < 0 ? 'less' : ''}
      aria-pressed=${String(pressed.includes(name))} aria-label=${`Layer ${layer} head ${head}, ${told[place]}`}
      title=${`${layer}·${head}  ${told[place]}`} .style=${share(Math.abs(value))}
      @click=${() => pick(layer, head, false)}></button>`;
  };
  const name = (/** @type {string|number} */ text) =>
    html`<span class="pad-name" aria-hidden="true">${text}</span>`;
  return html`<div class="pad" role="group" aria-label=${label} .style=${`--heads: ${heads}`}
    @keydown=${arrowKeys(moves ? moved : undefined)} @focusin=${pointed} @focusout=${pointed} @pointerover=${pointed} @pointerleave=${pointed}>
    <div class="pad-row">${name('')}${range(heads).map(name)}</div>
    ${range(layers).map((layer) => html`<div class="pad-row">${name(layer)}${range(heads).map((head) => button(layer, head))}</div>`)}
    <p class="pad-told" aria-hidden="true" ${painted(tell, told)}></p>
  </div>`;
}

/** Write the value of the head that is pointed at, tapped or focused below its grid. @param {Element} line */
function tell(line) {
  line.textContent = line.parentElement?.querySelector('button:is(:hover, :focus)')?.ariaLabel ?? '';
}

/** @param {Event} event */
const pointed = ({ currentTarget }) => {
  const line = /** @type {Element} */ (currentTarget).querySelector('.pad-told');
  if (line) tell(line);
};

/** Return the largest magnitude, which the strongest shade stands for; tiny where all are 0. @param {ArrayLike<number>} values */
export const strongest = (values) => Math.max(...Array.from(values, Math.abs), 1e-12);

/** Return the function that shows a head in the view. @param {import('./store.js').Store} store @returns {Pick} */
export const showHead = (store) => (layer, head, byKey) =>
  store.go({ layer, head, most: false }, { replace: byKey });

/**
 * Grid of all heads of a reading; the chosen head is pressed.
 *
 * @param {import('./store.js').Store} store
 * @param {import('../api/reading.js').Reading} reading
 */
export function headPadOf(store, reading) {
  const { sort } = store.state;
  const by = sort in STATISTICS ? sort : 'confidence';
  const values = reading.statistics[by];
  return headPad({
    label: 'Heads',
    of: reading,
    values,
    pressed: [nameOf(reading.place(store.state))],
    moves: true,
    pick: showHead(store),
    says: (place) => {
      const off = reading.off.includes(nameOf(reading.headAt(place))) ? ', switched off' : '';
      return `${reading.names.statistics[by].name} ${values[place].toFixed(2)}${off}`;
    },
  });
}

/** Return a head's name in the state. @param {{layer: number, head: number}} place */
export const nameOf = ({ layer, head }) => `${layer}.${head}`;

/** Number of heads that are listed beside a grid. */
const LISTED = 6;

/**
 * Buttons of the heads with the largest values, or the smallest.
 *
 * @param {import('../api/reading.js').Reading} reading
 * @param {Float32Array} values
 * @param {Pick} pick
 * @param {number} [sign] of the order: −1 for the smallest
 */
export function headsByValue(reading, values, pick, sign = 1) {
  const chip = (/** @type {number} */ place) => {
    const { layer, head } = reading.headAt(place);
    return html`<li><button type="button" class="chip" @click=${() => pick(layer, head, false)}
      >${`${layer}·${head}  ${values[place].toFixed(3)}`}</button></li>`;
  };
  const places = largest(
    values.map((value) => sign * value),
    LISTED,
  );
  return html`<ol class="ranking">${places.map(chip)}</ol>`;
}
