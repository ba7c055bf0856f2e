/** Notes on a text that the model does not see as it was typed. */

import { html, nothing } from '../core/html.js';

/**
 * @param {{truncated: boolean, size: number, unknown: boolean}} text `unknown`: many of its tokens are unknown
 * @param {string} [name] of the text
 */
export function textNotes({ truncated, size, unknown }, name = 'The text') {
  if (!truncated && !unknown) return nothing;
  return html`<p class="says text-note">${truncated ? `${name} is cut: the model sees ${size} of its tokens. ` : ''}${unknown ? `Over a tenth of its tokens are unknown to the model, so its vector and attention say little about it.` : ''}</p>`;
}
