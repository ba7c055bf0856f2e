/** Arrow keys through a set of buttons of which one is in the tab order. */

import { element } from './dom.js';

/**
 * @param {HTMLElement} container of `button`s; keys follow how they lie on the screen
 * @param {(button: HTMLButtonElement) => void} [onMove] told where the focus went
 */
export function rove(container, onMove = () => {}) {
  container.addEventListener('keydown', (event) => {
    const buttons = [...container.querySelectorAll('button')];
    const at = buttons.indexOf(document.activeElement);
    if (at < 0) return;
    const next = neighbour(buttons, at, event.key);
    if (!next) return;
    event.preventDefault();
    enter(container, next);
    next.focus();
    onMove(next);
  });
}

/** Make one button the one that Tab reaches. */
export function enter(container, button) {
  for (const other of container.querySelectorAll('button')) other.tabIndex = other === button ? 0 : -1;
}

function neighbour(buttons, at, key) {
  if (key === 'Home') return buttons[0];
  if (key === 'End') return buttons.at(-1);
  if (key === 'ArrowLeft') return buttons[at - 1];
  if (key === 'ArrowRight') return buttons[at + 1];
  if (key !== 'ArrowUp' && key !== 'ArrowDown') return undefined;
  const here = buttons[at].getBoundingClientRect();
  const down = key === 'ArrowDown';
  const candidates = (down ? buttons.slice(at + 1) : buttons.slice(0, at).reverse()).filter((button) =>
    down
      ? button.getBoundingClientRect().top > here.top + 2
      : button.getBoundingClientRect().top < here.top - 2,
  );
  return (
    candidates.find((button) => Math.abs(button.getBoundingClientRect().left - here.left) < here.width / 2) ??
    candidates[0]
  );
}

/**
 * Layers by heads as small buttons.
 *
 * @param {{label: string, layers: number, heads: number, onPick: (layer: number, head: number) => void, moves?: boolean}} options
 *   `moves`: the arrow keys pick as they go
 * @returns {{element: HTMLElement, show: (cell: (layer: number, head: number) => {value: number, pressed: boolean, says: string}) => void}}
 *   `value` 0 … 1 is the cell's shade
 */
export function headPad({ label, layers, heads, onPick, moves = false }) {
  const pick = (button) => onPick(Number(button.dataset.layer), Number(button.dataset.head));
  const rows = Array.from({ length: layers }, (_, layer) =>
    element(
      'div',
      { class: 'pad-row', data: { layer } },
      element('span', { class: 'pad-name', 'aria-hidden': 'true' }, String(layer)),
      ...Array.from({ length: heads }, (__, head) =>
        element('button', {
          type: 'button',
          tabIndex: -1,
          data: { layer, head },
          on: { click: (event) => pick(event.currentTarget) },
        }),
      ),
    ),
  );
  const names = element(
    'div',
    { class: 'pad-row', 'aria-hidden': 'true' },
    element('span', { class: 'pad-name' }, ''),
    ...Array.from({ length: heads }, (_, head) => element('span', { class: 'pad-name' }, String(head))),
  );
  const pad = element('div', { class: 'pad', role: 'group', 'aria-label': label }, names, ...rows);
  pad.style.setProperty('--heads', heads);
  rove(pad, moves ? pick : undefined);
  enter(pad, pad.querySelector('button'));
  return {
    element: pad,
    show(cell) {
      for (const button of pad.querySelectorAll('button')) {
        const [layer, head] = [Number(button.dataset.layer), Number(button.dataset.head)];
        const { value, pressed, says } = cell(layer, head);
        button.style.setProperty('--share', Math.max(0, Math.min(1, value)));
        button.setAttribute('aria-pressed', String(pressed));
        button.setAttribute('aria-label', `Layer ${layer} head ${head}${says ? `, ${says}` : ''}`);
        button.title = `${layer}·${head}${says ? `  ${says}` : ''}`;
        if (pressed && moves) enter(pad, button);
      }
    },
  };
}
