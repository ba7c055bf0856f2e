/** A sentence that names the words which matter most. */

import { bdi, html, nothing } from '../core/html.js';
import { leading } from '../core/marked-words.js';
import { fixed } from '../core/numbers.js';

/**
 * @param {{label: string, value: number|null}[]} words
 * @param {string[]} does what one word and what several words above 0 do, then those below
 */
export function leadingWords(words, [ups, up, downs, down]) {
  const [above, below] = leading(words);
  const part = (
    /** @type {{label: string, value: number}[]} */ named,
    /** @type {string} */ one,
    /** @type {string} */ several,
  ) =>
    html`${named.map(
      ({ label, value }, i) =>
        html`${i ? ' and ' : ''}<b>${bdi(label)}</b> <span class="number">${fixed(value, 3)}</span>`,
    )} ${named.length > 1 ? several : one}`;
  if (!above.length && !below.length) return nothing;
  return html`<p class="leading">${above.length ? part(above, ups, up) : nothing}${above.length && below.length ? '; ' : ''}${below.length ? part(below, downs, down) : nothing}.</p>`;
}
