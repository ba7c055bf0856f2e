/** A term that opens its definition when it is clicked, tapped, or pressed by Enter or Space. */

import { html } from '../core/html.js';
import { placeBeside } from './popover.js';

/** Width of a definition, in pixels. */
const WIDTH = 320;

/**
 * Return a term as a button, with its definition in a popover, which Escape and a click elsewhere close.
 *
 * @param {string} term stands only once in a view
 * @param {string} says
 */
export function definition(term, says) {
  const id = `about-${term.toLowerCase().replace(/[^a-z0-9]+/g, '-')}`;
  return html`<span class="definition"><button type="button" class="term" popovertarget=${id} aria-describedby=${id}
    title=${says}>${term}</button><span popover id=${id} class="floating explains" data-width=${WIDTH} @beforetoggle=${placeBeside}>${says}</span></span>`;
}
