/** A term that opens its definition when it is clicked, tapped, or pressed by Enter or Space. */

import { html, nothing } from '../core/html.js';
import { placeBeside } from './popover.js';

/** Width of a definition, in pixels. */
const WIDTH = 320;

/** @param {string} term */
const idOf = (term) => `about-${term.toLowerCase().replace(/[^a-z0-9]+/g, '-')}`;

/**
 * Return a question mark that opens the definition of the control before it.
 *
 * @param {string} control
 * @param {string} says
 */
export const explained = (control, says) =>
  definition('?', says, { id: idOf(control), name: `What is ${control}?` });

/**
 * Return a term as a button, with its definition in a popover, which Escape and a click elsewhere close.
 *
 * @param {string} term stands only once in a view
 * @param {string} says
 * @param {{id?: string, name?: string|typeof nothing}} [options] `name` for screen readers, if it is not the term
 */
export function definition(term, says, { id = idOf(term), name = nothing } = {}) {
  return html`<span class="definition"><button type="button" class="term" popovertarget=${id} aria-describedby=${id} aria-label=${name}
    title=${says}>${term}</button><span popover id=${id} class="floating explains" data-width=${WIDTH} @beforetoggle=${placeBeside}>${says}</span></span>`;
}
