/** Arrow keys through a set of buttons of which one is in the tab order. */

import { html, share } from './html.js';

/**
 * A listener for `keydown` of a container of `button`s; keys follow how they lie on the screen.
 *
 * @param {(button: HTMLButtonElement) => void} [onMove] told where the focus went
 */
export const roving =
  (onMove = () => {}) =>
  (/** @type {KeyboardEvent} */ event) => {
    const container = /** @type {HTMLElement} */ (event.currentTarget);
    const buttons = [...container.querySelectorAll('button')];
    const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const next = at < 0 ? undefined : neighbour(buttons, at, event.key);
    if (!next) return;
    event.preventDefault();
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    next.focus();
    onMove(next);
  };

/** @param {HTMLButtonElement[]} buttons @param {number} at @param {string} key */
function neighbour(buttons, at, key) {
  if (key === 'Home') return buttons[0];
  if (key === 'End') return buttons.at(-1);
  if (key === 'ArrowLeft') return buttons[at - 1];
  if (key === 'ArrowRight') return buttons[at + 1];
  if (key !== 'ArrowUp' && key !== 'ArrowDown') return undefined;
  const here = buttons[at].getBoundingClientRect();
  const down = key === 'ArrowDown';
  const candidates = (down ? buttons.slice(at + 1) : buttons.slice(0, at).reverse()).filter((button) => {
    const { top } = button.getBoundingClientRect();
    return down ? top > here.top + 2 : top < here.top - 2;
  });
  const above = (/** @type {HTMLButtonElement} */ button) =>
    Math.abs(button.getBoundingClientRect().left - here.left) < here.width / 2;
  return candidates.find(above) ?? candidates[0];
}

/**
 * Layers by heads as small buttons.
 *
 * @typedef {Object} HeadPad
 * @property {string} label
 * @property {number} layers
 * @property {number} heads
 * @property {(layer: number, head: number) => {value: number, pressed: boolean, says: string}} cell
 *   `value` 0 … 1 is its shade
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
      aria-pressed=${String(isPressed)} aria-label=${`Layer ${layer} head ${head}${more}`}
      title=${`${layer}·${head}${says ? `  ${says}` : ''}`} .style=${share(value)}
      @click=${() => pick(layer, head, false)}></button>`;
  };
  const name = (/** @type {string|number} */ text) =>
    html`<span class="pad-name" aria-hidden="true">${text}</span>`;
  return html`<div class="pad" role="group" aria-label=${label} .style=${`--heads: ${heads}`}
    @keydown=${roving(moves ? moved : undefined)}>
    <div class="pad-row">${name('')}${range(heads).map(name)}</div>
    ${range(layers).map((layer) => html`<div class="pad-row">${name(layer)}${range(heads).map((head) => button(layer, head))}</div>`)}
  </div>`;
}
