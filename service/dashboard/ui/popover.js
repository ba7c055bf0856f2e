/** A button, and what it opens over the page; Escape, a click elsewhere, and a choice close it. */

import { html } from '../core/html.js';

/** Distance between a button and what it opens, in pixels. */
const GAP = 6;

/** Share of the window's height below which a popover opens upwards. */
const LOW = 0.6;

/**
 * Put a popover beside its button, inside the window, before it opens: below it, or above a low one.
 *
 * @param {Event} event
 */
export function placeBeside(event) {
  const popover = /** @type {HTMLElement} */ (event.currentTarget);
  const button = /** @type {Element} */ (popover.previousElementSibling).getBoundingClientRect();
  const width = Math.min(Number(popover.dataset.width), innerWidth - 2 * GAP);
  const isLow = button.bottom > LOW * innerHeight;
  Object.assign(popover.style, {
    width: `${width}px`,
    left: `${Math.max(GAP, Math.min(button.left, innerWidth - width - GAP))}px`,
    top: isLow ? 'auto' : `${button.bottom + GAP}px`,
    bottom: isLow ? `${innerHeight - button.top + GAP}px` : 'auto',
    maxHeight: `${(isLow ? button.top : innerHeight - button.bottom) - 2 * GAP}px`,
  });
}

/**
 * @param {string} name of what opens, once on the page
 * @param {import('../core/html.js').Template} label of the button
 * @param {import('../core/html.js').Template} content
 * @param {{width?: number, onOpen?: () => void}} [options] `width` in pixels
 */
export function popover(name, label, content, { width = 240, onOpen = () => {} } = {}) {
  const id = `open-${name.toLowerCase()}`;
  const opening = (/** @type {ToggleEvent} */ event) => {
    if (event.newState !== 'open') return;
    placeBeside(event);
    onOpen();
  };
  const chosen = (/** @type {MouseEvent} */ { target, currentTarget }) => {
    if (/** @type {Element} */ (target).closest('button, a'))
      /** @type {HTMLElement} */ (currentTarget).hidePopover();
  };
  return html`<span class="opens"><button type="button" class="quiet" popovertarget=${id}>${label}</button><div popover
    id=${id} class="floating" data-width=${width} @beforetoggle=${opening} @click=${chosen}>${content}</div></span>`;
}
