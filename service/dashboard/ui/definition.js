/** A term that opens its definition when it is clicked, tapped, or pressed by Enter or Space. */

import { html } from '../core/html.js';

/** Distance between a term and its definition, in pixels. */
const GAP = 6;

/**
 * Return a term as a button, with its definition in a popover, which Escape and a click elsewhere close.
 *
 * @param {string} term stands only once in a view
 * @param {string} says
 */
export function definition(term, says) {
  const id = `about-${term.toLowerCase().replace(/[^a-z0-9]+/g, '-')}`;
  return html`<span class="definition"><button type="button" class="term" popovertarget=${id} aria-describedby=${id}
    title=${says}>${term}</button><span popover id=${id} class="explains" @beforetoggle=${place}>${says}</span></span>`;
}

/** Put a definition below its term, inside the window. @param {Event} event */
function place(event) {
  const popover = /** @type {HTMLElement} */ (event.currentTarget);
  const { left, bottom } = /** @type {Element} */ (popover.previousElementSibling).getBoundingClientRect();
  const width = Math.min(320, innerWidth - 2 * GAP);
  popover.style.width = `${width}px`;
  popover.style.left = `${Math.max(GAP, Math.min(left, innerWidth - width - GAP))}px`;
  popover.style.top = `${bottom + GAP}px`;
}
