/** What a reader should know about a text before trusting its score. */

import { bdi, html, nothing } from '../../core/html.js';

const MOST_SHOWN = 140;

/** @typedef {import('../../api/ranking.js').TokenInfo} TokenInfo */

/** @param {string} text */
const shortened = (text) => (text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)} …` : text);

/**
 * @param {string} text
 * @param {TokenInfo|null} info
 * @param {import('./slots.js').Lost|null} lost what was cut off, once it is known
 */
export function badges(text, info, lost) {
  if (!info) return nothing;
  return html`${info.truncated ? cut(lost) : nothing}${info.unknown.length ? unknown(text, info) : nothing}`;
}

/** @param {import('./slots.js').Lost|null} lost */
function cut(lost) {
  if (!lost) return html`<p class="badge">Cut: the model does not read all of it.</p>`;
  if (!lost.lost) return nothing;
  return html`<p class="badge">Cut: ${lost.tokens} tokens are not read: “${bdi(shortened(lost.lost))}”</p>`;
}

/** @param {string} text @param {TokenInfo} info */
function unknown(text, { unknown: places, offsets }) {
  const points = Array.from(text);
  const words = places.map((place) =>
    points
      .slice(...offsets[place])
      .join('')
      .trim(),
  );
  const count = places.length === 1 ? 'One token is' : `${places.length} tokens are`;
  return html`<p class="badge">${count} unknown to the model: “${bdi(shortened(words.join(' ')))}”</p>`;
}
