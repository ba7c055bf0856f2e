/** Grid of a model's heads, a row a layer. */

import { STATISTICS } from '../core/statistics.js';
import { arrowKeys } from './arrow-keys.js';
import { html, painted, share } from '../core/html.js';

/**
 * Grid of small buttons, a row a layer, a column a head.
 *
 * @typedef {Object} HeadPad
 * @property {string} label
 * @property {number} layers
 * @property {number} heads
 * @property {(layer: number, head: number) => {value: number, pressed: boolean, says: string}} cell
 *   `value` −1 … 1 is its shade, brown below 0
 * @property {(layer: number, head: number, byKey: boolean) => void} pick
 * @property {boolean} [moves] the arrow keys pick as they go
 *
 * @param {HeadPad} pad
 */
export function headPad({ label, layers, heads, cell, pick, moves = false }) {
  const range = (/** @type {number} */ count) => Array.from({ length: count }, (_, i) => i);
  const moved = (/** @type {HTMLButtonElement} */ { dataset }) =>
    pick(Number(dataset.layer), Number(dataset.head), true);
  const cells = range(layers).map((layer) => range(heads).map((head) => cell(layer, head)));
  const pressed = moves && cells.some((row) => row.some((one) => one.pressed));
  const button = (/** @type {number} */ layer, /** @type {number} */ head) => {
    const { value, pressed: isPressed, says } = cells[layer][head];
    const more = says ? `, ${says}` : '';
    const entered = pressed ? isPressed : layer + head === 0;
    return html`<button type="button" .tabIndex=${entered ? 0 : -1} data-layer=${layer} data-head=${head}
      class=${value < 0 ? 'less' : ''}
      aria-pressed=${String(isPressed)} aria-label=${`Layer ${layer} head ${head}${more}`}
      title=${`${layer}·${head}${says ? `  ${says}` : ''}`} .style=${share(Math.abs(value))}
      @click=${() => pick(layer, head, false)}></button>`;
  };
  const name = (/** @type {string|number} */ text) =>
    html`<span class="pad-name" aria-hidden="true">${text}</span>`;
  return html`<div class="pad" role="group" aria-label=${label} .style=${`--heads: ${heads}`}
    @keydown=${arrowKeys(moves ? moved : undefined)} @focusin=${told} @focusout=${told} @pointerover=${told} @pointerleave=${told}>
    <div class="pad-row">${name('')}${range(heads).map(name)}</div>
    ${range(layers).map((layer) => html`<div class="pad-row">${name(layer)}${range(heads).map((head) => button(layer, head))}</div>`)}
    <p class="pad-told" aria-hidden="true" ${painted(tell, cells)}></p>
  </div>`;
}

/** Write the value of the head that is pointed at, tapped or focused below its grid. @param {Element} line */
function tell(line) {
  line.textContent = line.parentElement?.querySelector('button:is(:hover, :focus)')?.ariaLabel ?? '';
}

/** @param {Event} event */
const told = ({ currentTarget }) => {
  const line = /** @type {Element} */ (currentTarget).querySelector('.pad-told');
  if (line) tell(line);
};

/**
 * Grid of all heads of a reading; the chosen head is pressed.
 *
 * @param {import('./store.js').Store} store
 * @param {import('../api/reading.js').Reading} reading
 */
export function headPadOf(store, reading) {
  const { sort } = store.state;
  const by = sort in STATISTICS ? sort : 'confidence';
  const most = Math.max(...reading.statistics[by], 1e-9);
  const asked = reading.place(store.state);
  return headPad({
    label: 'Heads',
    layers: reading.layers,
    heads: reading.heads,
    moves: true,
    pick: (layer, head, byKey) => store.go({ layer, head, most: false }, { replace: byKey }),
    cell: (layer, head) => {
      const value = reading.statistics[by][layer * reading.heads + head];
      const off = reading.off.includes(`${layer}.${head}`) ? ', switched off' : '';
      return {
        value: value / most,
        pressed: layer === asked.layer && head === asked.head,
        says: `${reading.names.statistics[by].name} ${value.toFixed(2)}${off}`,
      };
    },
  });
}
